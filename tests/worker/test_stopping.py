"""Stopping early: `ctx.stop_requested` says why, `ctx.raise_if_stopped()` ends the attempt by that reason's rule."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taskharbor import Context, Harbor, StopRequested, Worker
from taskharbor.records import Reason, State
from taskharbor.worker.handlers.threads import Interruption
from tests.worker import isolated
from tests.worker.apart import apart, begun, done
from tests.worker.stage import (
    PATIENCE_SECONDS,
    attempts_of,
    soon,
    statuses,
    the_job,
    until,
    until_state,
    working,
)
from tests.worker.test_cancellation import BEAT
from tests.worker.test_timeouts import busy_until

KINDS = ["async", "thread", "process"]


class Handlers:
    """One handler of each kind that works until it is stopped, and says when it has begun."""

    def __init__(self, harbor: Harbor, path: Any) -> None:
        self._harbor = harbor
        self._path = path
        self._begun = threading.Event()
        self.contexts: list[Context] = []

    async def enqueue(self, kind: str, **options: Any) -> Any:
        if kind == "process":
            return await apart(self._harbor, isolated.until_stopped, **options).aenqueue(str(self._path))
        handler: Callable[..., Any] = self._in_a_thread if kind == "thread" else self._on_the_loop
        declared: Any = self._harbor.task(name="work", **({"max_attempts": 1} | options))
        return await declared(handler).aenqueue()

    async def begun(self) -> None:
        await until(lambda: self._begun.is_set() or self._path.exists())

    async def _on_the_loop(self, ctx: Context) -> None:
        self._begins(ctx)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up_at:
            ctx.raise_if_stopped()
            try:
                await asyncio.sleep(0.0005)
            except asyncio.CancelledError:
                continue

    def _in_a_thread(self, ctx: Context) -> None:
        self._begins(ctx)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up_at:
            ctx.raise_if_stopped()
            time.sleep(0.0005)

    def _begins(self, ctx: Context) -> None:
        self.contexts.append(ctx)
        self._begun.set()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process ends in real time, however far a test moves the clock meanwhile: it is not killed."""
    monkeypatch.setattr("taskharbor.worker.handlers.isolation.running.CANCEL_PATIENCE_SECONDS", 1e9)


@pytest.fixture
def handlers(memory: Harbor, tmp_path: Any) -> Handlers:
    return Handlers(memory, tmp_path / "begun")


