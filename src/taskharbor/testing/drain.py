"""`Drain` and `RunInline`: run what is due, through the worker's own pipeline, and say what ran."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from msgspec import Struct

from taskharbor.client.handle import Job
from taskharbor.client.task import Enqueueable, Signature
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.context import Context
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigurationError, JobNotFound
from taskharbor.records import AttemptStatus, State
from taskharbor.sync import run_inline as run_without_loop
from taskharbor.sync import run_on_loop_thread
from taskharbor.testing.checks import check_task
from taskharbor.testing.clock import Duration, TestingClock, seconds_of
from taskharbor.testing.loop import SkippingLoop, TestThread
from taskharbor.worker.worker import Worker

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

INLINE_QUEUE = "taskharbor-run-inline"
HISTORY_ROWS = 1_000


class Ran(Struct, frozen=True):
    """One attempt that a `drain()` made."""

    job: Job[Any]  # as it is after the drain
    number: int  # of the attempt
    status: AttemptStatus | None  # None if the attempt has not been settled: its worker was ended
    error: BaseException | None = None  # what the handler raised

    @property
    def task(self) -> str:
        return self.job.task

    def __repr__(self) -> str:
        error = "" if self.error is None else f", {type(self.error).__name__}: {self.error}"
        return f"<{self.task} attempt {self.number}: {self.status}{error}>"


class HandlersWait(AssertionError):
    """Handlers still wait after the time that `drain()` skips at most."""


class Drain:
    """Runs everything that is due now, one job after the other, and returns the attempts: `drain()`.

    The worker's own pipeline executes the jobs. In a synchronous test, handlers declared with `def` run in the test's
    thread, and time that handlers wait is skipped: the clock moves instead. `await drain.async_()` is for asynchronous
    tests: it runs on the test's loop, and time stands still unless the test moves it.
    """

    def __init__(self, harbor: Harbor) -> None:
        self._harbor = harbor

    def __call__(
        self, *, raising: bool = False, skip: Duration = "1h", queues: list[str] | None = None
    ) -> list[Ran]:
        """Run what is due; return the attempts in the order in which they began.

        `raising` raises the first error that a handler raised, after everything has run. `skip` is how much time in
        all handlers may spend waiting; `HandlersWait` is raised after it.
        """
        _refuse_on_a_loop()
        limit = seconds_of(skip, "skip")
        with _watching(self._harbor) as began:
            _run_beside(self._harbor, lambda: self._worker(queues), limit)
        return self._now(self._report(began, raising))

    async def async_(self, *, raising: bool = False, queues: list[str] | None = None) -> list[Ran]:
        """Run what is due, in an asynchronous test; return the attempts in the order in which they began."""
        _refuse_without_asyncio()
        with _watching(self._harbor) as began:
            await self._worker(queues).drain()
        return await self._report(began, raising)

    def through(self, duration: Duration, *, raising: bool = False) -> list[Ran]:
        """Run everything that falls due within this time, each job at its own instant, and move the clock to the end.

        Retries, schedules and delayed jobs run as often as they would. Return the attempts.
        """
        clock = self._clock()
        end = clock.now() + round(seconds_of(duration, "through()") * MICROS_PER_SECOND)
        ran = self(raising=raising)
        while (due := self._now(self._next_due())) is not None and due <= end:
            clock.advance(max(0, due - clock.now()) / MICROS_PER_SECOND)
            ran += self(raising=raising)
        clock.advance(max(0, end - clock.now()) / MICROS_PER_SECOND)
        return ran

    async def through_async(self, duration: Duration, *, raising: bool = False) -> list[Ran]:
        """Do the same in an asynchronous test."""
        clock = self._clock()
        end = clock.now() + round(seconds_of(duration, "through_async()") * MICROS_PER_SECOND)
        ran = await self.async_(raising=raising)
        while (due := await self._next_due()) is not None and due <= end:
            await clock.jump(max(0, due - clock.now()) / MICROS_PER_SECOND)
            ran += await self.async_(raising=raising)
        await clock.jump(max(0, end - clock.now()) / MICROS_PER_SECOND)
        return ran

    def _now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that asks the store, in a synchronous test."""
        return (run_without_loop if self._harbor.driver.inline else run_on_loop_thread)(coroutine)

    def _worker(self, queues: list[str] | None) -> Worker:
        # One job after the other, so that a test sees the same order each time.
        return Worker(self._harbor, queues=queues, concurrency=1)

    def _clock(self) -> TestingClock:
        clock = self._harbor.driver.clock
        if not isinstance(clock, TestingClock):
            raise ConfigurationError(
                "this moves the clock, and the harbor goes by the machine's; take the fixture `harbor`, "
                "or Harbor(url, clock=TestingClock())"
            )
        return clock

    async def _next_due(self) -> int | None:
        """Return when the next job that is scheduled is due."""
        from taskharbor.records import JobFilter

        due: list[int] = []
        cursor: str | None = None
        while True:
            page = await self._harbor.driver.list(
                JobFilter(state=State.SCHEDULED), cursor=cursor, limit=1_000
            )
            due += [record.run_at for record in page.jobs]
            cursor = page.next_cursor
            if cursor is None:
                return min(due, default=None)

    async def _report(self, began: list[_Began], raising: bool) -> list[Ran]:
        ran: list[Ran] = []
        for each in began:
            try:
                job = await self._harbor.jobs.aget(each.job.id)
                rows = await self._harbor.driver.history(job.id, HISTORY_ROWS)
            except JobNotFound:  # it is deleted
                job, rows = each.job, []
            status = next((row.status for row in rows if row.number == each.number), None)
            ran.append(Ran(job, each.number, status, each.error))
        first = next((each.error for each in ran if each.error is not None), None)
        if raising and first is not None:
            raise first
        return ran


