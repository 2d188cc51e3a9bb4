"""Every reason of `why`, on every store: what a person reads, and the facts behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskharbor import Context, Harbor, JobNotFound, RetryPolicy, Worker, chain, group
from taskharbor.clock import MICROS_PER_SECOND, ManualClock
from taskharbor.drivers.base import (
    Claim,
    ClaimRequest,
    Driver,
    Extension,
    SettleAnswer,
    Transition,
    WorkerRecord,
)
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.reading import PRESENCE_LASTS
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.records import AttemptStatus, State
from taskharbor.rules.rollups import MINUTE, begin_of
from taskharbor.rules.why_facts import Why, WhyCode
from taskharbor.views.why import WhyDocument
from tests.drivers.core_only import offering
from tests.postgres import store

START = datetime(2026, 1, 31, 8, tzinfo=UTC)
SECOND = MICROS_PER_SECOND
LEASE = 30 * SECOND
STEADY = RetryPolicy(max_attempts=5, initial=60, maximum=60, multiplier=1, jitter=None)
FRESH = " (by records up to 0 s old; they last 50 s)"
IN_TURN = f": a worker takes it in its turn{FRESH}"
RECORDS = r"\(by records up to \d+ s old; they last 50 s\)"
_serial = count(1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def driver(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "postgres":
        with store.fresh(clock) as postgres:
            yield postgres
    elif request.param == "sqlite":
        yield SQLiteDriver(str(tmp_path / "harbor.db"), synchronous="NORMAL", clock=clock)
    else:
        yield MemoryDriver(clock)


@pytest.fixture
async def harbor(driver: Driver) -> AsyncIterator[Harbor]:
    await driver.migrate()
    async with Harbor(driver=driver) as harbor:
        harbor.task(name="echo")(echo)
        harbor.task(name="fail")(fail)
        yield harbor


def echo(message: str) -> str:
    return message


def fail(message: str) -> None:
    raise RuntimeError(message)


async def sign_on(harbor: Harbor, name: str = "w", slots: int = 2, queues: Any = None, **more: Any) -> None:
    """Record a worker, as its presence does."""
    record = WorkerRecord(name, "host", 1, slots, 0, queues, lease=LEASE, **more)
    await WORKERS.put(harbor.driver, [record], PRESENCE_LASTS)


async def claim(harbor: Harbor, limit: int = 10, worker: str = "w", **more: Any) -> tuple[str, Claim]:
    """Claim as a worker does."""
    token = f"{worker}/{next(_serial)}"
    return token, await harbor.driver.claim(ClaimRequest(token, LEASE, limit, once_limit=limit, **more))


async def begin(harbor: Harbor, token: str, *jobs: str) -> None:
    """Report these as running since now, as a heartbeat does."""
    now = await harbor.driver.now()
    await harbor.driver.extend([Extension(token, LEASE, tuple((job, now) for job in jobs))])


def seconds(count: float) -> datetime:
    """An instant so far from the beginning."""
    return START + timedelta(seconds=count)


def check(why: Why, code: WhyCode, sentence: str) -> None:
    assert (why.code, str(why)) == (code, sentence)


# -- finished --------------------------------------------------------------------------------------


async def test_succeeded_job(harbor: Harbor, clock: ManualClock) -> None:
    job = await harbor.aenqueue("echo", {"message": "hi"})
    await Worker(harbor).drain()
    clock.advance(90)
    why = await job.awhy()
    check(why, WhyCode.FINISHED, "It succeeded at 2026-01-31T08:00:00Z (90 s ago), in attempt 1")
    assert (why.facts.state, why.facts.finished_at, why.facts.at) == ("succeeded", START, seconds(90))


async def test_dead_job_says_its_reason_and_error_and_how_to_run_it_again(harbor: Harbor) -> None:
    job = await harbor.aenqueue("fail", {"message": "no route\nto host"}, max_attempts=1)
    await Worker(harbor).drain()
    why = await harbor.jobs.awhy(job.id)
    check(
        why,
        WhyCode.FINISHED,
        "It has been dead since 2026-01-31T08:00:00Z (now): it failed 1 time, as often as it may, the last error is "
        f"RuntimeError: no route; run it again with taskharbor dlq requeue {job.id}",
    )
    assert (why.facts.reason, why.facts.error, why.facts.attempts) == (
        "exhausted", "RuntimeError: no route\nto host", 1,
    )  # fmt: skip


async def test_cancelled_job(harbor: Harbor) -> None:
    job = await harbor.aenqueue("echo", {"message": "hi"})
    await harbor.jobs.acancel(job.id)
    check(
        await job.awhy(),
        WhyCode.FINISHED,
        "It was cancelled at 2026-01-31T08:00:00Z (now): a caller or an operator cancelled it; "
        f"run it again with taskharbor job retry {job.id}",
    )


# -- scheduled and waiting -------------------------------------------------------------------------


async def test_job_that_is_not_due(harbor: Harbor) -> None:
    job = await harbor.aenqueue("send", run_at=seconds(3 * 86_400))
    why = await job.awhy()
    check(why, WhyCode.NOT_DUE, "It is not due until 2026-02-03T08:00:00Z (in 3 d)")
    assert why.facts.until == job.run_at


async def test_next_run_of_a_schedule_is_not_due(harbor: Harbor) -> None:
    schedule = await harbor.schedules.aadd("nightly", "echo", {"message": "x"}, schedule="0 3 * * *")
    why = await harbor.jobs.awhy(schedule.id)
    check(
        why,
        WhyCode.NOT_DUE,
        "The next run of its schedule nightly is not due until 2026-02-01T03:00:00Z (in 19 h)",
    )
    assert why.facts.schedule == "nightly"


async def test_schedule_is_paused(harbor: Harbor) -> None:
    schedule = await harbor.schedules.aadd("nightly", "echo", {"message": "x"}, schedule="0 3 * * *")
    await harbor.schedules.apause("nightly")
    check(
        await harbor.jobs.awhy(schedule.id),
        WhyCode.SCHEDULE_PAUSED,
        "Its schedule nightly is paused: resume it with taskharbor schedule resume nightly",
    )


async def test_retry_backs_off(harbor: Harbor, clock: ManualClock) -> None:
    job = await harbor.aenqueue("fail", {"message": "no route"}, max_attempts=5)
    for _ in range(2):
        await Worker(harbor, retry=STEADY).drain()
        clock.advance(60)
    await Worker(harbor, retry=STEADY).drain()
    clock.advance(30)
    why = await job.awhy()
    check(
        why,
        WhyCode.RETRY,
        "Retry 3 of 4 backs off until 2026-01-31T08:03:00Z (in 30 s), after this error: RuntimeError: no route; "
        f"try it now with taskharbor job run-now {job.id}",
    )
    assert (why.facts.attempts, why.facts.max_attempts, why.facts.until) == (3, 5, seconds(180))
    assert why.facts.error == "RuntimeError: no route"


async def test_job_that_was_put_off_by_an_operator_after_a_requeue_does_not_back_off(harbor: Harbor) -> None:
    job = await harbor.aenqueue("fail", {"message": "x"}, max_attempts=1)
    await Worker(harbor).drain()
    await harbor.jobs.aretry(job.id, run_at=seconds(60))
    check(await job.awhy(), WhyCode.NOT_DUE, "It is not due until 2026-01-31T08:01:00Z (in 60 s)")


async def test_job_is_asleep(harbor: Harbor) -> None:
    @harbor.task(name="nap")
    async def nap(ctx: Context) -> None:
        await ctx.sleep("siesta", 7_200)

    job = await nap.aenqueue()
    await Worker(harbor).drain()
    why = await job.awhy()
    check(
        why,
        WhyCode.ASLEEP,
        "It is asleep until 2026-01-31T10:00:00Z (in 2 h), in its step siesta: then its handler goes on with what its "
        "steps stored",
    )
    assert why.facts.until == seconds(7_200)


async def test_job_whose_task_no_worker_knew_is_put_back(harbor: Harbor, clock: ManualClock) -> None:
    job = await harbor.aenqueue("send")
    await Worker(harbor, name="w").drain()
    clock.advance(1)
    await Worker(harbor, name="w").drain()
    why = await job.awhy()
    check(
        why,
        WhyCode.PUT_BACK,
        "Worker w does not know its task send, so it is put back until 2026-01-31T08:00:03Z (in 2 s), and dead if that "
        "is still so after 2026-01-31T08:05:00Z (in 5 min): start a worker that knows it",
    )
    assert (why.facts.reason, why.facts.until, why.facts.dead_at) == (
        "unknown_task", seconds(3), seconds(300),
    )  # fmt: skip


async def test_job_whose_payload_fits_no_handler_is_put_back(harbor: Harbor) -> None:
    job = await harbor.aenqueue("send", {"count": "many"})

    @harbor.task(name="send")
    def send(count: int) -> None: ...

    await Worker(harbor).drain()
    why = await job.awhy()
    assert why.code == WhyCode.PUT_BACK
    assert str(why).startswith("Its payload does not fit the handler of send (")
    assert str(why).endswith(
        "so it is put back until 2026-01-31T08:00:01Z (in 1 s), and dead if that is still so after "
        "2026-01-31T08:05:00Z (in 5 min): change the payload with taskharbor job update, or deploy a handler that "
        "takes it"
    )
    assert (why.facts.reason, why.facts.dead_at) == ("invalid_payload", seconds(300))


async def test_job_that_a_bug_kept_from_being_settled_is_put_back(harbor: Harbor) -> None:
    job = await harbor.aenqueue("send")
    token, _ = await claim(harbor)
    await settle(
        harbor, token, job.id, AttemptStatus.RELEASED, detail="unsettleable", delay=SECOND, error="a bug"
    )
    check(
        await job.awhy(),
        WhyCode.PUT_BACK,
        "A bug in TaskHarbor kept its latest attempt from being settled, so it is put back until 2026-01-31T08:00:01Z "
        "(in 1 s), and dead with the 20th time (this was number 1): a bug",
    )


async def settle(harbor: Harbor, token: str, job_id: str, status: AttemptStatus, **more: Any) -> None:
    [record] = await harbor.driver.get([job_id])
    assert record is not None
    change = Transition(token, job_id, record.number, status, State.READY, attempts=record.attempts, **more)
    [settled] = await harbor.driver.settle([change])
    assert settled.answer is SettleAnswer.DONE


async def test_job_waits_for_jobs(harbor: Harbor) -> None:
    @harbor.task(name="part")
    def part() -> None: ...

    workflow = await harbor.workflows.aenqueue(chain(group(part.s() for _ in range(5)), part.si()))
    parts = [job async for job in _members(harbor, workflow.id)]
    last = max(parts, key=lambda job: job.id)
    members = sorted(job.id for job in parts if job.id != last.id)
    why = await last.awhy()
    named = ", ".join(f"{each} (part, ready)" for each in members[:3])
    check(why, WhyCode.WAITS_FOR_JOBS, f"It waits for 5 jobs: {named} and 2 more")
    assert why.facts.waits_for_count == 5
    assert [each.id for each in why.facts.waits_for or ()] == members


async def _members(harbor: Harbor, workflow: str) -> AsyncIterator[Any]:
    for job in await harbor.jobs.alist(workflow=workflow):
        yield job


async def test_job_that_waits_for_a_dead_job_names_that_first(harbor: Harbor) -> None:
    part = harbor.task(name="part", max_attempts=1)(fail)
    workflow = await harbor.workflows.aenqueue(chain(part.si("x"), part.si("x")))
    await Worker(harbor).drain()
    first, last = sorted([job async for job in _members(harbor, workflow.id)], key=lambda job: job.id)
    why = await last.awhy()
    check(
        why,
        WhyCode.WAITS_FOR_JOBS,
        f"It waits for 1 job: {first.id} (part, dead); one is dead: run it again with taskharbor job retry {first.id}",
    )


# -- ready -----------------------------------------------------------------------------------------


async def test_queue_is_paused(harbor: Harbor, clock: ManualClock) -> None:
    job = await harbor.aenqueue("send", queue="mail")
    with harbor.acting_as("ada"):
        await harbor.queues.apause("mail")
    await sign_on(harbor)
    clock.advance(7_200)
    why = await job.awhy()
    check(
        why,
        WhyCode.QUEUE_PAUSED,
        "Its queue mail is paused, by ada since 2026-01-31T08:00:00Z (2 h ago): resume it with taskharbor queue resume "
        "mail",
    )
    assert (why.facts.by, why.facts.since) == ("ada", START)


async def test_commands_in_sentences_quote_names_for_the_shell(harbor: Harbor) -> None:
    name = "x; touch pwned"
    unserved = await harbor.aenqueue("send", queue=name)
    await sign_on(harbor, queues=("other",))
    assert (await unserved.awhy()).sentence.endswith(f"--queues '{name}'")
    await harbor.queues.apause(name)
    assert (await unserved.awhy()).sentence.endswith(f"taskharbor queue resume '{name}'")
    held = await harbor.aenqueue(name, queue="other")
    await harbor.holds.ahold(task=name)
    assert (await held.awhy()).sentence.endswith(f"taskharbor task release '{name}'")
    schedule = await harbor.schedules.aadd(name, "echo", {"message": "x"}, schedule="0 3 * * *")
    await harbor.schedules.apause(name)
    assert (await harbor.jobs.awhy(schedule.id)).sentence.endswith(f"taskharbor schedule resume '{name}'")


@pytest.mark.parametrize(("kind", "name", "option"), [("task", "send", ""), ("tag", "bulk", " --tag")])
async def test_task_or_tag_is_held(
    harbor: Harbor, clock: ManualClock, kind: str, name: str, option: str
) -> None:
    job = await harbor.aenqueue("send", tags=["bulk"])
    with harbor.acting_as("ada"):
        await harbor.holds.ahold(**{kind: name})
    await sign_on(harbor)
    clock.advance(30)
    why = await job.awhy()
    check(
        why,
        WhyCode.HELD,
        f"Its {kind} {name} is held, by ada since 2026-01-31T08:00:00Z (30 s ago): release it with taskharbor task "
        f"release {name}{option}",
    )
    held = (why.facts.held_task, why.facts.held_tag)
    assert (held, why.facts.by) == (("send", None) if kind == "task" else (None, "bulk"), "ada")
    await harbor.holds.arelease(**{kind: name})
    assert (await job.awhy()).code == WhyCode.IN_LINE


async def test_no_worker_serves_the_queue(harbor: Harbor, clock: ManualClock) -> None:
    job = await harbor.aenqueue("send", queue="mail")
    todo = ": start one with taskharbor worker -A … --queues mail"
    check(
        await job.awhy(),
        WhyCode.NO_WORKER,
        f"No worker serves the queue mail (by the workers' records; they last 50 s){todo}",
    )
    await sign_on(harbor, queues=("bulk",))
    clock.advance(7)
    why = await job.awhy()
    check(
        why,
        WhyCode.NO_WORKER,
        f"No worker serves the queue mail, and 1 worker serves others (by records up to 7 s old; they last 50 s){todo}",
    )
    assert (why.facts.workers, why.facts.records_age_seconds) == (0, 7.0)


async def test_workers_serve_the_queue_but_none_knows_the_task(harbor: Harbor, clock: ManualClock) -> None:
    job = await harbor.aenqueue("send", queue="mail")
    await sign_on(harbor, tasks=("sort",))
    await sign_on(harbor, "v", tasks=())
    await sign_on(harbor, "u", queues=("bulk",), tasks=("send",))
    clock.advance(3)
    why = await job.awhy()
    check(
        why,
        WhyCode.UNKNOWN_TASK,
        "2 workers serve the queue mail, but none of them knows the task send (by records up to 3 s old; they last "
        "50 s): start one whose application declares it",
    )
    assert why.facts.workers == 2
    await sign_on(harbor, "t", tasks=("send",))
    assert (await job.awhy()).code == WhyCode.IN_LINE


async def test_suspect_waits_to_run_alone(harbor: Harbor) -> None:
    jobs = [await harbor.aenqueue("send") for _ in range(2)]
    token, _ = await claim(harbor)
    for job in jobs:
        await settle(harbor, token, job.id, AttemptStatus.LOST, suspect=True)
    await sign_on(harbor)
    suspect = (
        "It is a suspect: it was lost or cut off together with other jobs, twice in a row, so it waits for a worker "
        "that runs it alone"
    )
    check(await jobs[0].awhy(), WhyCode.SUSPECT, suspect)
    check(await jobs[1].awhy(), WhyCode.SUSPECT, f"{suspect}, after 1 suspect before it")


async def test_all_slots_are_busy(harbor: Harbor, clock: ManualClock) -> None:
    await sign_on(harbor)
    await sign_on(harbor, "v", slots=1, queues=("default",))
    for name, limit in (("w", 2), ("v", 1)):
        running = [(await harbor.aenqueue("send")).id for _ in range(limit)]
        token, _ = await claim(harbor, limit, name)
        await begin(harbor, token, *running)
    jobs = [await harbor.aenqueue("send") for _ in range(3)]
    clock.advance(5)
    await sign_on(harbor)
    busy = (
        "All 3 slots of the 2 workers that serve it are busy (by records up to 5 s old; they last 50 s), and "
    )
    todo = ": wait, or start another worker"
    check(await jobs[0].awhy(), WhyCode.SLOTS_BUSY, f"{busy}it is the next one{todo}")
    why = await jobs[2].awhy()
    check(why, WhyCode.SLOTS_BUSY, f"{busy}2 jobs stand before it{todo}")
    assert (why.facts.workers, why.facts.slots, why.facts.running, why.facts.claimed, why.facts.before) == (
        2, 3, 3, 3, 2,
    )  # fmt: skip


async def test_jobs_stand_before_it_for_some_time(harbor: Harbor, clock: ManualClock) -> None:
    """By the rate of the last minutes, if workers have counted any."""
    clock.advance(40)
    await sign_on(harbor)
    for _ in range(30):
        await harbor.aenqueue("send", priority=1)
    job = await harbor.aenqueue("send", queue="mail")
    check(await job.awhy(), WhyCode.IN_LINE, f"30 jobs stand before it{IN_TURN}")
    begun = Rollup(begin_of(clock.now(), Period.MINUTE) - MINUTE, "default", "send", Figures(started=200))
    await Rollups.of(harbor.driver).append_rollups([begun])
    why = await job.awhy()
    check(
        why,
        WhyCode.IN_LINE,
        f"30 jobs stand before it, at the present rate of 2 a second about 15 s{FRESH}",
    )  # in 100 s
    facts = why.facts
    assert (facts.before, facts.per_second, facts.seconds, facts.records_age_seconds) == (30, 2.0, 15.0, 0.0)


async def test_waiting_workflow_is_shown_as_a_document(harbor: Harbor) -> None:
    """The facts of a job that waits are documents of their own."""
    part = harbor.task(name="part")(echo)
    workflow = await harbor.workflows.aenqueue(chain(part.si("x"), part.si("x")))
    [first, last] = sorted([job async for job in _members(harbor, workflow.id)], key=lambda job: job.id)
    document = msgspec.to_builtins(WhyDocument.of(await last.awhy(), id=last.id))
    assert document["facts"]["waitsFor"] == [{"id": first.id, "task": "part", "state": "ready"}]


async def test_line_is_that_of_the_worker_which_reaches_the_job_first(harbor: Harbor) -> None:
    """A worker takes its jobs in one line over its queues, so fewer queues are a shorter line."""
    for queue in ("bulk", "bulk", "mail", "other"):
        await harbor.aenqueue("send", queue=queue)
    job = await harbor.aenqueue("send", queue="mail")
    await sign_on(harbor)
    assert (await job.awhy()).facts.before == 4
    await sign_on(harbor, "v", queues=("bulk", "mail"))
    assert (await job.awhy()).facts.before == 3
    await sign_on(harbor, "u", queues=("mail",))
    check(await job.awhy(), WhyCode.IN_LINE, f"1 job stands before it{IN_TURN}")


async def test_more_jobs_than_are_counted_stand_before_it(
    harbor: Harbor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("taskharbor.rules.why", "taskharbor.client.why"):
        monkeypatch.setattr(f"{module}.BEFORE_MAX", 3)
    await sign_on(harbor)
    jobs = [await harbor.aenqueue("send") for _ in range(5)]
    why = await jobs[-1].awhy()
    check(why, WhyCode.IN_LINE, f"More than 3 jobs stand before it{IN_TURN}")
    assert why.facts.before == 4


async def test_no_job_stands_before_it(harbor: Harbor) -> None:
    await sign_on(harbor)
    job = await harbor.aenqueue("send")
    told = f"No job stands before it: a worker takes it as soon as it looks{FRESH}"
    check(await job.awhy(), WhyCode.IN_LINE, told)


# -- running ---------------------------------------------------------------------------------------


async def test_job_is_claimed_and_then_running(harbor: Harbor, clock: ManualClock) -> None:
    await sign_on(harbor)
    job = await harbor.aenqueue("send")
    token, _ = await claim(harbor)
    why = await job.awhy()
    check(
        why,
        WhyCode.CLAIMED,
        "Worker w has claimed it and is about to begin it, or has begun it: workers report what runs with each "
        "heartbeat, every 10 s",
    )
    assert (why.facts.worker, why.facts.since) == ("w", None)
    await begin(harbor, token, job.id)
    clock.advance(10)
    why = await job.awhy()
    check(why, WhyCode.RUNNING, "It is running on worker w since 2026-01-31T08:00:00Z (10 s ago)")
    assert (why.facts.worker, why.facts.since) == ("w", START)


async def test_running_job_was_asked_to_cancel(harbor: Harbor) -> None:
    await sign_on(harbor)
    job = await harbor.aenqueue("send")
    token, _ = await claim(harbor)
    await begin(harbor, token, job.id)
    await harbor.jobs.acancel(job.id)
    check(
        await job.awhy(),
        WhyCode.CANCEL_REQUESTED,
        "It was asked to cancel and has not ended yet on worker w since 2026-01-31T08:00:00Z (now): a handler that is "
        "async is interrupted within a second, any other has to look at ctx.stop_requested itself",
    )


async def test_worker_that_missed_its_heartbeats_is_dead_or_cut_off(
    harbor: Harbor, clock: ManualClock
) -> None:
    await sign_on(harbor)
    job = await harbor.aenqueue("send")
    await claim(harbor)
    clock.advance(20)
    why = await job.awhy()
    check(
        why,
        WhyCode.WORKER_GONE,
        "Its worker w is dead or cut off, since it should have extended its lease by 2026-01-31T08:00:10Z (10 s ago) "
        "(by records up to 20 s old; they last 50 s): the lease expires at 2026-01-31T08:00:30Z (in 10 s), then "
        "another worker may run it again",
    )
    assert (why.facts.worker, why.facts.until) == ("w", seconds(30))


async def test_worker_that_has_not_signed_on_is_most_likely_dead(harbor: Harbor) -> None:
    job = await harbor.aenqueue("send", delivery="at_most_once")
    await claim(harbor)
    check(
        await job.awhy(),
        WhyCode.WORKER_GONE,
        "Its worker w has not signed on, as a worker does within a second, so it is most likely dead (by the workers' "
        "records; they last 50 s): the lease expires at 2026-01-31T08:00:30Z (in 30 s), then it is dead, reason lost, "
        "unless it is known not to have begun: it may run at most once",
    )


async def test_lease_has_expired(harbor: Harbor, clock: ManualClock) -> None:
    job = await harbor.aenqueue("send")
    await claim(harbor)
    await harbor.jobs.acancel(job.id)
    clock.advance(30)
    lost = "Its worker w died or was cut off: the lease expired at 2026-01-31T08:00:30Z (now), and "
    check(
        await job.awhy(),
        WhyCode.LEASE_EXPIRED,
        f"{lost}no worker is there to collect it (by the workers' records; they last 50 s): start one; then it is "
        "cancelled, as was asked for",
    )
    await sign_on(harbor, "v")
    check(
        await job.awhy(),
        WhyCode.LEASE_EXPIRED,
        f"{lost}a worker collects it within seconds; then it is cancelled, as was asked for",
    )


# -- with real workers -----------------------------------------------------------------------------


async def test_worker_signs_on_with_what_why_needs(harbor: Harbor, clock: ManualClock) -> None:
    """Its queues, its slots and the time of its leases."""
    job = await harbor.aenqueue("send", queue="mail")
    async with Worker(harbor, name="w", queues=["bulk"], lease_seconds=60, concurrency=3):
        while not (records := await WORKERS.all(harbor.driver)):
            await clock.jump(1.0)
        [record] = records
        assert (record.queues, record.slots, record.lease) == (("bulk",), 3, 60 * SECOND)
        assert (await job.awhy()).code == WhyCode.NO_WORKER


# -- how it is asked -------------------------------------------------------------------------------


async def test_unknown_job_has_no_reason(harbor: Harbor) -> None:
    with pytest.raises(JobNotFound):
        await harbor.jobs.awhy("019b76da-a800-7000-8000-000000000001")


def test_synchronous_form() -> None:
    with Harbor("memory://") as harbor:
        job = harbor.enqueue("send", queue="mail")
        assert job.why().code == harbor.jobs.why(job.id).code == WhyCode.NO_WORKER
        assert str(job.why()) == job.why().sentence


async def test_store_with_the_core_alone_says_less(clock: ManualClock) -> None:
    """It knows neither workers nor places; what it does not know it does not claim."""
    harbor = Harbor(driver=offering()(clock))
    job = await harbor.aenqueue("send")
    check(await job.awhy(), WhyCode.IN_LINE, "It is ready, and a worker takes it in its turn")
    token, _ = await claim(harbor)
    assert (await job.awhy()).code == WhyCode.CLAIMED
    await begin(harbor, token, job.id)
    assert (await job.awhy()).code == WhyCode.RUNNING
    await harbor.queues.apause("mail")
    paused = await harbor.aenqueue("send", queue="mail")
    assert (await paused.awhy()).code == WhyCode.QUEUE_PAUSED
