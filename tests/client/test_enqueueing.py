"""Enqueueing: every way in, what is stored, and what comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pydantic
import pytest

from taskharbor import (
    ConfigurationError,
    Harbor,
    PayloadError,
    PayloadTooLarge,
    State,
    Task,
    Worker,
    group,
)
from taskharbor.clock import ManualClock, from_micros

Sending = Task[Any, Any, Any, Any]


@pytest.fixture
def send(harbor: Harbor) -> Sending:
    @harbor.task(name="email:send")
    def send(to: str, subject: str = "hi", *, times: int = 1) -> str:
        return f"{to}: {subject} x {times}"

    return send


def test_a_payload_maps_parameter_names_to_values_and_leaves_defaults_out(send: Sending):
    assert send.enqueue("a@b.c", subject="yo").payload == {"to": "a@b.c", "subject": "yo"}
    assert send.enqueue("a@b.c").payload == {"to": "a@b.c"}
    assert send.enqueue(times=3, to="x").refresh().payload == {"to": "x", "times": 3}


async def test_the_async_form_stores_the_same(send: Sending, harbor: Harbor):
    job = await send.aenqueue("a@b.c", subject="yo")
    assert (await job.arefresh()).payload == {"to": "a@b.c", "subject": "yo"}
    assert (await harbor.jobs.acounts())["ready"] == 1


def test_a_new_job_is_ready_and_did_not_exist(send: Sending):
    job = send.enqueue("a@b.c")
    assert (job.state, job.existed, job.attempts, job.number, job.progress) == ("ready", False, 0, 0, None)
    assert job == job.refresh()


def test_an_id_is_a_uuid_of_version_seven(send: Sending):
    ids = [send.enqueue("a@b.c").id for _ in range(20)]
    assert {uuid.UUID(each).version for each in ids} == {7}
    assert ids == sorted(ids)


def test_wrong_arguments_are_refused_before_anything_is_stored(send: Sending, harbor: Harbor):
    for args, kwargs, said in (
        ((), {}, "needs 'to'"),
        (("a", "b", "c"), {}, "takes 2 positional arguments, but 3 were given"),
        (("a",), {"to": "b"}, "two values for 'to'"),
        (("a",), {"cc": "b"}, "no parameter 'cc'"),
        ((5,), {}, "at to: expected `str`, got `int`"),
        (("a",), {"times": "3"}, "at times: expected `int`, got `str`"),
    ):
        with pytest.raises(PayloadError, match=said):
            send.enqueue(*args, **kwargs)
    assert harbor.jobs.counts()["ready"] == 0


def test_many_are_stored_in_one_call_in_the_order_given(send: Sending, harbor: Harbor):
    jobs = send.enqueue_many({"to": f"{n}@b.c"} for n in range(250))
    assert [job.payload["to"] for job in jobs] == [f"{n}@b.c" for n in range(250)]
    assert harbor.jobs.counts()["ready"] == 250
    assert len({job.id for job in jobs}) == 250


async def test_many_by_the_async_form(send: Sending, harbor: Harbor):
    jobs = await send.using(priority=3).aenqueue_many([{"to": "a"}, {"to": "b"}])
    assert [job.priority for job in jobs] == [3, 3]
    [one] = await harbor.aenqueue_many([send.s("c")])
    assert one.payload == {"to": "c"}


def test_many_are_all_or_nothing(send: Sending, harbor: Harbor):
    with pytest.raises(PayloadError, match="at to: expected `str`"):
        send.enqueue_many([{"to": "a"}, {"to": 5}, {"to": "c"}])
    with pytest.raises(PayloadError, match="takes a mapping of arguments for each job"):
        send.enqueue_many([{"to": "a"}, "b"])  # type: ignore[list-item]
    with pytest.raises(PayloadError, match="needs 'to'"):
        harbor.enqueue_many([send.s("a"), send.s()])
    with pytest.raises(ConfigurationError, match="enqueue_many takes signatures"):
        harbor.enqueue_many([send.s("a"), {"to": "b"}])  # type: ignore[list-item]

    def breaking():
        yield {"to": "a"}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send.enqueue_many(breaking())
    assert harbor.jobs.counts()["ready"] == 0


def test_an_error_among_many_says_at_which_index_it_arose(send: Sending, harbor: Harbor):
    with pytest.raises(PayloadError, match=r"^at index 1: .* at to: expected `str`"):
        send.enqueue_many([{"to": "a"}, {"to": 5}, {"to": 6}])
    with pytest.raises(PayloadError, match="^at index 2: .* takes a mapping"):
        send.enqueue_many([{"to": "a"}, {"to": "b"}, "c"])  # type: ignore[list-item]
    with pytest.raises(PayloadTooLarge, match="^at index 0: "):
        send.enqueue_many([{"to": "a" * 1_048_576}])
    with pytest.raises(PayloadError, match="^at index 1: .* needs 'to'"):
        harbor.enqueue_many([send.s("a"), send.s()])
    with pytest.raises(ConfigurationError, match="^at index 1: .* takes signatures"):
        harbor.enqueue_many([send.s("a"), {"to": "b"}])  # type: ignore[list-item]
    assert harbor.jobs.counts()["ready"] == 0


def test_handles_of_many_show_what_the_store_keeps(send: Sending, harbor: Harbor):
    jobs = send.using(priority=3, timeout=5).enqueue_many([{"to": "a"}, {"to": "b"}, {"to": "c"}])
    assert [job.record for job in jobs] == [job.refresh().record for job in jobs]


def test_none_at_all_is_no_job(send: Sending, harbor: Harbor):
    assert send.enqueue_many([]) == []
    assert harbor.enqueue_many([]) == []
    assert sum(harbor.jobs.counts().values()) == 0


def test_signatures_of_different_tasks_go_in_together(send: Sending, harbor: Harbor):
    @harbor.task(queue="math")
    def add(x: int, y: int) -> int:
        return x + y

    jobs = harbor.enqueue_many([send.using(priority=5).s("a@b.c", "hi"), add.s(1, y=2), send.s(to="x")])
    assert [(job.task, job.queue, job.priority) for job in jobs] == [
        ("email:send", "default", 5),
        (add.name, "math", 0),
        ("email:send", "default", 0),
    ]
    assert jobs[1].payload == {"x": 1, "y": 2}


def test_a_signature_may_be_enqueued_again_and_makes_another_job(send: Sending, harbor: Harbor):
    signature = send.s("a@b.c")
    first, second = harbor.enqueue_many([signature, signature])
    assert first.id != second.id
    assert "email:send.s(to='a@b.c')" in repr(signature)


def test_a_signature_refuses_at_once_what_the_task_does_not_know(send: Sending):
    with pytest.raises(PayloadError, match="no parameter 'cc'"):
        send.s(cc="x")


def test_parameters_may_have_any_name(harbor: Harbor):
    task = harbor.task(name="t")(
        lambda args, self, kwargs, task, payload: [self, args, kwargs, task, payload]
    )
    given: Any = {"self": 1, "args": 2, "kwargs": 3, "task": 4, "payload": 5}
    assert task(**given) == [1, 2, 3, 4, 5]
    assert task.enqueue(**given).payload == given
    assert harbor.enqueue_many([task.s(**given)])[0].payload == given


def test_a_delay_and_a_run_at_make_a_scheduled_job(timed: Harbor, clock: ManualClock):
    later = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    at = timed.enqueue("t", run_at=later)
    after = timed.enqueue("t", delay=300)
    assert (at.state, at.run_at) == (after.state, after.run_at) == (State.SCHEDULED, later)
    clock.advance(300)
    assert at.refresh().state is State.READY
    assert timed.jobs.counts()["ready"] == 2


def test_a_run_at_in_the_past_and_a_delay_of_nothing_are_ready(harbor: Harbor):
    past = datetime.now(UTC) - timedelta(days=400)
    assert harbor.enqueue("t", run_at=past).state is State.READY
    assert harbor.enqueue("t", delay=0).state is State.READY


def test_times_are_kept_to_the_microsecond_whatever_their_zone(harbor: Harbor):
    zone = timezone(timedelta(hours=5, minutes=45))
    at = datetime(2031, 2, 3, 4, 5, 6, 789012, tzinfo=zone)
    job = harbor.enqueue("t", run_at=at, expires_at=at + timedelta(microseconds=1)).refresh()
    assert job.run_at == at
    assert job.expires_at == at + timedelta(microseconds=1)
    assert job.run_at.tzinfo is UTC


def test_expires_in_counts_from_the_stores_now(timed: Harbor, clock: ManualClock):
    """In each of the ways that store a job."""
    task = timed.task(name="t")(lambda: None)
    using = task.using(expires_in=timedelta(minutes=1))
    jobs = [
        timed.enqueue("elsewhere", expires_in=60),
        using.enqueue(),
        *using.enqueue_many([{}, {}]),
        *timed.enqueue_many([using.s(), using.s()]),
        *group(using.s(), using.s()).enqueue().jobs,
    ]
    due = from_micros(clock.now()) + timedelta(seconds=60)
    assert [job.expires_at for job in jobs] == [due] * len(jobs)
    assert [job.refresh().expires_at for job in jobs] == [due] * len(jobs)
    later = from_micros(clock.now()) + timedelta(days=1)
    assert using.using(expires_at=later).enqueue().expires_at == later
    assert task.using(expires_at=later).using(expires_in=60).enqueue().expires_at == due
    assert using.using(expires_in=None).enqueue().expires_at is None
    clock.advance(61)
    Worker(timed).drain_sync()
    assert {job.refresh().reason for job in jobs} == {"expired"}


def test_every_option_comes_back(harbor: Harbor):
    given = str(uuid.uuid4())
    job = harbor.enqueue(
        "t",
        {"x": 1},
        queue="vip",
        priority=-100,
        max_attempts=3,
        timeout=0.5,
        idempotency_key="order-42",
        delivery="at_most_once",
        correlation_id="trace ünï",
        tags=("b", "a", "b"),
        id=given.upper(),
    ).refresh()
    assert (job.id, job.queue, job.priority, job.max_attempts) == (given, "vip", -100, 3)
    assert (job.timeout, job.idempotency_key, job.delivery) == (0.5, "order-42", "at_most_once")
    assert (job.correlation_id, job.tags) == ("trace ünï", ("b", "a"))


def test_an_option_given_as_none_is_as_if_left_out(harbor: Harbor):
    options: dict[str, Any] = dict.fromkeys(
        ("queue", "run_at", "delay", "priority", "timeout", "idempotency_key", "tags", "id", "max_attempts")
    )
    job = harbor.enqueue("t", **options)
    assert (job.queue, job.state, job.priority, job.tags) == ("default", "ready", 0, ())


def test_a_payload_may_be_as_large_as_the_limit_and_no_larger(harbor: Harbor):
    fits = "x" * (1_048_576 - len('{"a":""}'))
    assert harbor.enqueue("t", {"a": fits}).refresh().payload["a"] == fits
    with pytest.raises(PayloadTooLarge, match="1,048,577 bytes.*the limit is 1,048,576"):
        harbor.enqueue("t", {"a": fits + "x"})
    assert harbor.jobs.counts()["ready"] == 1


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Person(pydantic.BaseModel):
    name: str
    born: datetime
    tags: set[str] = set()


def test_dataclasses_and_pydantic_models_are_parameters_and_come_to_the_handler(
    harbor: Harbor, work: Callable[[Harbor], None]
):
    seen: list[Any] = []

    @harbor.task
    def take(point: Point, person: Person) -> None:
        seen.append((point, person))

    ada = Person(name="Ada", born=datetime(1815, 12, 10, tzinfo=UTC), tags={"x"})
    job = take.enqueue(Point(1, 2), person=ada)
    assert job.payload == {
        "point": {"x": 1, "y": 2},
        "person": {"name": "Ada", "born": "1815-12-10T00:00:00Z", "tags": ["x"]},
    }
    work(harbor)
    assert seen == [(Point(1, 2), ada)]


def test_a_model_that_does_not_validate_is_refused_at_the_producer_by_name(harbor: Harbor):
    @harbor.task(name="take")
    def take(person: Person) -> None: ...

    with pytest.raises(PayloadError, match="not a valid Person: born"):
        harbor.enqueue("take", {"person": {"name": "Ada", "born": "yesterday"}})
    assert harbor.jobs.counts()["ready"] == 0


def test_text_of_every_kind_comes_back_as_it_went(harbor: Harbor):
    text = "Grüße 🚢 \u202e\ufeff\x7f\x01\n\t\\u0000 'quotes' \"double\" ${x} %s {} -- ; DROP TABLE"
    job = harbor.enqueue("t", {"text": text, text: 1}, queue="q'; --", tags=["t'\"%"]).refresh()
    assert job.payload == {"text": text, text: 1}
    assert [j.id for j in harbor.jobs.list(queue="q'; --", tag="t'\"%")] == [job.id]


def test_integers_beyond_every_machine_word_come_back_exactly(harbor: Harbor):
    big = 10**4000 + 7
    assert harbor.enqueue("t", {"n": big, "m": -(2**63) - 1}).refresh().payload == {
        "n": big,
        "m": -(2**63) - 1,
    }


def test_the_first_and_the_last_moment_of_all_can_be_kept(harbor: Harbor):
    for moment in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        assert harbor.enqueue("t", run_at=moment, expires_at=moment).refresh().run_at == moment
    assert len(harbor.queues.list()) == 1


class Names(enum.StrEnum):
    QUEUE = "mail"
    TASK = "email:send"


class Urgency(enum.IntEnum):
    HIGH = 9


def test_members_of_enumerations_stand_for_their_values(harbor: Harbor):
    job = harbor.enqueue(Names.TASK, queue=Names.QUEUE, priority=Urgency.HIGH, tags=[Names.QUEUE])
    assert (type(job.task), type(job.queue), type(job.priority)) == (str, str, int)
    assert (job.task, job.queue, job.priority, job.tags) == ("email:send", "mail", 9, ("mail",))
    assert job.refresh() == job


def test_twenty_thousand_go_in_at_once(harbor: Harbor):
    task = harbor.task(name="t")(lambda x: None)
    assert len(task.enqueue_many({"x": n} for n in range(20_000))) == 20_000
    assert harbor.jobs.counts()["ready"] == 20_000


async def test_a_hundred_tasks_enqueue_at_once(send: Sending, harbor: Harbor):
    jobs = await asyncio.gather(*(send.aenqueue(f"{n}") for n in range(100)))
    assert len({job.id for job in jobs}) == 100
    assert (await harbor.jobs.acounts())["ready"] == 100


@pytest.mark.parametrize("options", [{"id": uuid.uuid4()}, {"idempotency_key": "k"}])
def test_one_name_cannot_be_given_to_many_jobs(harbor: Harbor, options: dict[str, Any]):
    @harbor.task
    def work(n: int) -> None: ...

    with pytest.raises(ConfigurationError, match="names one job"):
        work.using(**options).enqueue_many([{"n": 1}, {"n": 2}])
    assert harbor.jobs.counts()["ready"] == 0
    assert len(work.using(**options).enqueue_many([{"n": 1}])) == 1


def test_a_duration_may_be_a_timedelta(harbor: Harbor):
    job = harbor.enqueue("t", delay=timedelta(minutes=5), timeout=timedelta(seconds=1.5))
    assert job.run_at - job.enqueued_at == timedelta(minutes=5)
    assert job.timeout == 1.5
