"""Shutting down: nothing is lost, nothing is stuck until a lease runs out, nothing is counted."""

from __future__ import annotations

import asyncio
import threading

import pytest

from taskharbor import Worker
from taskharbor.context import Context
from taskharbor.records import Reason, State
from taskharbor.worker.handlers.threads import Interruption
from tests.worker.stage import attempts_of, soon, statuses, the_job, until, until_state, working
from tests.worker.test_timeouts import busy_until


async def test_unbegun_jobs_are_handed_back_at_once_while_running_ones_finish(memory):
    begun, release = asyncio.Event(), asyncio.Event()

    @memory.task
    async def work() -> str:
        begun.set()
        await release.wait()
        return "finished"

    worker = Worker(memory, concurrency=1)
    worker._expected_pace = 1000.0  # as if it had been busy: it claims ahead
    running = asyncio.ensure_future(worker.run())
    jobs = await work.aenqueue_many([{}] * 5)
    await soon(begun.wait())
    await until_state(jobs[4], State.RUNNING)
    worker.stop()
    for job in jobs[1:]:
        found = await until_state(job, State.READY)
        assert (found.attempts, found.number) == (0, 1)
        [attempt] = await attempts_of(job)
        assert (str(attempt.status), attempt.started_at) == ("released", None)
    assert not running.done()
    release.set()
    await soon(running)
    assert await jobs[0].aresult() == "finished"
    assert [(await the_job(memory, job)).state for job in jobs[1:]] == [State.READY] * 4


async def test_every_context_is_marked_when_shutdown_begins(memory):
    begun = threading.Barrier(3, timeout=60)
    seen = []

    @memory.task
    async def polite(ctx: Context) -> None:
        await asyncio.to_thread(begun.wait)
        await until(lambda: ctx.cancelled)
        seen.append("async")

    @memory.task
    def polite_sync(ctx: Context) -> None:
        begun.wait()
        while not ctx.cancelled:
            threading.Event().wait(0.001)
        seen.append("sync")

    jobs = [await polite.aenqueue(), await polite_sync.aenqueue()]
    async with working(memory):
        await asyncio.to_thread(begun.wait)
    assert sorted(seen) == ["async", "sync"]
    assert [(await the_job(memory, job)).state for job in jobs] == [State.SUCCEEDED] * 2


async def test_after_the_grace_a_running_job_is_released_without_counting(memory, clock):
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @memory.task
    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    job = await hang.aenqueue()
    worker = Worker(memory, grace_seconds=7)
    running = asyncio.ensure_future(worker.run())
    await soon(begun.wait())
    worker.stop()
    await clock.jump(6.9)
    assert not cancelled.is_set()
    await clock.jump(0.1)
    await soon(running)
    assert cancelled.is_set()
    found = await the_job(memory, job)
    assert (found.state, found.attempts) == (State.READY, 0)
    [attempt] = await attempts_of(job)
    assert str(attempt.status) == "released"
    assert attempt.started_at is not None


async def test_what_a_handler_makes_of_its_cancellation_is_not_counted_either(memory, clock):
    begun = asyncio.Event()

    @memory.task(max_attempts=1)
    async def translate() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("aborted") from None

    job = await translate.aenqueue()
    worker = Worker(memory, grace_seconds=1)
    running = asyncio.ensure_future(worker.run())
    await soon(begun.wait())
    worker.stop()
    await clock.jump(1)
    await soon(running)
    assert (await the_job(memory, job)).state is State.READY
    assert await statuses(job) == ["released"]