def around(harbor: Harbor) -> list[BaseException]:
    """A middleware that lets everything through, and what it saw."""
    seen: list[BaseException] = []

    @harbor.middleware
    async def watch(ctx: Context, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        try:
            return await call()
        except BaseException as error:
            seen.append(error)
            raise

    return seen


@asynccontextmanager
async def running(harbor: Harbor, **options: Any) -> Any:
    """A worker that the test stops itself, and which has ended afterwards."""
    worker = Worker(harbor, **options)
    run = asyncio.ensure_future(worker.run())
    try:
        yield worker
        await soon(run)
    finally:
        worker.stop()
        worker.stop()
        await asyncio.wait([run])


# -- the rule of each reason ---------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "middleware"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_stops_at_a_shutdown_is_released_without_counting(
    memory, handlers, kind, wrapped
):
    """No second has passed: it need not wait for the end of the grace period."""
    seen = around(memory) if wrapped else None
    job = await handlers.enqueue(kind)
    async with running(memory, grace_seconds=3600) as worker:
        await handlers.begun()
        worker.stop()
    found = await the_job(memory, job)
    assert (found.state, found.attempts, found.reason) == (State.READY, 0, None)
    [attempt] = await attempts_of(job)
    assert (str(attempt.status), attempt.detail) == ("released", "the worker was shut down")
    assert attempt.started_at is not None
    if seen is not None:
        [stop] = seen
        assert isinstance(stop, StopRequested)
        assert (stop.reason, stop.job_id) == ("shutdown", job.id)


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "middleware"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_stops_because_of_a_cancel_is_cancelled(memory, handlers, clock, kind, wrapped):
    seen = around(memory) if wrapped else None
    job = await handlers.enqueue(kind, max_attempts=9)
    async with working(memory):
        await handlers.begun()
        await memory.jobs.acancel(job.id)
        await clock.jump(BEAT)
        found = await until_state(job, State.CANCELLED)
    assert (found.reason, found.attempts, found.error) == (Reason.CANCELLED, 0, None)
    assert await statuses(job) == ["cancelled"]
    assert seen is None or [type(error) for error in seen] == [StopRequested]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_that_stops_because_its_time_is_over_has_timed_out(memory, clock, kind):
    """Before any timer fires: it may hold the loop."""
    seen: list[str | None] = []

    def work(ctx: Context) -> None:
        assert ctx.stop_requested is None
        clock.advance(5)
        seen.append(ctx.stop_requested)
        ctx.raise_if_stopped()

    async def work_on_the_loop(ctx: Context) -> None:
        work(ctx)

    declared: Any = memory.task(name="work", timeout=5, max_attempts=1)
    job = await declared(work if kind == "thread" else work_on_the_loop).aenqueue()
    await soon(Worker(memory).drain())
    assert seen in (["timeout"], [])  # an interruption may come first in a thread
    found = await the_job(memory, job)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.EXHAUSTED, 1)
    [attempt] = await attempts_of(job)
    assert str(attempt.status) == "timed_out"
    assert attempt.error == "TimeoutError: the attempt took longer than its timeout of 5 s"
    assert "in work\n" in str(attempt.traceback)


async def test_a_process_that_stops_because_its_time_is_over_has_timed_out(memory, handlers):
    """By its own clock: the worker's stands still here, so the worker does not kill it."""
    job = await handlers.enqueue("process", timeout=0.05)
    await done(memory)
    assert (await the_job(memory, job)).reason is Reason.EXHAUSTED
    assert await statuses(job) == ["timed_out"]


async def test_a_process_whose_time_is_over_is_killed_all_the_same(memory, clock, tmp_path):
    job = await apart(memory, isolated.hang, timeout=5).aenqueue(str(tmp_path / "begun"))
    async with working(memory):
        await begun(tmp_path / "begun")
        await clock.jump(5)
        await until_state(job, State.DEAD)
    assert await statuses(job) == ["timed_out"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_that_stops_because_its_lease_is_lost_settles_nothing(
    faulty, store, clock, tmp_path, kind
):
    handlers = Handlers(faulty, tmp_path / "begun")
    job = await handlers.enqueue(kind)
    async with working(faulty, lease_seconds=30, name="late") as worker:
        await handlers.begun()
        await store.take_expired("thief/1-1", 30_000_000, now=store.clock.now() + 31_000_000)
        settles = store.calls["settle"]
        await clock.jump(BEAT)
        await until(lambda: worker._run is not None and not worker._run._pipeline.running)
        assert [context.stop_requested for context in handlers.contexts[:1]] == ["lease_lost"]
        assert store.calls["settle"] == settles
    assert (await the_job(faulty, job)).attempts == 0


# -- at_most_once --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_at_most_once_job_is_stopped_by_a_shutdown_only_when_the_grace_is_over(memory, clock, kind):
    is_asked, began = threading.Event(), threading.Event()
    looks: list[str] = []

    def look(ctx: Context) -> None:
        if ctx.stop_requested is not None:
            assert ctx.stop_requested == "shutdown"
            assert ctx.cancelled
            ctx.raise_if_stopped()  # does nothing yet
            looks.append("went on")
            is_asked.set()

    def in_a_thread(ctx: Context) -> None:
        began.set()
        try:
            while True:
                look(ctx)
                time.sleep(0.0005)
        except Interruption:
            looks.append("interrupted")
            ctx.raise_if_stopped()

    async def on_the_loop(ctx: Context) -> None:
        began.set()
        try:
            while True:
                look(ctx)
                await asyncio.sleep(0.0005)
        except asyncio.CancelledError:
            looks.append("interrupted")
            ctx.raise_if_stopped()

    declared: Any = memory.task(name="work", delivery="at_most_once")
    job = await declared(in_a_thread if kind == "thread" else on_the_loop).aenqueue()
    async with running(memory, grace_seconds=7) as worker:
        await until(began.is_set)
        worker.stop()
        await until(is_asked.is_set)
        await clock.jump(6.9)
        assert (await the_job(memory, job)).state is State.RUNNING
        await clock.jump(0.1)
    assert set(looks) == {"went on", "interrupted"}
    found = await the_job(memory, job)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.INTERRUPTED, 0)


