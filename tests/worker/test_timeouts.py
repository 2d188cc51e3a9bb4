"""Timeouts: an attempt that takes too long is a failure, and its slot is occupied until it really ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from taskharbor import Worker
from taskharbor.context import Context
from taskharbor.records import Reason, State
from taskharbor.worker.handlers.threads import Interruption
from tests.worker.stage import attempts_of, soon, statuses, the_job, until, until_state, working


async def test_an_async_handler_is_cancelled_when_its_time_is_over(memory, clock):
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @memory.task(timeout=5, max_attempts=1)
    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    job = await hang.aenqueue()
    async with working(memory):
        await soon(begun.wait())
        await clock.jump(4.9)
        assert not cancelled.is_set()
        await clock.jump(0.1)
        assert cancelled.is_set()
        await until_state(job, State.DEAD)
    [attempt] = await attempts_of(job)
    assert str(attempt.status) == "timed_out"
    assert attempt.error == "TimeoutError: the attempt took longer than its timeout of 5 s"
    assert attempt.traceback is not None
    assert "hang" in attempt.traceback  # where it hung


async def test_a_timeout_is_retried_by_the_same_rules(memory, clock):
    calls = []

    @memory.task(timeout=5)
    async def slow_once() -> str:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "done"

    job = await slow_once.aenqueue()
    async with working(memory):
        await clock.jump(5)
        await clock.jump(10)
        assert await soon(job.aresult()) == "done"
    assert await statuses(job) == ["timed_out", "succeeded"]
    assert (await the_job(memory, job)).attempts == 1


async def test_the_jobs_timeout_goes_before_the_tasks(memory, clock):
    @memory.task(timeout=100, max_attempts=1)
    async def hang() -> None:
        await asyncio.Event().wait()

    job = await hang.using(timeout=2).aenqueue()
    by_name = await memory.aenqueue("by.name")

    @memory.task(name="by.name", timeout=3, max_attempts=1)
    async def declared_later() -> None:
        await asyncio.Event().wait()

    async with working(memory):
        await clock.jump(2)
        await until_state(job, State.DEAD)
        assert (await the_job(memory, by_name)).state is State.RUNNING
        await clock.jump(1)
        await until_state(by_name, State.DEAD)


async def test_a_handler_that_ends_in_time_is_not_touched_by_its_timer(memory, clock):
    @memory.task(timeout=5)
    async def quick() -> int:
        await asyncio.sleep(0)
        return 1

    @memory.task
    async def patient() -> int:
        await release.wait()
        return 2

    release = asyncio.Event()
    job = await quick.aenqueue()
    async with working(memory, concurrency=1):
        assert await soon(job.aresult()) == 1
        other = await patient.aenqueue()  # in the same slot, past the first one's timeout
        await clock.jump(8)
        release.set()
        assert await soon(other.aresult()) == 2


async def test_a_handler_that_swallows_its_cancellation_has_timed_out_all_the_same(memory, clock):
    begun = asyncio.Event()

    @memory.task(timeout=5, max_attempts=1)
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "done anyway"

    @memory.task
    async def other() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "fine"

    job = await stubborn.aenqueue()
    async with working(memory, concurrency=1):
        await soon(begun.wait())
        await clock.jump(5)
        await until_state(job, State.DEAD)
        # and the cancellation hits nobody else in that slot
        assert await soon((await other.aenqueue()).aresult()) == "fine"
    assert await statuses(job) == ["timed_out"]


async def test_a_handler_may_use_asyncio_timeout_itself(memory):
    """asyncio's timeouts work on the current task, which is the slot's: they must not confuse each other."""

    @memory.task
    async def inner_timeout() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "inner"
        return "none"

    @memory.task
    async def wait_for() -> str:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            return "waited"
        return "none"

    jobs = [await inner_timeout.aenqueue(), await wait_for.aenqueue(), await inner_timeout.aenqueue()]
    await soon(Worker(memory, concurrency=1).drain())
    assert [await job.aresult() for job in jobs] == ["inner", "waited", "inner"]


async def test_the_jobs_timeout_passes_through_a_handlers_own_longer_one(memory, clock):
    begun = asyncio.Event()

    @memory.task(timeout=5, max_attempts=1)
    async def patient() -> None:
        begun.set()
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()

    job = await patient.aenqueue()
    async with working(memory):
        await soon(begun.wait())
        await clock.jump(5)
        await until_state(job, State.DEAD)
    assert await statuses(job) == ["timed_out"]


async def test_a_task_group_in_a_handler_is_cancelled_with_it(memory, clock):
    ended = []
    begun = asyncio.Event()

    async def member():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    @memory.task(timeout=5, max_attempts=1)
    async def fan_out() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(member())
            begun.set()

    job = await fan_out.aenqueue()
    async with working(memory):
        await soon(begun.wait())
        await clock.jump(5)
        await until_state(job, State.DEAD)
    assert ended == [1, 1, 1]
    assert await statuses(job) == ["timed_out"]


async def test_a_handler_that_held_the_loop_past_its_timeout_has_timed_out(memory, clock):
    @memory.task(timeout=5, max_attempts=1)
    async def hog() -> None:
        clock.advance(6)  # as if it had computed for that long, without ever suspending

    job = await hog.aenqueue()
    await soon(Worker(memory).drain())
    assert await statuses(job) == ["timed_out"]


# -- sync handlers -------------------------------------------------------------------------------


def busy_until(event: threading.Event) -> None:
    """Work that notices an exception raised in its thread."""
    while not event.is_set():
        event.wait(0.001)


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "middleware"])
async def test_a_sync_handler_gets_an_exception_in_its_thread(memory, clock, wrapped):
    begun, never = threading.Event(), threading.Event()
    seen = []

    @memory.task(timeout=5, max_attempts=1)
    def hang() -> None:
        begun.set()
        try:
            busy_until(never)
        except BaseException as error:
            seen.append(type(error))
            raise

    if wrapped:

        @memory.middleware
        async def around(ctx, call):
            return await call()

    job = await hang.aenqueue()
    async with working(memory):
        await until(begun.is_set)
        await clock.jump(5)
        await until_state(job, State.DEAD)
    assert seen == [Interruption]
    assert await statuses(job) == ["timed_out"]


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "middleware"])
async def test_a_sync_handlers_slot_stays_occupied_until_it_really_ends(memory, clock, wrapped):
    begun, release = threading.Event(), threading.Event()

    @memory.task(timeout=5, max_attempts=1)
    def deaf() -> None:
        begun.set()
        while not release.is_set():
            try:
                busy_until(release)
            except Interruption:
                continue  # it will not listen

    @memory.task
    def other() -> str:
        return "mine"

    if wrapped:

        @memory.middleware
        async def around(ctx, call):
            return await call()

    job = await deaf.aenqueue()
    async with working(memory, concurrency=1, lease_seconds=30):
        await until(begun.is_set)
        waiting = await other.aenqueue()
        await clock.jump(20)  # and its lease is kept meanwhile
        assert (await the_job(memory, job)).state is State.RUNNING
        assert (await the_job(memory, waiting)).state is State.READY
        release.set()
        await until_state(job, State.DEAD)
        assert await soon(waiting.aresult()) == "mine"
    assert await statuses(job) == ["timed_out"]


@pytest.mark.parametrize("calls", ["itself", "in a task", "in a task that it forgets"])
async def test_slot_stays_occupied_although_a_middleware_has_given_up_before(memory, clock, calls):
    """The handler's thread is cancelled a second time, by its own timeout, and does not end by that either."""
    begun, release = threading.Event(), threading.Event()
    give_up, has_given_up = asyncio.Event(), asyncio.Event()
    forgotten: list[asyncio.Task[Any]] = []

    @memory.task(timeout=5, max_attempts=1)
    def deaf() -> None:
        begun.set()
        while not release.is_set():
            try:
                busy_until(release)
            except Interruption:
                continue  # it will not listen

    @memory.task
    def other() -> str:
        return "mine"

    @memory.middleware
    async def impatient(ctx, call):
        if ctx.job.task == other.name:
            return await call()
        if calls != "itself":  # as `asyncio.wait_for` does in Python 3.11
            calling = asyncio.create_task(call())
            await give_up.wait()
            if calls == "in a task":
                calling.cancel()
            else:
                forgotten.append(calling)
            asyncio.get_running_loop().call_soon(has_given_up.set)
            raise TimeoutError
        async with asyncio.timeout(None) as scope:

            async def watch() -> None:
                await give_up.wait()
                scope.reschedule(asyncio.get_running_loop().time())
                asyncio.get_running_loop().call_soon(has_given_up.set)

            watching = asyncio.create_task(watch())
            try:
                return await call()
            finally:
                await watching

    job = await deaf.aenqueue()
    async with working(memory, concurrency=1, lease_seconds=30):
        await until(begun.is_set)
        waiting = await other.aenqueue()
        give_up.set()
        await soon(has_given_up.wait())
        await clock.jump(20)
        found = [(await the_job(memory, each)).state for each in (job, waiting)]
        release.set()
        assert found == [State.RUNNING, State.READY]
        await until_state(job, State.DEAD)
        assert await soon(waiting.aresult()) == "mine"
    await asyncio.gather(*forgotten)
    assert await statuses(job) == ["timed_out"]


