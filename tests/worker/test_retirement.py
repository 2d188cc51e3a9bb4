"""Retiring: a worker that has done enough claims no more, and its handlers end by themselves."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from taskharbor import ConfigurationError, Harbor, Worker
from taskharbor.clock import MICROS_PER_SECOND, ManualClock
from taskharbor.context import Context, current_context
from taskharbor.errors import StoreUnavailable
from taskharbor.records import Reason, State
from taskharbor.worker.upkeep import retirement
from tests.worker import isolated
from tests.worker.apart import apart
from tests.worker.stage import PATIENCE_SECONDS, attempts_of, soon, statuses, the_job, until, until_state

GRACE_SECONDS = 2.0
FAR_BEYOND_THE_GRACE = 500.0


class Stage:
    """A task whose handlers wait to be released, and a worker that is told to have done enough."""

    def __init__(self, harbor: Harbor, clock: ManualClock) -> None:
        self.harbor = harbor
        self.clock = clock
        self.release = asyncio.Event()
        self.contexts: list[Context] = []

        @harbor.task
        async def wait(ctx: Context) -> str:
            self.contexts.append(ctx)
            await self.release.wait()
            return "finished"

        self.wait = wait

    async def retiring(self, begun: int = 1, **options: Any) -> asyncio.Future[None]:
        """A worker that has begun all the jobs that it may."""
        self.worker = Worker(self.harbor, grace_seconds=GRACE_SECONDS, max_jobs=begun, **options)
        running = asyncio.ensure_future(self.worker.run())
        await until(lambda: len(self.contexts) == begun)
        await self.due()
        return running

    async def due(self) -> None:
        await until(lambda: self.worker._run and self.worker._run._retirement.is_due.is_set())


@pytest.fixture
def stage(memory: Harbor, clock: ManualClock) -> Stage:
    return Stage(memory, clock)


async def until_extended(harbor: Harbor, clock: ManualClock) -> None:
    """Wait until the last heartbeat before now has reached the store, which extends leases in a thread of its own."""
    enough = clock.now() + 15 * MICROS_PER_SECOND  # of 30, extended every 10
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while min(lease.expires_at for lease in await harbor.driver.leases()) <= enough:
        assert time.monotonic() < give_up_at, "the leases were not extended"
        await asyncio.sleep(0.0005)


async def test_a_worker_that_has_begun_enough_lets_its_handlers_end_however_long_they_take(harbor, clock):
    stage = Stage(harbor, clock)
    job = await stage.wait.aenqueue()
    once = await stage.wait.using(delivery="at_most_once").aenqueue()
    running = await stage.retiring(begun=2, lease_seconds=30)
    for _ in range(20):
        await clock.jump(FAR_BEYOND_THE_GRACE / 20)
        await until_extended(harbor, clock)
    assert not running.done()
    assert [context.cancelled for context in stage.contexts] == [False, False]
    stage.release.set()
    await soon(running)
    for each in (job, once):
        assert await each.aresult() == "finished"
        assert await statuses(each) == ["succeeded"]


async def test_a_worker_that_retires_waits_for_a_slow_settle_while_its_leases_are_extended(
    faulty, store, clock
):
    stage = Stage(faulty, clock)
    job = await stage.wait.using(delivery="at_most_once").aenqueue()
    running = await stage.retiring(lease_seconds=30)
    answer = asyncio.Event()
    store.before["settle"] = answer.wait
    stage.release.set()
    await until(lambda: store.calls["settle"])
    for _ in range(20):
        await clock.jump(FAR_BEYOND_THE_GRACE / 20)
    assert not running.done()
    answer.set()
    await soon(running)
    assert await statuses(job) == ["succeeded"]


async def test_a_worker_that_retires_does_not_wait_for_the_store_once_its_leases_are_over(
    faulty, store, clock
):
    stage = Stage(faulty, clock)
    await stage.wait.aenqueue()
    running = await stage.retiring(lease_seconds=30)
    for verb in ("settle", "extend"):
        store.fail[verb] = lambda *_: StoreUnavailable("away")
    stage.release.set()
    await until(lambda: store.calls["settle"])
    await clock.jump(29)
    assert not running.done()
    await clock.jump(4)
    await soon(running)


async def test_a_worker_that_retires_claims_no_more_and_others_have_what_it_had_not_begun(
    stage, memory, monkeypatch
):
    size = 10
    monkeypatch.setattr(retirement, "resident_mib", lambda: size)
    worker = stage.worker = Worker(memory, concurrency=1, max_memory_mib=100)
    worker._expected_pace = 1000.0  # as if it had been busy: it claims ahead
    running = asyncio.ensure_future(worker.run())
    jobs = await stage.wait.aenqueue_many([{}] * 4)
    await until(lambda: stage.contexts)
    await until_state(jobs[3], State.RUNNING)
    size = 101
    await stage.clock.jump(0.9)
    await stage.clock.jump(0.1)
    await stage.due()
    late = await stage.wait.aenqueue()
    for job in jobs[1:]:
        await until_state(job, State.READY)
        [attempt] = await attempts_of(job)
        assert (str(attempt.status), attempt.started_at) == ("released", None)
    stage.release.set()
    await soon(running)
    assert await statuses(jobs[0]) == ["succeeded"]
    assert [(await the_job(memory, job)).state for job in (*jobs[1:], late)] == [State.READY] * 4


async def test_a_timeout_ends_a_handler_of_a_worker_that_retires(stage, memory):
    job = await stage.wait.using(timeout=60, max_attempts=3).aenqueue()
    running = await stage.retiring()
    await stage.clock.jump(59)
    assert not running.done()
    await stage.clock.jump(2)
    await soon(running)
    assert await statuses(job) == ["timed_out"]
    assert (await the_job(memory, job)).attempts == 1


async def test_a_request_to_cancel_reaches_a_worker_that_retires(stage, memory):
    job = await stage.wait.aenqueue()
    running = await stage.retiring(lease_seconds=30)
    await memory.jobs.acancel(job.id)
    await stage.clock.jump(11)
    await soon(running)
    assert (await the_job(memory, job)).state is State.CANCELLED


async def test_stop_while_a_worker_retires_is_an_ordinary_shutdown_with_its_grace(stage, memory):
    job = await stage.wait.aenqueue()
    once = await stage.wait.using(delivery="at_most_once").aenqueue()
    running = await stage.retiring(begun=2)
    await stage.clock.jump(FAR_BEYOND_THE_GRACE)
    stage.worker.stop()
    await until(lambda: all(context.cancelled for context in stage.contexts))
    await stage.clock.jump(GRACE_SECONDS - 0.1)
    assert (await the_job(memory, job)).state is State.RUNNING
    await stage.clock.jump(0.1)
    await soon(running)
    assert (await the_job(memory, job)).state is State.READY
    assert await statuses(job) == ["released"]
    assert (await the_job(memory, once)).reason is Reason.INTERRUPTED


async def test_a_second_stop_while_a_worker_retires_ends_it_now(stage, memory):
    job = await stage.wait.aenqueue()
    running = await stage.retiring()
    stage.worker.stop()
    stage.worker.stop()
    await soon(running)
    assert (await the_job(memory, job)).state is State.RUNNING  # until its lease runs out


async def test_a_worker_that_is_to_drain_ends_with_its_last_permitted_job(stage, memory):
    stage.release.set()
    jobs = await stage.wait.aenqueue_many([{}] * 5)
    await soon(Worker(memory, concurrency=2, max_jobs=3).drain())
    assert [(await the_job(memory, job)).state for job in jobs].count(State.SUCCEEDED) == 3
    assert [(await the_job(memory, job)).state for job in jobs].count(State.READY) == 2


async def test_a_worker_begins_no_more_jobs_than_it_may(harbor):
    begun: list[str] = []

    @harbor.task
    async def note() -> None:
        begun.append(current_context().job.id)

    await note.aenqueue_many([{}] * 50)
    await soon(Worker(harbor, concurrency=3, max_jobs=20).run())
    assert len(begun) == 20


async def test_people_hear_of_a_worker_that_retires_for_long(stage, caplog):
    caplog.set_level("INFO", "taskharbor.worker")
    job = await stage.wait.aenqueue()
    running = await stage.retiring()
    for _ in range(10):
        await stage.clock.jump(20)
    told = [record for record in caplog.records if "is retiring and still runs 1 job: " in record.message]
    assert [record.__dict__["fields"]["jobs"] for record in told] == [
        [job.id]
    ] * 2  # after 60 s, and 120 s more
    stage.release.set()
    await soon(running)


async def test_a_middleware_may_call_an_isolated_handler_again_while_the_worker_retires(memory, clock):
    retiring, called = asyncio.Event(), []

    @memory.middleware
    async def twice(ctx: Any, call: Any) -> Any:
        called.append(await call())
        await retiring.wait()
        return await call()

    job = await apart(memory, isolated.pid).aenqueue()
    worker = Worker(memory, max_jobs=1)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: called)
    await clock.jump(1)  # it took a process before it began
    await until(lambda: worker._run and worker._run._pipeline.is_closing)
    retiring.set()
    await soon(running)
    assert isinstance(await job.aresult(), int)
    assert await statuses(job) == ["succeeded"]


# -- under somebody who replaces it -----------------------------------------------------------------


class Replacing:
    """As a supervisor is to its child."""

    def __init__(self, may_retire: bool) -> None:
        self.may_retire = may_retire
        self.told: list[str] = []

    def retires(self, why: str, *, idle: bool) -> None:
        self.told.append(f"{why}, idle: {idle}")

    def leaves(self) -> None:
        self.told.append("leaves")


async def test_a_worker_whose_predecessor_is_there_goes_on_beyond_its_limit_and_then_retires(stage, memory):
    replacement_policy = Replacing(may_retire=False)
    worker = stage.worker = Worker(memory, max_jobs=2)
    worker._replacement_policy = replacement_policy
    running = asyncio.ensure_future(worker.run())
    jobs = await stage.wait.aenqueue_many([{}] * 3)
    await until(lambda: len(stage.contexts) >= 2)
    await stage.clock.jump(1)  # nothing ends that would let it look
    await until(lambda: len(stage.contexts) == 3)
    assert replacement_policy.told == []
    replacement_policy.may_retire = True
    worker._predecessor_is_gone()
    await stage.due()
    assert replacement_policy.told == ["it has begun 2 jobs, idle: False"]
    stage.release.set()
    await soon(running)
    assert replacement_policy.told[1:] == ["leaves"]
    assert [await statuses(job) for job in jobs] == [["succeeded"]] * 3


async def test_a_worker_without_room_for_any_job_says_that_it_retires_idle(memory, monkeypatch):
    monkeypatch.setattr(retirement, "resident_mib", lambda: 6)
    replacement_policy = Replacing(may_retire=True)
    worker = Worker(memory, max_memory_mib=5)
    worker._replacement_policy = replacement_policy
    await soon(worker.run())
    assert replacement_policy.told == ["it has 6 MiB of memory, more than 5, idle: True", "leaves"]


@pytest.mark.parametrize("name", ["max_jobs", "max_memory_mib"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "9"])
def test_a_limit_that_is_none_is_refused(memory, name, value):
    with pytest.raises(ConfigurationError, match=f"{name} must be a whole number from 1"):
        Worker(memory, **{name: value})
