"""at_most_once: begun at most one time in a run, whatever happens."""

from __future__ import annotations

import asyncio

from taskharbor import Worker
from taskharbor.errors import StoreUnavailable
from taskharbor.records import Delivery, Reason, State
from tests.worker.stage import soon, statuses, the_job, until, until_state, working


async def vanish(worker: Worker, running: asyncio.Future[None]) -> None:
    """As a crash leaves things: nothing is settled, the lease stays."""

    async def nothing() -> None: ...

    if worker._run is not None:  # otherwise it has ended by itself
        worker._run._leave_nothing_behind = nothing  # type: ignore[method-assign] # a crash releases nothing
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_failed_at_most_once_job_is_dead_whatever_its_max_attempts(harbor, drained):
    calls = []

    @harbor.task(delivery="at_most_once", max_attempts=10)
    async def fail() -> None:
        calls.append(1)
        raise ValueError

    job = await fail.aenqueue()
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.state, found.reason, calls) == (State.DEAD, Reason.NOT_RETRYABLE, [1])


async def test_a_job_that_only_the_worker_declares_at_most_once_is_marked_before_it_begins(faulty, store):
    """Enqueued by name: the store learns it from the lease, before the handler begins."""
    seen = []
    job = await faulty.aenqueue("once")

    @faulty.task(name="once", delivery="at_most_once")
    async def once() -> None:
        seen.append((await the_job(faulty, job)).delivery)

    assert (await store.get([job.id]))[0].delivery is None
    await Worker(faulty).drain()
    assert seen == [Delivery.AT_MOST_ONCE]
    assert store.calls["extend"] == 1


async def test_a_job_the_store_knows_to_be_at_most_once_needs_no_mark(faulty, store):
    @faulty.task(delivery="at_most_once")
    async def once() -> int:
        return 1

    job = await once.aenqueue()
    await Worker(faulty).drain()
    assert await job.aresult() == 1
    assert store.calls["extend"] == 0


async def test_a_marked_job_whose_worker_vanishes_is_dead_lost(memory, clock):
    begun = []
    job = await memory.aenqueue("once")

    @memory.task(name="once", delivery="at_most_once")
    async def once() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    worker = Worker(memory, lease_seconds=3)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: begun)
    await vanish(worker, running)
    clock.advance(4)
    await Worker(memory).drain()
    found = await the_job(memory, job)
    assert (found.state, found.reason, begun) == (State.DEAD, Reason.LOST, [1])
    assert await statuses(job) == ["lost"]


async def test_an_at_least_once_job_whose_worker_vanishes_runs_again(memory, clock):
    begun = []

    @memory.task
    async def work() -> int:
        begun.append(1)
        if len(begun) == 1:
            await asyncio.Event().wait()
        return 2

    job = await work.aenqueue()
    worker = Worker(memory, lease_seconds=3)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: begun)
    await vanish(worker, running)
    assert (await the_job(memory, job)).state is State.RUNNING
    clock.advance(4)
    found = await the_job(memory, job)
    assert (found.state, found.lease_expired) == (State.RUNNING, True)
    await Worker(memory).drain()
    assert await job.aresult() == 2
    found = await the_job(memory, job)
    assert (found.attempts, found.number) == (0, 2)
    assert await statuses(job) == ["lost", "succeeded"]


async def test_a_running_worker_collects_what_others_lost_within_a_second(memory, clock):
    begun = []

    @memory.task
    async def work() -> int:
        begun.append(clock.monotonic())
        if len(begun) == 1:
            await asyncio.Event().wait()
        return 2

    job = await work.aenqueue()
    running = asyncio.ensure_future((worker := Worker(memory, lease_seconds=3)).run())
    await until(lambda: begun)
    await vanish(worker, running)
    async with working(memory):
        await clock.jump(2.9)
        assert len(begun) == 1
        await clock.jump(1.1)
        assert await soon(job.aresult()) == 2


async def test_a_mark_that_the_store_does_not_take_means_that_the_job_is_not_begun(faulty, store, clock):
    begun = []
    job = await faulty.aenqueue("once")

    @faulty.task(name="once", delivery="at_most_once")
    async def once() -> None:
        begun.append(1)

    store.fail["extend"] = lambda *_: StoreUnavailable("away")
    async with working(faulty):
        await until(lambda: store.calls["extend"])
        await clock.jump(1)  # it is tried a few times
        await until(lambda: store.calls["settle"])
        await until_state(job, State.READY, State.RUNNING)
        assert begun == []
        assert (await statuses(job))[0] == "released"  # handed back, not left to the lease
        del store.fail["extend"]
        await clock.jump(2)
        await until_state(job, State.SUCCEEDED)
    assert begun == [1]


async def test_a_requeued_at_most_once_job_may_begin_again(harbor, drained):
    begun = []

    @harbor.task(delivery="at_most_once")
    async def once() -> None:
        begun.append(1)
        if len(begun) == 1:
            raise ValueError

    job = await once.aenqueue()
    await drained(harbor)
    await harbor.dlq.arequeue(job.id, force=True)
    await drained(harbor)
    assert (await the_job(harbor, job)).state is State.SUCCEEDED
    assert begun == [1, 1]