async def test_a_sync_handler_is_interrupted_after_the_grace(memory, clock):
    begun, never = threading.Event(), threading.Event()
    seen = []

    @memory.task
    def hang() -> None:
        begun.set()
        try:
            busy_until(never)
        except Interruption:
            seen.append(1)
            raise

    job = await hang.aenqueue()
    worker = Worker(memory, grace_seconds=5)
    running = asyncio.ensure_future(worker.run())
    await until(begun.is_set)
    worker.stop()
    await clock.jump(5)
    await soon(running)
    assert seen == [1]
    assert await statuses(job) == ["released"]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_handler_that_will_not_end_is_left_behind_and_its_job_released(memory, clock, sync):
    begun, release = threading.Event(), threading.Event()
    ended = []

    def deaf() -> None:
        begun.set()
        while not release.is_set():
            try:
                busy_until(release)
            except Interruption:
                continue
        ended.append(1)

    async def deaf_async() -> None:
        begun.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue
        ended.append(1)

    task = memory.task(name="t")(deaf if sync else deaf_async)
    job = await task.aenqueue()
    worker = Worker(memory, grace_seconds=5)
    running = asyncio.ensure_future(worker.run())
    await until(begun.is_set)
    worker.stop()
    await clock.jump(5)
    await clock.jump(1)
    await soon(running)
    assert (await the_job(memory, job)).state is State.READY
    assert await statuses(job) == ["released"]
    release.set()
    await until(lambda: ended)
    await clock.settle()
    assert await statuses(job) == ["released"]  # it commits nothing


async def test_an_at_most_once_job_that_outlasts_the_grace_is_dead_interrupted(memory, clock):
    begun = asyncio.Event()

    @memory.task(delivery="at_most_once")
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await hang.aenqueue()
    worker = Worker(memory, grace_seconds=5)
    running = asyncio.ensure_future(worker.run())
    await soon(begun.wait())
    worker.stop()
    await clock.jump(5)
    await soon(running)
    found = await the_job(memory, job)
    assert (found.state, found.reason) == (State.DEAD, Reason.INTERRUPTED)


async def test_an_at_most_once_job_that_ends_within_the_grace_has_succeeded(memory, clock):
    begun, release = asyncio.Event(), asyncio.Event()

    @memory.task(delivery="at_most_once")
    async def work() -> int:
        begun.set()
        await release.wait()
        return 1

    job = await work.aenqueue()
    worker = Worker(memory, grace_seconds=5)
    running = asyncio.ensure_future(worker.run())
    await soon(begun.wait())
    worker.stop()
    await clock.jump(4)
    release.set()
    await soon(running)
    assert await job.aresult() == 1


async def test_a_second_stop_ends_now_and_leaves_the_rest_to_the_lease(memory, clock):
    begun = asyncio.Event()

    @memory.task
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await hang.aenqueue()
    worker = Worker(memory, grace_seconds=3600, lease_seconds=30)
    running = asyncio.ensure_future(worker.run())
    await soon(begun.wait())
    worker.stop()
    await clock.settle()
    assert not running.done()
    worker.stop()
    await soon(running)  # no time had to pass
    assert (await the_job(memory, job)).state is State.RUNNING
    begun.clear()
    clock.advance(31)
    rescuer = Worker(memory)
    async with rescuer:
        await until(begun.is_set)
        found = await until_state(job, State.RUNNING)
        assert found.number == 2
        rescuer.stop()
        rescuer.stop()
    assert (await statuses(job))[0] == "lost"


@pytest.mark.parametrize("first", ["leaves", "is told"])
async def test_a_worker_that_leaves_by_itself_and_is_told_to_stop_has_its_grace(memory, clock, first):
    begun, release = asyncio.Event(), asyncio.Event()

    @memory.task
    async def work() -> int:
        begun.set()
        await release.wait()
        return 1

    job = await work.aenqueue()
    worker = Worker(memory, grace_seconds=5)
    running = asyncio.ensure_future(worker.run())
    await soon(begun.wait())
    for word in (worker._leave, worker.stop) if first == "leaves" else (worker.stop, worker._leave):
        word()
        await clock.settle()
    assert not running.done()
    release.set()
    await soon(running)
    assert await job.aresult() == 1
    assert await statuses(job) == ["succeeded"]