async def test_an_at_most_once_process_may_finish_within_the_grace(memory, tmp_path):
    task = apart(memory, isolated.until_asked_and_once_more, delivery="at_most_once")
    job = await task.aenqueue(str(tmp_path / "begun"))
    async with running(memory, grace_seconds=3600) as worker:
        await begun(tmp_path / "begun")
        worker.stop()
    assert await job.aresult() == "finished in spite of shutdown"


async def test_an_at_most_once_job_is_stopped_by_a_cancel_at_once(memory, handlers, clock):
    job = await handlers.enqueue("thread", delivery="at_most_once")
    async with working(memory):
        await handlers.begun()
        await memory.jobs.acancel(job.id)
        await clock.jump(BEAT)
        await until_state(job, State.CANCELLED)


# -- the order of reasons ------------------------------------------------------------------------


async def test_of_several_reasons_the_first_in_order_counts(memory, clock):
    """A shutdown, then the timeout, then a cancel, and in the end the lease is lost."""
    began, go_on = threading.Event(), threading.Event()
    contexts: list[Context] = []

    @memory.task(timeout=100, max_attempts=1)
    def deaf(ctx: Context) -> None:
        contexts.append(ctx)
        began.set()
        while not go_on.is_set():
            try:
                busy_until(go_on)
            except Interruption:
                continue

    job = await deaf.aenqueue()
    worker = Worker(memory, grace_seconds=1000, lease_seconds=30)
    run = asyncio.ensure_future(worker.run())
    await until(began.is_set)
    [ctx] = contexts
    told = [ctx.stop_requested]
    worker.stop()
    await until(lambda: ctx.cancelled)
    told.append(ctx.stop_requested)
    await clock.jump(100)
    told.append(ctx.stop_requested)
    await memory.jobs.acancel(job.id)
    await clock.jump(BEAT)
    told.append(ctx.stop_requested)
    await clock.jump(900)
    await soon(run)
    told.append(ctx.stop_requested)  # left behind: it can commit nothing
    go_on.set()
    assert told == [None, "shutdown", "timeout", "cancel", "lease_lost"]


# -- groups, others' stops, and stops that are caught --------------------------------------------


async def asked_to_shut_down(harbor: Harbor, handler: Callable[[Context], Any], **options: Any) -> Any:
    """What becomes of a job whose handler raises once the worker shuts down."""
    began = asyncio.Event()

    async def work(ctx: Context) -> Any:
        began.set()
        await until(lambda: ctx.stop_requested is not None)
        return await handler(ctx)

    declared: Any = harbor.task(name="work", **({"max_attempts": 1} | options))
    job = await declared(work).aenqueue()
    async with running(harbor, grace_seconds=3600) as worker:
        await soon(began.wait())
        worker.stop()
    return await the_job(harbor, job)


async def test_a_stop_inside_nested_task_groups_is_a_stop(memory):
    async def handler(ctx: Context) -> None:
        async def stop() -> None:
            ctx.raise_if_stopped()

        async def inner() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(stop())
                group.create_task(stop())
                group.create_task(asyncio.sleep(3600))

        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            group.create_task(inner())
            group.create_task(stop())

    found = await asked_to_shut_down(memory, handler)
    assert (found.state, found.attempts) == (State.READY, 0)
    assert await statuses(found) == ["released"]