class RunInline:
    """Runs one job through the worker's pipeline and returns its result: `run_inline(send, to="ada@example.com")`.

    It is stored in a queue of its own, so nothing else that is due runs. What the handler raises is raised here, and
    the job stays as the failure leaves it.
    """

    def __init__(self, harbor: Harbor) -> None:
        self._harbor = harbor

    def __call__(self, task: Enqueueable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a job of this task with these arguments; return what it results in."""
        _refuse_on_a_loop()
        check_task(task, "run_inline()")
        job = _in_own_queue(task.s(*args, **kwargs))
        [stored] = self._harbor.enqueue_many([job])
        ran = Drain(self._harbor)(raising=True, queues=[INLINE_QUEUE])
        return _result(stored.refresh(), ran)  # type: ignore[no-any-return]

    async def async_(self, task: Enqueueable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the same in an asynchronous test."""
        _refuse_without_asyncio()
        check_task(task, "run_inline.async_()")
        job = _in_own_queue(task.s(*args, **kwargs))
        [stored] = await self._harbor.aenqueue_many([job])
        ran = await Drain(self._harbor).async_(raising=True, queues=[INLINE_QUEUE])
        return _result(await stored.arefresh(), ran)  # type: ignore[no-any-return]


def _in_own_queue(signature: Signature[Any]) -> Signature[Any]:
    return signature.task.using(queue=INLINE_QUEUE).s(**signature.arguments)


def _result(job: Job[Any], ran: list[Ran]) -> Any:
    if job.state is State.SUCCEEDED:
        return job._harbor._decode_result(job.record)
    raise AssertionError(
        f"the job of {job.task} is {job.state} and has no result: "
        + (f"{', '.join(map(repr, ran))}; " if ran else "no worker could begin it; ")
        + "job.history() shows its attempts"
    )


class _Began(Struct):
    job: Job[Any]
    number: int
    error: BaseException | None = None


@contextmanager
def _watching(harbor: Harbor) -> Iterator[list[_Began]]:
    """Collect the attempts that begin, by a middleware around the handlers."""
    began: list[_Began] = []

    async def watch(context: Context, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        attempt = _Began(context.job, context.attempt_number)
        began.append(attempt)
        try:
            return await call()
        except Exception as error:
            attempt.error = error
            raise

    harbor.middlewares.append(watch)  # the innermost: it sees what the handler itself raises
    try:
        yield began
    finally:
        harbor.middlewares.remove(watch)


def _run_beside(harbor: Harbor, make_worker: Callable[[], Worker], limit: float) -> None:
    """Drain in a thread of its own, and serve the calls of synchronous handlers in this one."""
    inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    draining = _Draining(harbor, make_worker(), inbox, limit)
    thread = threading.Thread(target=draining.run, name="taskharbor-drain", daemon=True)
    thread.start()
    try:
        while (serve := inbox.get()) is not None:
            serve()
    except BaseException:  # Ctrl-C, or pytest's timeout
        draining.worker.stop()
        draining.worker.stop()
        thread.join(10.0)
        raise
    thread.join()
    draining.raise_error()


class _Draining:
    """One drain on a loop of its own."""

    def __init__(
        self,
        harbor: Harbor,
        worker: Worker,
        inbox: SimpleQueue[Callable[[], None] | None],
        limit: float,
    ) -> None:
        self._clock = harbor.driver.clock
        self._is_in_memory = isinstance(harbor.driver, MemoryDriver)
        self.worker = worker
        self._inbox = inbox
        self._limit = limit
        self._error: BaseException | None = None
        self._threads: list[TestThread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_over_limit = False
        self._waiting: list[str] = []
        worker._make_threads = self._make_threads

    def _make_threads(self, limit: int, delivered: Callable[[], None]) -> TestThread:
        threads = TestThread(self._inbox, delivered)
        self._threads.append(threads)
        if isinstance(self._loop, SkippingLoop):
            self._loop.is_busy = lambda: threads.under_way > 0
        return threads

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._drain())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._error = error
        finally:
            self._inbox.put(None)

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        if isinstance(self._clock, TestingClock) and self._is_in_memory:
            self._loop = SkippingLoop(self._clock, self._limit, self._end)
        else:  # threads or sockets of the store work while the loop waits, and waiting takes its time
            self._loop = asyncio.new_event_loop()
        return self._loop

    async def _drain(self) -> None:
        self._task = asyncio.current_task()
        await self.worker.drain()

    def _end(self) -> None:
        """End the drain: handlers wait for too long."""
        run = self.worker._run
        self._waiting = [] if run is None else run.names_of_running()
        self._is_over_limit = True
        assert self._task is not None, "time is skipped while a drain runs"
        self._task.cancel()

    def raise_error(self) -> None:
        for threads in self._threads:
            if threads.raised is not None:
                raise threads.raised
        if self._is_over_limit:
            waiting = ", ".join(self._waiting) or "the worker, for its store"
            raise HandlersWait(
                f"after {self._limit:g} s of skipped time something still waits: {waiting}. Give the task a timeout, "
                "end the outage of the store, or let drain(skip=…) skip more"
            )
        if self._error is not None:
            raise self._error


def _refuse_on_a_loop() -> None:
    if asyncio._get_running_loop() is not None:
        raise ConfigurationError(
            "this test runs in an event loop, which this call would block; use `await drain.async_()`, "
            "`await drain.through_async(…)` or `await run_inline.async_(…)`"
        )


def _refuse_without_asyncio() -> None:
    if asyncio._get_running_loop() is None:
        raise ConfigurationError(
            "a worker needs a running asyncio event loop; with anyio, let the fixture anyio_backend return 'asyncio'"
        )