async def test_a_second_stop_does_not_wait_for_a_store_that_is_away(faulty, store):
    from taskharbor.errors import StoreUnavailable

    @faulty.task
    async def work() -> None: ...

    await work.aenqueue()
    store.fail["settle"] = lambda *_: StoreUnavailable("away")
    worker = Worker(faulty)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: store.calls["settle"])
    worker.stop()
    await until(lambda: worker._run is None or worker._run._stopping.is_set())
    assert not running.done()
    worker.stop()
    await soon(running)


async def test_a_claim_under_way_when_the_worker_stops_is_handed_back(faulty, store, clock):
    """The store has leased the jobs by the time the worker hears of it: they must not wait for the lease."""
    answering, answer = asyncio.Event(), asyncio.Event()
    calls = []

    async def slow() -> None:
        answering.set()
        await answer.wait()

    @faulty.task
    async def work() -> None:
        calls.append(1)

    jobs = await work.aenqueue_many([{}] * 3)
    store.after["claim"] = slow
    worker = Worker(faulty)
    running = asyncio.ensure_future(worker.run())
    await soon(answering.wait())
    assert (await the_job(faulty, jobs[0])).state is State.RUNNING
    worker.stop()
    await clock.settle()
    answer.set()
    await soon(running)
    assert calls == []
    assert [(await the_job(faulty, job)).state for job in jobs] == [State.READY] * 3
    assert await statuses(jobs[0]) == ["released"]


async def test_a_second_stop_does_not_wait_for_a_claim_that_never_answers(faulty, store, clock):
    answering, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        answering.set()
        await never.wait()

    store.before["claim"] = hang
    worker = Worker(faulty)
    running = asyncio.ensure_future(worker.run())
    await soon(answering.wait())
    worker.stop()
    await clock.settle()
    assert not running.done()
    worker.stop()
    await soon(running)


async def test_an_at_most_once_job_being_marked_when_the_worker_stops_is_not_begun(faulty, store, clock):
    marking, marked = asyncio.Event(), asyncio.Event()
    calls = []

    async def slow() -> None:
        marking.set()
        await marked.wait()

    job = await faulty.aenqueue("once")

    @faulty.task(name="once", delivery="at_most_once")
    async def once() -> None:
        calls.append(1)

    store.before["extend"] = slow
    worker = Worker(faulty)
    running = asyncio.ensure_future(worker.run())
    await soon(marking.wait())
    worker.stop()
    await clock.settle()
    marked.set()
    await soon(running)
    assert calls == []
    assert (await the_job(faulty, job)).state is State.READY
    assert await statuses(job) == ["released"]


async def test_stop_is_heard_while_the_worker_is_still_starting(memory):
    calls = []

    @memory.task
    async def work() -> None:
        calls.append(1)

    worker = Worker(memory)

    @memory.on_worker_start
    async def starting() -> None:
        worker.stop()

    await work.aenqueue()
    await soon(worker.run())
    assert worker._run is None


async def test_a_stopped_worker_leaves_nothing_under_a_lease(harbor):
    """Stopped at a random moment of a busy time: every job is done or ready, none is running."""
    begun = 0

    @harbor.task
    async def quick() -> None:
        nonlocal begun
        begun += 1

    for at in (1, 40, 99, 300):
        begun = 0
        await quick.aenqueue_many([{}] * 400)
        worker = Worker(harbor, concurrency=10)
        running = asyncio.ensure_future(worker.run())
        await until(lambda: begun >= at)  # noqa: B023
        worker.stop()
        await soon(running)
        counts = await harbor.jobs.acounts()
        assert counts["running"] == 0
        assert counts["ready"] + counts["succeeded"] == sum(counts.values())
    assert await harbor.driver.leases() == []


async def test_a_worker_can_run_again_after_it_has_stopped(memory):
    @memory.task
    async def work() -> int:
        return 1

    worker = Worker(memory)
    for _ in range(3):
        job = await work.aenqueue()
        async with worker:
            assert await soon(job.aresult()) == 1


async def test_a_worker_runs_once_at_a_time(memory):
    from taskharbor.errors import ConfigurationError

    async with working(memory) as worker:
        with pytest.raises(ConfigurationError, match="running already"):
            await worker.run()
