"""Handlers: what they are given, what they give back, and whatever they may raise."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from taskharbor import Harbor, Worker
from taskharbor.errors import JobFailed
from taskharbor.records import Reason, State
from taskharbor.worker.handlers import threads
from taskharbor.worker.handlers.outcomes import ERROR_MAX, TRACEBACK_MAX
from tests.worker.conftest import STEADY
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


async def test_an_async_handler_runs_on_the_loop_and_its_result_is_kept(harbor, drained):
    @harbor.task
    async def add(a: int, b: int = 2) -> dict[str, int]:
        assert asyncio.current_task() is not None
        await asyncio.sleep(0)
        return {"sum": a + b}

    job = await add.aenqueue(1)
    await drained(harbor)
    assert (await the_job(harbor, job)).state is State.SUCCEEDED
    assert await job.aresult() == {"sum": 3}
    [attempt] = await attempts_of(job)
    assert (str(attempt.status), attempt.number, attempt.retry_count) == ("succeeded", 1, 0)


async def test_a_sync_handler_runs_in_a_thread_and_its_result_is_kept(harbor, drained):
    @harbor.task
    def where() -> str:
        return threading.current_thread().name

    job = await where.aenqueue()
    await drained(harbor)
    assert (await job.aresult()).startswith("taskharbor-handler")


async def test_sync_handlers_run_side_by_side_as_far_as_the_slots_reach(harbor):
    barrier = threading.Barrier(3, timeout=60)

    @harbor.task
    def meet() -> None:
        barrier.wait()

    jobs = await meet.aenqueue_many([{}] * 3)
    await Worker(harbor, concurrency=3).drain()
    for job in jobs:
        assert (await the_job(harbor, job)).state is State.SUCCEEDED


def refusing_threads(monkeypatch: pytest.MonkeyPatch, refused: set[int]) -> None:
    """Let the system have no thread left when these threads for handlers are started, counted from 1."""
    start, numbers = threading.Thread.start, itertools.count(1)

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("taskharbor-handler-") and next(numbers) in refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)


async def test_job_for_which_no_thread_can_be_started_fails_and_the_next_one_runs(memory, clock, monkeypatch):
    refusing_threads(monkeypatch, {1})

    @memory.task
    def work() -> int:
        return 1

    async with working(memory, concurrency=1, retry=STEADY):
        job = await work.aenqueue()
        await until_state(job, State.SCHEDULED)
        await clock.jump(1)
        assert await soon(job.aresult()) == 1
    assert await statuses(job) == ["failed", "succeeded"]
    assert (await attempts_of(job))[0].error == "RuntimeError: can't start new thread"


async def test_further_thread_that_cannot_be_started_is_tried_again(memory, monkeypatch, caplog):
    refusing_threads(monkeypatch, {2, 3})
    monkeypatch.setattr(threads, "GROW_AGAIN_SECONDS", 0.001)
    both = threading.Barrier(2)

    @memory.task
    def meet() -> int:
        return both.wait(PATIENCE_SECONDS)

    jobs = await meet.aenqueue_many([{}, {}])
    with caplog.at_level(logging.WARNING, "taskharbor.worker"):
        async with working(memory, concurrency=2):
            assert sorted([await soon(job.aresult()) for job in jobs]) == [0, 1]
    told = [record.getMessage() for record in caplog.records]
    assert told == ["a further thread for handlers could not be started yet: can't start new thread"] * 2


async def test_no_more_handlers_run_at_once_than_there_are_slots(harbor):
    at_once = most = 0

    @harbor.task
    async def crowd() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 4:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        at_once -= 1

    full = asyncio.Event()
    await crowd.aenqueue_many([{}] * 50)
    await Worker(harbor, concurrency=4).drain()
    assert most == 4


@pytest.mark.parametrize("value", [None, 0, "text", [1, [2]], {"a": None}, True, 1.5])
async def test_plain_results_come_back_as_they_were(memory, drained, value):
    @memory.task
    async def give():
        return value

    job = await give.aenqueue()
    await drained(memory)
    assert await job.aresult() == value


@dataclass
class Receipt:
    number: int
    at: datetime


async def test_a_typed_result_comes_back_as_its_annotation_says(memory, drained):
    receipt = Receipt(7, datetime(2026, 1, 2, tzinfo=UTC))

    @memory.task
    async def buy() -> Receipt:
        return receipt

    job = await buy.aenqueue()
    await drained(memory)
    assert await job.aresult() == receipt


@pytest.mark.parametrize(
    "returned", [object(), {1: "one", "1": "also one"}], ids=["no JSON", "two keys in one"]
)
@pytest.mark.parametrize("sync", [False, True])
async def test_a_result_that_cannot_be_stored_ends_the_job_without_doing_the_work_again(
    harbor, drained, sync, returned
):
    calls = []

    def body():
        calls.append(1)
        return returned

    if sync:
        task = harbor.task(name="t")(body)
    else:

        async def async_body():
            return body()

        task = harbor.task(name="t")(async_body)
    job = await task.aenqueue()
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.state, found.reason) == (State.DEAD, Reason.UNRECOVERABLE)
    assert "result cannot be stored" in (found.error or "")
    assert calls == [1]


class Odd(BaseException):
    pass


async def test_a_coroutine_that_a_plain_function_returns_is_told_as_what_it_is(memory, drained):
    """A wrapper that is no `async def`: nothing was done, and the error says what to change."""
    begun = []

    async def work() -> None:
        begun.append(1)

    @memory.task
    def wrapper():
        return work()

    job = await wrapper.aenqueue()
    await drained(memory)
    found = await the_job(memory, job)
    assert (found.state, found.reason, begun) == (State.DEAD, Reason.UNRECOVERABLE, [])
    assert "returned the coroutine work, which is never awaited; declare it with `async def`" in str(
        found.error
    )


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), asyncio.CancelledError(), Odd("odd"), StopIteration(1), GeneratorExit()],
    ids=repr,
)
async def test_whatever_a_handler_raises_is_a_failure_and_the_worker_goes_on(memory, error, sync):
    async def raise_it():
        await asyncio.sleep(0)
        raise error

    def raise_it_sync():
        raise error

    async def fine() -> str:
        return "fine"

    memory.task(name="odd", max_attempts=1)(raise_it_sync if sync else raise_it)
    memory.task(name="fine")(fine)
    odd = await memory.aenqueue("odd")
    others = [await memory.aenqueue("fine") for _ in range(3)]
    async with working(memory, concurrency=1):
        for other in others:
            assert await soon(other.aresult()) == "fine"
        with pytest.raises(JobFailed):
            await soon(odd.aresult())
    assert await statuses(odd) == ["failed"]


@pytest.mark.parametrize("error", [SystemExit(3), Odd("odd"), GeneratorExit()], ids=repr)
async def test_what_a_handler_raises_before_it_suspends_is_a_failure_too(memory, drained, error):
    @memory.task(max_attempts=1)
    async def raise_it():
        raise error

    job = await raise_it.aenqueue()
    await soon(drained(memory))
    assert await statuses(job) == ["failed"]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_groups_in_groups_are_a_failure_however_deep_they_are(memory, drained, sync):
    def nest() -> None:
        error: Exception = ValueError("the innermost")
        for _ in range(2 * sys.getrecursionlimit()):
            error = ExceptionGroup("around it", [error])
        raise error

    async def nest_async() -> None:
        nest()

    job = await memory.task(name="t", max_attempts=1)(nest if sync else nest_async).aenqueue()
    await soon(drained(memory))
    [attempt] = await attempts_of(job)
    assert attempt.error == "ExceptionGroup: around it (1 sub-exception)"


async def test_a_password_in_a_url_is_not_kept_with_the_error(harbor, drained):
    @harbor.task(max_attempts=1)
    def connect() -> None:
        raise ConnectionError("postgresql://shop:hunter2@db/orders does not answer")

    job = await connect.aenqueue()
    await soon(drained(harbor))
    [attempt] = await job.ahistory()
    assert attempt.error == "ConnectionError: postgresql://shop:***@db/orders does not answer"
    assert attempt.traceback is not None
    assert "shop:***@db" in attempt.traceback.splitlines()[-1]


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Drained(Exception):
    def __str__(self):
        raise SystemExit(3)


def nameless() -> Exception:
    class Anonymous(type):
        @property
        def __name__(cls):  # type: ignore[override]
            raise RuntimeError("no name")

    class Nameless(Exception, metaclass=Anonymous):
        pass

    return Nameless()


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    ("error", "kept"), [(Unreadable, "Unreadable"), (Drained, "Drained"), (nameless, "BaseException")]
)
async def test_an_error_that_cannot_be_read_is_still_an_error(harbor, drained, sync, error, kept):
    def raise_sync():
        raise error()

    async def raise_async():
        raise error()

    task = harbor.task(name="t", max_attempts=1)(raise_sync if sync else raise_async)
    job = await task.aenqueue()
    await soon(drained(harbor))
    [attempt] = await attempts_of(job)
    assert str(attempt.status) == "failed"
    assert attempt.error is not None
    assert kept in attempt.error
    assert attempt.traceback


async def test_nul_and_lone_surrogates_in_an_error_are_replaced(harbor, drained):
    @harbor.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError("a\0b\ud800c")

    job = await fail.aenqueue()
    await drained(harbor)
    [attempt] = await attempts_of(job)
    assert attempt.error == "ValueError: a\ufffdb\ufffdc"
    assert attempt.traceback is not None
    assert "\0" not in attempt.traceback
    attempt.traceback.encode()


async def test_a_huge_error_is_kept_bounded_with_its_beginning_and_its_end(harbor, drained):
    @harbor.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError("first" + "x" * 10_000_000 + "last")

    job = await fail.aenqueue()
    await drained(harbor)
    [attempt] = await attempts_of(job)
    assert attempt.error is not None
    assert attempt.traceback is not None
    assert len(attempt.error) <= ERROR_MAX
    assert len(attempt.traceback) <= TRACEBACK_MAX
    assert attempt.error.startswith("ValueError: first")
    assert attempt.error.endswith("last")


async def test_a_deep_recursion_is_a_failure_like_any_other(harbor, drained):
    @harbor.task(max_attempts=1)
    async def fall() -> None:
        def deeper():
            deeper()

        deeper()

    job = await fall.aenqueue()
    await drained(harbor)
    [attempt] = await attempts_of(job)
    assert attempt.error is not None
    assert attempt.error.startswith("RecursionError")


# -- context variables ---------------------------------------------------------------------------

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "middleware"])
async def test_context_variables_do_not_leak_from_one_job_to_the_next(memory, drained, sync, wrapped):
    seen = []

    def body():
        seen.append(colour.get())
        colour.set("red")

    async def async_body():
        body()
        await asyncio.sleep(0)
        assert colour.get() == "red"  # but a handler keeps its own

    if wrapped:

        @memory.middleware
        async def around(ctx, call):
            return await call()

    task = memory.task(name="t")(body if sync else async_body)
    await task.aenqueue_many([{}] * 5)
    await drained(memory, concurrency=1)
    assert seen == ["none"] * 5
    assert colour.get() == "none"


async def test_a_handler_sees_the_context_variables_of_whoever_runs_the_worker(memory):
    seen = []

    @memory.task
    async def look() -> None:
        seen.append(colour.get())

    await look.aenqueue()
    token = colour.set("blue")
    try:
        await Worker(memory).drain()
    finally:
        colour.reset(token)
    assert seen == ["blue"]


async def test_a_task_that_a_handler_starts_and_leaves_behind_harms_nobody(memory):
    done = asyncio.Event()
    left = []

    @memory.task
    async def start() -> None:
        async def later():
            await done.wait()

        left.append(asyncio.create_task(later()))

    @memory.task
    async def other() -> int:
        return 1

    await start.aenqueue()
    job = await other.aenqueue()
    await soon(Worker(memory, concurrency=1).drain())
    assert await job.aresult() == 1
    done.set()
    await asyncio.gather(*left)


async def test_a_handler_may_enqueue_and_wait_for_another_job_while_draining(harbor: Harbor):
    @harbor.task
    async def inner() -> int:
        return 42

    @harbor.task
    async def outer() -> int:
        return await (await inner.aenqueue()).aresult()

    job = await outer.aenqueue()
    await soon(Worker(harbor).drain())
    assert await job.aresult() == 42


async def test_handlers_take_turns_in_one_slot(harbor):
    order = []

    @harbor.task
    async def note(n: int) -> None:
        order.append(("in", n))
        await asyncio.sleep(0)
        order.append(("out", n))

    await note.aenqueue_many([{"n": n} for n in range(5)])
    await Worker(harbor, concurrency=1).drain()
    assert order == [(way, n) for n in range(5) for way in ("in", "out")]


async def test_a_busy_handler_that_never_suspends_lets_the_loop_breathe_between_jobs(memory):
    """Jobs that never await must not keep heartbeats and settles from happening until all are done."""
    turns = 0

    @memory.task
    async def quick() -> None: ...

    await quick.aenqueue_many([{}] * 400)
    worker = asyncio.ensure_future(Worker(memory, concurrency=1).drain())
    while not worker.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10
    await until(worker.done)


UNDER_A_TRACER = """
import threading
from taskharbor.worker.handlers.threads import Call

def trace(*_):
    return trace

def work():
    for _ in range(100):
        Call(lambda: None, print).run()

threading.settrace(trace)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("ended")
"""


def test_a_handler_in_a_thread_ends_under_a_tracer():
    """As `make coverage` runs it. A request to raise nothing, which a call may leave behind, hangs there."""
    command = [sys.executable, "-c", UNDER_A_TRACER]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "ended\n", run.stderr
