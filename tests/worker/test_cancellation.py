"""Cancelling a job that runs: a durable request that reaches its worker, at the latest with the next heartbeat."""

from __future__ import annotations

import asyncio
import threading

import pytest

from taskharbor.context import Context
from taskharbor.errors import JobCancelled, StoreUnavailable
from taskharbor.records import Reason, State
from tests.worker.stage import attempts_of, soon, statuses, the_job, until, until_state, working

BEAT = 10.0  # a third of the lease of 30 s


async def test_a_running_async_handler_is_cancelled_at_the_next_heartbeat(faulty, store, clock):
    """At the latest: here nothing else tells the worker."""
    store.fail["cancel_requests"] = lambda *_: StoreUnavailable("away")
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @faulty.task
    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    job = await hang.aenqueue()
    async with working(faulty, lease_seconds=30):
        await soon(begun.wait())
        asked = await faulty.jobs.acancel(job.id)
        assert (asked.state, asked.cancel_requested) == (State.RUNNING, True)
        await clock.jump(BEAT - 1)
        assert not cancelled.is_set()
        await clock.jump(1)
        assert cancelled.is_set()
        with pytest.raises(JobCancelled):
            await soon(job.aresult())
    found = await the_job(faulty, job)
    assert (found.state, found.reason, found.attempts) == (State.CANCELLED, Reason.CANCELLED, 0)
    assert await statuses(job) == ["cancelled"]


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "middleware"])
async def test_a_running_sync_handler_is_only_marked_and_may_stop_by_itself(memory, clock, wrapped):
    begun, go_on = threading.Event(), threading.Event()
    seen = []

    @memory.task
    def work(ctx: Context) -> None:
        begun.set()
        assert go_on.wait(60)
        seen.append(ctx.cancelled)
        if ctx.cancelled:
            raise RuntimeError("stopped half way")

    if wrapped:

        @memory.middleware
        async def around(ctx, call):
            return await call()

    job = await work.aenqueue()
    async with working(memory):
        await until(begun.is_set)
        await memory.jobs.acancel(job.id)
        await clock.jump(BEAT)
        assert (await the_job(memory, job)).state is State.RUNNING
        go_on.set()
        await until_state(job, State.CANCELLED)
    assert seen == [True]
    [attempt] = await attempts_of(job)
    assert attempt.error == "RuntimeError: stopped half way"


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_success_that_is_settled_first_wins(harbor, clock, sync):
    begun, release = threading.Event(), threading.Event()

    def body() -> str:
        begun.set()
        assert release.wait(60)
        return "done"

    async def async_body() -> str:
        begun.set()
        await until(release.is_set)
        return "done"

    task = harbor.task(name="t")(body if sync else async_body)
    job = await task.aenqueue()
    async with working(harbor):
        await until(begun.is_set)
        await harbor.jobs.acancel(job.id)
        release.set()  # before any heartbeat
        found = await until_state(job, State.SUCCEEDED)
    assert found.reason is None
    assert await job.aresult() == "done"


async def test_an_async_handler_that_finishes_in_spite_of_the_request_has_succeeded(memory, clock):
    begun = asyncio.Event()

    @memory.task
    async def work() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished quickly"
        return "?"

    job = await work.aenqueue()
    async with working(memory):
        await soon(begun.wait())
        await memory.jobs.acancel(job.id)
        await clock.jump(BEAT)
        assert await soon(job.aresult()) == "finished quickly"


async def test_a_failure_of_a_job_that_is_to_be_cancelled_is_not_retried(harbor):
    begun, release = asyncio.Event(), asyncio.Event()

    @harbor.task(max_attempts=9)
    async def fail() -> None:
        begun.set()
        await release.wait()
        raise ValueError("broken")

    job = await fail.aenqueue()
    async with working(harbor):
        await soon(begun.wait())
        await harbor.jobs.acancel(job.id)
        release.set()
        found = await until_state(job, State.CANCELLED)
    assert found.reason is Reason.CANCELLED
    assert found.error == "ValueError: broken"


async def test_a_job_cancelled_while_it_waits_inside_the_worker_is_never_begun(memory, clock, monkeypatch):
    """Claimed ahead, not begun: the request reaches it with the heartbeat all the same."""
    monkeypatch.setattr("taskharbor.worker.run.STALLED_SECONDS", 3600)  # what waits here is not handed back
    calls = []
    release = asyncio.Event()
    begun = asyncio.Event()

    @memory.task
    async def block() -> None:
        begun.set()
        await release.wait()

    @memory.task
    async def work(n: int) -> int:
        calls.append(n)
        return n

    async with working(memory, concurrency=1, pace=1000.0):
        [first] = await block.aenqueue_many([{}])
        jobs = await work.aenqueue_many([{"n": n} for n in range(3)])
        await soon(begun.wait())
        await until_state(jobs[1], State.RUNNING)
        await memory.jobs.acancel(jobs[1].id)
        await clock.jump(BEAT)
        release.set()
        assert await soon(jobs[2].aresult()) == 2
        await until_state(jobs[1], State.CANCELLED)
        await until_state(first, State.SUCCEEDED)
    assert calls == [0, 2]
    [attempt] = await attempts_of(jobs[1])
    assert (str(attempt.status), attempt.started_at) == ("cancelled", None)


async def test_cancelling_what_has_not_begun_ends_it_at_once(harbor, drained):
    calls = []

    @harbor.task
    async def work() -> None:
        calls.append(1)

    ready, later = await work.aenqueue(), await work.using(delay=60).aenqueue()
    for job in (ready, later):
        assert (await harbor.jobs.acancel(job.id)).state is State.CANCELLED
    await drained(harbor)
    assert calls == []


async def test_neighbours_of_a_cancelled_job_are_left_alone(memory, clock):
    release = asyncio.Event()
    begun = []

    @memory.task
    async def work(n: int) -> int:
        begun.append(n)
        await release.wait()
        return n

    jobs = await work.aenqueue_many([{"n": n} for n in range(3)])
    async with working(memory):
        await until(lambda: len(begun) == 3)
        await memory.jobs.acancel(jobs[1].id)
        await clock.jump(BEAT)
        await until_state(jobs[1], State.CANCELLED)
        release.set()
        assert [await soon(jobs[n].aresult()) for n in (0, 2)] == [0, 2]
