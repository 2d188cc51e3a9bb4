"""A bug of TaskHarbor's own, wherever it strikes: it is logged as one, it costs no other job anything, and it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from taskharbor import Worker
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import ClaimRequest, Transition
from taskharbor.errors import PayloadError
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.rescue import PUT_OFF_MAX
from taskharbor.rules import policy
from taskharbor.rules.policy import UNSETTLED_DELAY_MAX_SECONDS, UNSETTLED_MAX
from taskharbor.telemetry.attempts import Reporter
from taskharbor.worker.pipeline import committer
from tests.worker import isolated
from tests.worker.apart import apart
from tests.worker.stage import attempts_of, soon, statuses, the_job, until, until_state, working


def bug_with(*jobs: Any, unless: Callable[[Transition], bool] = lambda each: False) -> Callable[..., Any]:
    """A store in which settling one of these jobs runs into a bug."""
    ids = {job.id for job in jobs}

    def settle(transitions: Sequence[Transition]) -> Exception | None:
        struck = any(each.job_id in ids and not unless(each) for each in transitions)
        return KeyError("a bug") if struck else None

    return settle


def is_release(transition: Transition) -> bool:
    return transition.detail == Reason.UNSETTLEABLE


async def test_a_job_that_a_bug_keeps_from_being_settled_is_released_and_its_neighbours_succeed(
    faulty, store, clock, caplog
):
    begun, release = [], asyncio.Event()

    @faulty.task
    async def work(n: int) -> int:
        begun.append(n)
        await release.wait()
        return n

    jobs = await work.aenqueue_many([{"n": n} for n in range(16)])
    bad = {3, 11}
    store.fail["settle"] = bug_with(*(jobs[n] for n in bad), unless=is_release)
    async with working(faulty):
        await until(lambda: len(begun) == 16)
        release.set()
        for n in sorted(set(range(16)) - bad):
            assert await soon(jobs[n].aresult()) == n
        for n in bad:
            found = await until_state(jobs[n], State.SCHEDULED)
            assert found.attempts == 0  # nothing that the job did
            assert "a bug in TaskHarbor" in (found.error or "")
            assert await statuses(jobs[n]) == ["released"]
        del store.fail["settle"]
        await clock.jump(1)
        for n in bad:
            assert await soon(jobs[n].aresult()) == n
    told = [record for record in caplog.records if "has a bug" in record.getMessage()]
    assert len(told) == 2
    assert all("Traceback" in record.exc_text and "KeyError: 'a bug'" in record.exc_text for record in told)
    assert all(record.levelno == logging.ERROR for record in told)


async def test_a_job_that_can_never_be_settled_is_released_with_growing_delays_then_dead(
    faulty, store, clock
):
    runs = []

    @faulty.task
    async def work() -> None:
        runs.append(clock.monotonic())

    job = await work.aenqueue()
    store.fail["settle"] = bug_with(job, unless=is_release)
    delays = [min(2.0**n, UNSETTLED_DELAY_MAX_SECONDS) for n in range(UNSETTLED_MAX - 1)]
    for delay in delays:
        await soon(Worker(faulty).drain())
        assert (await the_job(faulty, job)).state is State.SCHEDULED
        clock.advance(delay - 0.001)
        await soon(Worker(faulty).drain())
        clock.advance(0.001)
    await soon(Worker(faulty).drain())
    found = await the_job(faulty, job)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.UNSETTLEABLE, 0)
    assert "KeyError" in (found.error or "")
    assert len(runs) == UNSETTLED_MAX
    assert await statuses(job) == ["released"] * (UNSETTLED_MAX - 1) + ["failed"]
    assert [after - before for before, after in itertools.pairwise(runs)] == pytest.approx(delays)


@pytest.mark.parametrize("told_by", ["the job", "the declaration"])
async def test_an_at_most_once_job_that_has_begun_is_not_begun_again_because_of_a_bug(
    faulty, store, clock, told_by
):
    runs = []

    @faulty.task(delivery="at_most_once" if told_by == "the declaration" else None)
    async def work() -> None:
        runs.append(1)

    if told_by == "the job":
        job = await work.using(delivery="at_most_once").aenqueue()
    else:
        job = await faulty.aenqueue(work.name)  # by name: only the worker knows
    store.fail["settle"] = bug_with(job, unless=is_release)
    async with working(faulty):
        await clock.jump(1)
        found = await until_state(job, State.DEAD)
    assert (found.reason, runs) == (Reason.UNSETTLEABLE, [1])


async def test_what_can_not_even_be_released_is_left_to_its_lease_and_ends_as_poison(faulty, store, clock):
    """It is lost each time, with a worker that lives but could not settle it: such a loss counts."""
    runs = []

    @faulty.task
    async def work() -> None:
        runs.append(1)

    job = await work.aenqueue()
    store.fail["settle"] = bug_with(job, unless=lambda each: each.status is AttemptStatus.LOST)
    async with working(faulty, lease_seconds=3, max_losses=2):
        await soon((good := await work.aenqueue()).aresult())
        for _ in range(8):
            await clock.jump(5)
        found = await until_state(job, State.DEAD)
    assert found.reason is Reason.POISON
    assert len(runs) == 5  # the good one; twice with others, then alone as often as is allowed
    assert not any(row.worker_survived for row in await attempts_of(job))
    assert await statuses(good) == ["succeeded"]


async def test_what_a_store_refuses_with_nothing_in_it_is_released_as_well(faulty, store, clock):
    """There is no content any more that could be to blame."""

    @faulty.task
    async def work() -> str:
        return "strange"

    job = await work.aenqueue()
    refused = bug_with(job, unless=is_release)
    store.fail["settle"] = lambda transitions: PayloadError("no") if refused(transitions) else None
    async with working(faulty):
        found = await until_state(job, State.SCHEDULED)
        assert await statuses(job) == ["released"]
        assert found.reason is None


async def test_a_bug_in_deciding_about_one_outcome_costs_the_others_nothing(faulty, clock, monkeypatch):
    decide = policy.settle_outcome
    struck: list[str] = []

    def decide_or_fail(token: str, job: Any, *rest: Any, **more: Any) -> Any:
        if '"n":1' in job.payload and not struck:
            struck.append(job.id)
            raise KeyError("a bug")
        return decide(token, job, *rest, **more)

    monkeypatch.setattr(committer, "settle_outcome", decide_or_fail)

    @faulty.task(max_attempts=1)
    async def fail(n: int) -> None:
        raise ValueError(n)

    jobs = await fail.aenqueue_many([{"n": n} for n in range(3)])
    async with working(faulty):
        for n in (0, 2):
            await until_state(jobs[n], State.DEAD)
        assert (await until_state(jobs[1], State.SCHEDULED)).attempts == 0
        await clock.jump(1)
        assert (await until_state(jobs[1], State.DEAD)).reason is Reason.EXHAUSTED


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_a_bug_in_reading_how_a_handler_ended_costs_an_attempt_and_no_slot(
    memory, monkeypatch, caplog, kind
):
    def bug(*_: object) -> None:
        raise KeyError("a bug")

    async def add_async(x: int) -> int:
        await asyncio.sleep(0)
        return x + 2

    def add(x: int) -> int:
        return x + 2

    if kind == "process":
        task = apart(memory, isolated.add)
    else:
        task = memory.task(name="add", max_attempts=1)(add if kind == "thread" else add_async)
    job = await task.aenqueue(1)
    async with working(memory, concurrency=1):
        with monkeypatch.context() as patched:
            for reader in ("outcome_of_return", "of_remote"):
                patched.setattr(f"taskharbor.worker.pipeline.executor.outcomes.{reader}", bug)
            await until_state(job, State.DEAD)
        assert await soon((await task.aenqueue(2)).aresult()) == 4
    assert [attempt.error for attempt in await attempts_of(job)] == ["KeyError: 'a bug'"]
    # It was executed, and the log does not say otherwise.
    assert f"Job {job.id} failed by an error that its handler did not raise" in caplog.text


@pytest.mark.parametrize("part", ["settled", "dependants"])
async def test_a_bug_in_telling_what_was_settled_neither_ends_the_worker_nor_loses_the_batch(
    faulty, monkeypatch, caplog, part
):
    def broken(*_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Reporter, part, broken)
    faulty.on("succeeded")(lambda _: None)  # without a listener nothing is reported of a success

    @faulty.task
    async def work(n: int) -> int:
        return n

    jobs = await work.aenqueue_many([{"n": n} for n in range(5)])
    async with working(faulty):
        assert [await soon(job.aresult()) for job in jobs] == list(range(5))
        assert await soon((await work.aenqueue(7)).aresult()) == 7
    assert any("has a bug" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("struck", ["settle", "schedule"])
async def test_a_recurring_job_survives_what_is_unsettleable(faulty, store, clock, monkeypatch, struck):
    """The occurrence ends, and the next one is set: by its schedule, or a little later if the bug is in there."""
    runs = []

    @faulty.task(schedule="@every 1h", name="hourly")
    async def hourly() -> None:
        runs.append(clock.monotonic())

    await faulty.schedules._reconcile()
    job = (await faulty.schedules.aget("hourly")).id
    if struck == "settle":
        store.fail["settle"] = lambda transitions: (
            KeyError("a bug") if any(not is_release(each) for each in transitions) else None
        )
    else:

        def broken_arming(*_: Any, **__: Any) -> Transition:
            raise KeyError("a bug")

        monkeypatch.setattr("taskharbor.worker.pipeline.recurring.armed", broken_arming)
    clock.advance(3600)
    for _ in range(UNSETTLED_MAX):
        await soon(Worker(faulty).drain())
        clock.advance(UNSETTLED_DELAY_MAX_SECONDS)
    assert len(runs) >= UNSETTLED_MAX
    rows = (await faulty.driver.history(job, 100))[-UNSETTLED_MAX:]  # of the first occurrence
    assert [row.status for row in rows] == [AttemptStatus.FAILED] + [AttemptStatus.RELEASED] * (
        UNSETTLED_MAX - 1
    )
    assert {row.detail for row in rows} == {Reason.UNSETTLEABLE}
    [record] = await faulty.driver.get([job])
    assert record is not None
    assert record.state in (State.SCHEDULED, State.READY)


# -- in what every worker does for all -------------------------------------------------------------


async def lost(faulty: Any, clock: Any, jobs: int) -> None:
    claim = await faulty.driver.claim(ClaimRequest("gone/1", 1_000_000, jobs))
    assert len(claim.jobs) == jobs
    clock.advance(1)


@pytest.mark.parametrize("verb", ["settle", "history"])
async def test_a_lost_job_that_a_bug_keeps_in_its_lease_holds_up_no_other_job_and_is_tried_ever_less_often(
    faulty, store, clock, verb
):
    @faulty.task
    async def work(n: int) -> int:
        return n

    jobs = await work.aenqueue_many([{"n": n} for n in range(5)])
    if verb == "history":  # read for a job that has been attempted before
        claim = await store.claim(ClaimRequest("before/1", 1_000_000, 5))
        await store.settle(
            [Transition("before/1", each.id, 1, AttemptStatus.RELEASED, State.READY) for each in claim.jobs]
        )
    await lost(faulty, clock, 5)
    tries = []

    def strike(about: Any) -> Exception | None:
        if verb == "history":
            struck = about == jobs[2].id
        else:
            struck = any(each.job_id == jobs[2].id for each in about)
        if struck and (verb == "history" or len(about) == 1):
            tries.append(clock.monotonic())
        return KeyError("a bug") if struck else None

    store.fail[verb] = strike
    await soon(Worker(faulty).drain())
    assert [await jobs[n].aresult() for n in (0, 1, 3, 4)] == [0, 1, 3, 4]
    for _ in range(100):
        clock.advance(10)
        await soon(Worker(faulty).drain())
    assert (await the_job(faulty, jobs[2])).state is State.RUNNING
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PUT_OFF_MAX / MICROS_PER_SECOND
    store.fail.clear()
    clock.advance(PUT_OFF_MAX / MICROS_PER_SECOND)
    await soon(Worker(faulty).drain())
    assert await jobs[2].aresult() == 2


async def test_a_bug_in_a_chore_of_maintenance_ends_neither_the_worker_nor_the_other_chores(
    faulty, store, clock, monkeypatch, caplog
):
    async def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("a bug")

    @faulty.task
    async def work() -> int:
        return 1

    async with working(faulty):
        monkeypatch.setattr(store, "expire", broken)
        job = await work.aenqueue()
        await clock.jump(600)
        assert await soon(job.aresult()) == 1
        gone = await work.aenqueue()
        await soon(gone.aresult())
        before = store.calls["take_expired"]
        await clock.jump(10)
        assert store.calls["take_expired"] > before + 10
    told = sum("maintenance failed" in record.getMessage() for record in caplog.records)
    assert 1 <= told < 30


async def test_a_worker_starts_although_a_bug_keeps_it_from_collecting(faulty, store):
    @faulty.task
    async def work() -> int:
        return 1

    store.fail["take_expired"] = lambda *_: KeyError("a bug")
    job = await work.aenqueue()
    await soon(Worker(faulty).drain())
    assert await job.aresult() == 1