async def test_a_group_that_holds_an_error_as_well_is_a_failure(memory):
    async def handler(ctx: Context) -> None:
        async def stop() -> None:
            ctx.raise_if_stopped()

        async def fail() -> None:
            raise ValueError("broken")

        async with asyncio.TaskGroup() as group:
            group.create_task(stop())
            group.create_task(fail())

    found = await asked_to_shut_down(memory, handler)
    assert (found.state, found.attempts) == (State.DEAD, 1)
    assert await statuses(found) == ["failed"]


async def test_a_stop_that_is_caught_is_a_success(memory):
    async def handler(ctx: Context) -> str:
        try:
            ctx.raise_if_stopped()
        except StopRequested as stop:
            return f"made the best of {stop.reason}"
        return "?"

    found = await asked_to_shut_down(memory, handler)
    assert (found.state, await found.aresult()) == (State.SUCCEEDED, "made the best of shutdown")


async def test_the_stop_of_another_attempt_counts_as_a_failure(memory):
    async def handler(ctx: Context) -> None:
        raise StopRequested("shutdown", ctx.job.id, ctx.job.number + 1)

    found = await asked_to_shut_down(memory, handler)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.EXHAUSTED, 1)
    assert found.error == f"StopRequested: attempt 2 of job {found.id} stops: shutdown"


async def test_the_stop_of_another_attempt_counts_as_a_failure_in_a_process(memory):
    job = await apart(memory, isolated.stop_of_another).aenqueue()
    await done(memory)
    assert await statuses(job) == ["failed"]


@pytest.mark.parametrize("reason", ["shutdown", "timeout"])
async def test_a_stop_that_was_made_up_counts_as_a_failure(memory, drained, reason):
    @memory.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        raise StopRequested(reason, ctx.job.id, ctx.job.number)

    job = await work.aenqueue()
    await drained(memory)
    assert (await the_job(memory, job)).attempts == 1
    assert await statuses(job) == ["failed"]


async def test_a_process_that_stops_inside_a_task_group_is_cancelled(memory, clock, tmp_path):
    job = await apart(memory, isolated.until_stopped_in_a_group).aenqueue(str(tmp_path / "begun"))
    async with working(memory):
        await begun(tmp_path / "begun")
        await memory.jobs.acancel(job.id)
        await clock.jump(BEAT)
        found = await until_state(job, State.CANCELLED)
    assert found.error is None


async def test_a_thread_that_the_handler_started_can_stop_it(memory):
    async def handler(ctx: Context) -> None:
        await asyncio.to_thread(ctx.raise_if_stopped)

    found = await asked_to_shut_down(memory, handler)
    assert (found.state, found.attempts) == (State.READY, 0)


async def test_a_stop_inside_a_step_stores_nothing(memory, drained):
    async def handler(ctx: Context) -> str:
        def charge() -> str:
            ctx.raise_if_stopped()
            return "charged"

        result: str = await ctx.step("charge", charge)
        return result

    found = await asked_to_shut_down(memory, handler)
    assert found.state is State.READY
    assert await memory.driver.steps(found.id) == {}


async def test_a_handler_that_is_not_to_stop_goes_on(memory, drained):
    seen = []

    @memory.task(timeout=60)
    async def work(ctx: Context) -> None:
        ctx.raise_if_stopped()
        seen.append((ctx.stop_requested, ctx.cancelled))

    await work.aenqueue()
    await drained(memory)
    assert seen == [(None, False)]


def test_a_stop_can_be_copied_and_pickled():
    stop = StopRequested("cancel", "a", 3)
    for other in (copy.copy(stop), pickle.loads(pickle.dumps(stop))):
        assert (other.reason, other.job_id, other.number) == ("cancel", "a", 3)