async def test_an_interrupted_thread_serves_the_next_job_unharmed(memory, clock):
    never = threading.Event()
    begun = threading.Event()

    @memory.task(max_attempts=1)
    def hang() -> None:
        begun.set()
        busy_until(never)

    @memory.task
    def fine(n: int) -> int:
        return sum(range(n))

    async with working(memory, concurrency=1):
        for _ in range(10):
            begun.clear()
            job = await hang.using(timeout=1).aenqueue()
            await until(begun.is_set)
            await clock.jump(1)
            await until_state(job, State.DEAD)
            assert await soon((await fine.aenqueue(1000)).aresult()) == 499_500


async def test_a_sync_handler_whose_time_is_over_before_a_thread_took_it_does_not_begin(
    memory, clock, monkeypatch
):
    from taskharbor.worker.handlers.threads import Call

    gate = threading.Event()
    original = Call.run

    def late(self):
        assert gate.wait(60)
        original(self)

    monkeypatch.setattr(Call, "run", late)
    calls = []

    @memory.task(timeout=5, max_attempts=1)
    def work() -> None:
        calls.append(1)

    job = await work.aenqueue()
    async with working(memory):
        await clock.jump(5)
        gate.set()
        await until_state(job, State.DEAD)
    assert calls == []
    assert await statuses(job) == ["timed_out"]


async def test_a_timed_out_at_most_once_job_is_not_tried_again(memory, clock):
    @memory.task(timeout=5, delivery="at_most_once")
    async def hang() -> None:
        await asyncio.Event().wait()

    job = await hang.aenqueue()
    async with working(memory):
        await clock.jump(5)
        found = await until_state(job, State.DEAD)
    assert found.reason is Reason.NOT_RETRYABLE


async def test_the_context_is_marked_when_time_is_over(memory, clock):
    begun, never = threading.Event(), threading.Event()
    contexts: list[Context] = []

    @memory.task(timeout=5, max_attempts=1)
    def hang(ctx: Context) -> None:
        contexts.append(ctx)
        begun.set()
        busy_until(never)

    job = await hang.aenqueue()
    async with working(memory):
        await until(begun.is_set)
        assert not contexts[0].cancelled
        await clock.jump(5)
        assert contexts[0].cancelled
        await until_state(job, State.DEAD)
