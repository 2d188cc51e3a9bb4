"""`Worker`: fetcher → executor → committer, with a heartbeat, in one process."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable, Set
from contextlib import AsyncExitStack
from typing import Any, Literal

from taskharbor import presets
from taskharbor.calling import fastest_loop
from taskharbor.client.harbor import Harbor
from taskharbor.client.options import checked_timeout
from taskharbor.clock import MICROS_PER_SECOND, check_seconds, seconds_to_micros, wait_for
from taskharbor.codec import checked_name, shorten
from taskharbor.drivers.base import Claimed, WorkerRecord
from taskharbor.errors import ConfigurationError, StubbornHandler, TaskHarborError
from taskharbor.job import Progress
from taskharbor.locating import refuse_while_importing
from taskharbor.outcome import HandedBack
from taskharbor.policy import DEFAULT_MAX_LOSSES, UNFIT_GRACE_SECONDS
from taskharbor.retry import RetryPolicy
from taskharbor.worker.committer import Committer
from taskharbor.worker.endings import of_abandoned
from taskharbor.worker.execution import Execution, Interrupt
from taskharbor.worker.executor import Executor
from taskharbor.worker.fetcher import Fetcher
from taskharbor.worker.heartbeat import Heart
from taskharbor.worker.isolation.pool import ProcessPool, refuse_unreachable_hooks
from taskharbor.worker.isolation.running import ProcessRunner
from taskharbor.worker.live import LiveLease, LiveLeases, StoreTime
from taskharbor.worker.maintenance import Maintenance
from taskharbor.worker.oversight import Oversight
from taskharbor.worker.presence import Presence
from taskharbor.worker.report import Reporter
from taskharbor.worker.results import Results
from taskharbor.worker.stubborn import StubbornWatch

logger = logging.getLogger("taskharbor.worker")

CONCURRENCY_MAX = 10_000
STUBBORN_SECONDS = 1.0  # how long a handler may take to end after it was interrupted at shutdown
RELEASE_SECONDS = 2.0  # how long a worker that was torn down tries to release what it had
STALLED_SECONDS = 1.0  # what was claimed ahead and sees no begin for so long is handed back
LEASE_SECONDS_MIN = 0.1
MAX_LOSSES_MAX = 100  # history is read as far back as this needs
HANDLER_JOBS_MAX = 1_000_000_000
EVENTS_SECONDS = 2.0


class Worker:
    """Executes the jobs of some queues, or of all.

    `retry` is the policy for jobs that have none of their own, and caps everybody's limit with its
    `max_attempts` (0 lifts the cap); None means that the first failure is the last.

    `stubborn_seconds` ends the worker, with `StubbornHandler`, when a handler in a thread has not ended so long
    after it timed out or was cancelled: only the end of the process ends such a thread. `handler_max_jobs`
    replaces a process of `isolation="process"` handlers after so many jobs.
    """

    _oversight: Oversight | None = None  # a supervisor in another process

    def __init__(
        self,
        harbor: Harbor,
        queues: Iterable[str] | None = None,
        concurrency: int = 100,
        lease_seconds: float = 30.0,
        retry: RetryPolicy | None = presets.DEFAULT,
        grace_seconds: float = 30.0,
        *,
        max_losses: int = DEFAULT_MAX_LOSSES,
        unfit_grace_seconds: float = UNFIT_GRACE_SECONDS,
        poll_seconds: float = 5.0,
        stubborn_seconds: float | None = None,
        handler_max_jobs: int | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(harbor, Harbor):
            raise ConfigurationError(
                f"Worker takes a Harbor, not {shorten(harbor)}; for example Worker(Harbor())"
            )
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise ConfigurationError(f"retry must be a RetryPolicy or None, not {shorten(retry)}")
        self.harbor = harbor
        self.queues = _checked_queues(queues)
        self.concurrency = _checked_count("concurrency", concurrency, CONCURRENCY_MAX)
        self.lease = seconds_to_micros(_checked_lease(lease_seconds))
        self.grace_seconds = check_seconds(grace_seconds, "grace_seconds")
        self.retry = retry
        self.max_losses = _checked_count("max_losses", max_losses, MAX_LOSSES_MAX)
        self.unfit_grace_seconds = check_seconds(unfit_grace_seconds, "unfit_grace_seconds")
        self.poll_seconds = checked_timeout(poll_seconds, "poll_seconds")
        self.stubborn_seconds = (
            None if stubborn_seconds is None else checked_timeout(stubborn_seconds, "stubborn_seconds")
        )
        self.handler_max_jobs = (
            None
            if handler_max_jobs is None
            else _checked_count("handler_max_jobs", handler_max_jobs, HANDLER_JOBS_MAX)
        )
        self.name = (
            checked_name("worker", name)
            if name is not None
            else f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        )
        self._shift: _Shift | None = None
        self._background: asyncio.Task[None] | None = None

    # -- running --

    async def run(self) -> None:
        """Execute jobs until `stop()`."""
        await self._work(until_drained=False)

    async def drain(self) -> None:
        """Execute jobs until nothing is runnable now, then return: for tests, scripts and cron."""
        await self._work(until_drained=True)

    def run_sync(self) -> None:
        """`run()` with a loop of its own; SIGTERM and SIGINT shut down gracefully, a second one ends now."""
        run_with_signals(self.run, self)

    def drain_sync(self) -> None:
        """`drain()` with a loop of its own, signals as in `run_sync`."""
        run_with_signals(self.drain, self)

    def stop(self) -> None:
        """Shut down gracefully; called again, end now and leave the rest to the leases. From any thread."""
        if self._shift is not None:
            self._shift.loop.call_soon_threadsafe(self._shift.stop)

    def _leave(self) -> None:
        """Shut down gracefully for a reason of its own; whoever then says `stop` says it for the first time."""
        if self._shift is not None:
            self._shift.leave()

    async def __aenter__(self) -> Worker:
        started = asyncio.Event()
        self._background = asyncio.get_running_loop().create_task(self._work(started=started))
        waiting = asyncio.ensure_future(started.wait())
        await asyncio.wait([waiting, self._background], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._background.done():
            self._background.result()
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        self.stop()
        if self._background is not None:
            await self._background
        return False

    async def _heard(
        self, cancel_requested: Iterable[str], paused: Iterable[str], refused: Iterable[str]
    ) -> None:
        """From the supervisor, which extends our leases."""
        if self._shift is not None:
            await self._shift.heard(cancel_requested, paused, refused)

    @property
    def _begun(self) -> int:
        return 0 if self._shift is None else self._shift.begun

    async def _work(self, *, until_drained: bool = False, started: asyncio.Event | None = None) -> None:
        refuse_while_importing("a worker was started")
        refuse_unreachable_hooks(self.harbor)
        if self._shift is not None:
            raise ConfigurationError("this worker is running already; make another Worker for a second run")
        self._shift = _Shift(self)  # first of all: from here on `stop` is heard
        try:
            await self.harbor.driver.open_for_work()
            await self.harbor.schedules._reconcile()
            for hook in self.harbor.start_hooks:
                await _call_hook(hook)
            if started is not None:
                started.set()
            await self._shift.work(until_drained)
            self._shift.raise_if_given_up()
        finally:
            self._shift = None
            async with AsyncExitStack() as closing:  # in reverse, and one that fails does not keep the others
                closing.push_async_callback(self.harbor.events.drain, EVENTS_SECONDS)
                for hook in self.harbor.stop_hooks:
                    closing.push_async_callback(_call_hook, hook)


class _Shift:
    """One run of a worker: its parts, wired up, from the first claim to the last settle."""

    def __init__(self, worker: Worker) -> None:
        harbor = worker.harbor
        driver = harbor.driver
        clock = driver.clock
        self._worker = worker
        self._clock = clock
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._was_told = False  # from outside, to stop
        self._ending_now = asyncio.Event()
        self._ended = asyncio.Event()  # set whenever an execution has ended
        oversight = worker._oversight
        self._leases = LiveLeases(worker.name, oversight)
        self._time = time = StoreTime(clock)
        self._started_at = time.now()
        reporter = Reporter(worker.name, harbor.events, time)
        self._committer = Committer(
            driver,
            worker_policy=worker.retry,
            unfit_grace_seconds=worker.unfit_grace_seconds,
            max_losses=worker.max_losses,
            leases=self._leases,
            time=time,
            clock=clock,
            reporter=reporter,
            is_busy=lambda: bool(self._executor.buffer),
            on_quiet=self._nudge_fetcher,
        )
        self._heart = Heart(
            driver,
            lease=worker.lease,
            leases=self._leases,
            committer=self._committer,
            time=time,
            clock=clock,
            hand_back=self._hand_back,
            extended_outside=oversight is not None,
        )
        self._executor = Executor(
            worker.concurrency,
            clock=clock,
            time=time,
            middlewares=harbor.middlewares,
            processes=ProcessRunner(ProcessPool(harbor, clock, worker.handler_max_jobs), clock),
            begin=reporter.began if reporter.wants_begins else None,
            mark_at_most_once=self._heart.mark_at_most_once,
            has_begun=self._committer.has_begun,
            results=Results(driver, clock),
            finish=self._finish,
            drop=self._drop,
            low=self._low,
            is_over=self._leases.is_over,
            cells=None if oversight is None else oversight.cells,
        )
        self._fetcher = Fetcher(
            driver,
            queues=worker.queues,
            lease=worker.lease,
            poll_seconds=worker.poll_seconds,
            leases=self._leases,
            executor=self._executor,
            committer=self._committer,
            time=time,
            clock=clock,
            make=self._make,
            oversight=oversight,
        )
        self._given_up: set[Execution] = set()  # handlers that this worker ends for
        self._stubborn = StubbornWatch(
            lambda: (
                () if self._stopping.is_set() else self._executor.running
            ),  # a shutdown has its own limits
            limit_seconds=worker.stubborn_seconds,
            clock=clock,
            give_up=self._give_up,
        )
        self._maintenance = Maintenance(
            harbor,
            worker=worker.name,
            max_losses=worker.max_losses,
            clock=clock,
            reporter=reporter,
            before_collecting=self._heart.outlive_expired,
        )
        self._presence = Presence(driver, clock, self._who)

    # -- the life of a shift --

    @property
    def begun(self) -> int:
        return self._executor.begun

    async def heard(
        self, cancel_requested: Iterable[str], paused: Iterable[str], refused: Iterable[str]
    ) -> None:
        await self._heart.heard(cancel_requested, paused, refused)

    def stop(self) -> None:
        if self._was_told:
            self._ending_now.set()
        self._was_told = True
        self._stopping.set()

    def leave(self) -> None:
        self._stopping.set()

    async def work(self, until_drained: bool) -> None:
        await self._maintenance.collect()
        await self._maintenance.expire()
        logger.info("worker started", extra={"fields": self._about()})
        try:
            await self._work_together(until_drained)
        except BaseException:  # cancelled from outside, or a part of it failed
            await self._leave_nothing_behind()
            raise
        finally:
            await self._executor.close()
            if not self._ending_now.is_set():
                await self._presence.sign_off()
        logger.info("worker stopped", extra={"fields": self._about()})

    async def _work_together(self, until_drained: bool) -> None:
        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(self._fetcher.run(until_drained=until_drained))
            others = [
                group.create_task(part)
                for part in (
                    self._committer.run(),
                    self._heart.run(),
                    self._maintenance.run(),
                    self._stubborn.run(),
                    self._presence.run(),
                    self._hand_back_the_stalled(),
                )
            ]
            stopping = group.create_task(self._stopping.wait())
            await asyncio.wait([fetching, stopping], return_when=asyncio.FIRST_COMPLETED)
            fetching.cancel()
            await self._unless_ended_now(_ended(fetching))
            fetching.cancel()  # no longer waiting for the store's answer, if an end is wanted now
            await self._shut_down()
            for part in (stopping, *others):
                part.cancel()

    async def _leave_nothing_behind(self) -> None:
        """Shut down without grace and without the parts: what was claimed is released, for a moment's patience."""
        for execution in self._executor.begin_no_more():
            self._committer.put(execution, HandedBack())
        for execution in list(self._executor.running):
            execution.interrupt(Interrupt.SHUTDOWN)
        await self._all_ended(STUBBORN_SECONDS)
        self._abandon_the_stubborn()
        try:
            await asyncio.wait_for(self._committer.flush(), RELEASE_SECONDS)
        except (TimeoutError, TaskHarborError) as error:
            logger.warning("jobs are left to their leases", extra={"fields": {"error": repr(error)}})

    async def _hand_back_the_stalled(self) -> None:
        """Jobs were claimed ahead because handlers were quick. When they are not any more, others may have them."""
        while True:
            begun = self._executor.begun
            await self._clock.sleep(STALLED_SECONDS)
            if self._executor.buffer and self._executor.begun == begun:
                self._fetcher.slow_down()
                self._hand_back(lambda execution: True)

    async def _shut_down(self) -> None:
        """Hand back what has not begun, let the rest finish within the grace, then interrupt and release it."""
        for execution in self._executor.begin_no_more():
            self._committer.put(execution, HandedBack())
        for execution in self._executor.running:
            execution.mark_cancelled()
        if await self._all_ended(self._worker.grace_seconds, but_for=self._given_up):
            await self._settled_as_far_as_can_be()
            return
        if not self._ending_now.is_set():
            for execution in list(self._executor.running):
                execution.interrupt(Interrupt.SHUTDOWN)
            await self._all_ended(STUBBORN_SECONDS)
            self._abandon_the_stubborn()
            await self._settled_as_far_as_can_be()

    async def _settled_as_far_as_can_be(self) -> None:
        """While the store is away there is no use in waiting for longer than the leases last."""
        expiries = [lease.expires_at for lease in self._leases.all()]
        seconds = max([0.0, *((expiry - self._time.now()) / MICROS_PER_SECOND for expiry in expiries)])
        try:
            await wait_for(
                self._clock, self._unless_ended_now(self._committer.quiet()), seconds + RELEASE_SECONDS
            )
        except TimeoutError:
            logger.warning(
                "the store is away: jobs are left to their leases", extra={"fields": self._about()}
            )

    def _abandon_the_stubborn(self) -> None:
        """Handlers that do not end are left behind: their jobs are settled, and they can commit nothing."""
        for execution in list(self._executor.running):
            logger.warning("a handler did not end and is left behind", extra={"fields": execution.fields()})
            outcome = of_abandoned(execution)
            execution.interrupted = Interrupt.LEASE_LOST
            self._committer.put(execution, outcome)

    async def _all_ended(self, seconds: float, but_for: Set[Execution] = frozenset()) -> bool:
        async def ended() -> None:
            while not self._executor.is_idle and not self._executor.is_idle_but_for(but_for):
                self._ended.clear()
                await self._ended.wait()

        try:
            await wait_for(self._clock, self._unless_ended_now(ended()), seconds)
        except TimeoutError:
            return False
        return self._executor.is_idle

    async def _unless_ended_now(self, step: Coroutine[Any, Any, None]) -> None:
        """Wait for a step, but not once somebody wants an end now."""
        steps = [asyncio.ensure_future(step), asyncio.ensure_future(self._ending_now.wait())]
        try:
            await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in steps:
                each.cancel()

    def _give_up(self, execution: Execution) -> None:
        """Its thread cannot be ended without the process: shut down, so that the process can end."""
        if execution in self._given_up:
            return
        self._given_up.add(execution)
        limit = {"stubborn_seconds": self._worker.stubborn_seconds}
        logger.error(
            "a handler does not end; this worker shuts down so that its process can be replaced",
            extra={"fields": execution.fields() | limit},
        )
        self._stopping.set()
        self._ended.set()

    def raise_if_given_up(self) -> None:
        if self._given_up:
            names = ", ".join(sorted({execution.claimed.task for execution in self._given_up}))
            raise StubbornHandler(
                f"a handler of {names} did not end within {self._worker.stubborn_seconds:g} s of being told to; "
                "this worker has shut down, and its process should end and be started again"
            )

    # -- what passes between the parts --

    def _make(self, claimed: Claimed, lease: LiveLease) -> Execution:
        return Execution(claimed, lease, self._worker.harbor, self._report_progress, self._time)

    def _finish(self, execution: Execution, outcome: Any) -> None:
        self._committer.put(execution, outcome)
        self._ended.set()

    def _drop(self, execution: Execution) -> None:
        """Its lease is lost: nothing to settle."""
        self._leases.settled(execution)
        self._low()

    def _nudge_fetcher(self) -> None:
        self._fetcher.nudge()

    def _low(self) -> None:
        self._fetcher.nudge()
        self._ended.set()

    def _hand_back(self, unwanted: Callable[[Execution], bool]) -> None:
        for execution in self._executor.take_back(unwanted):
            self._committer.put(execution, HandedBack())

    def _report_progress(self, execution: Execution, progress: Progress) -> None:
        # Handlers in threads report as well.
        self.loop.call_soon_threadsafe(self._committer.note, execution, progress)

    def _who(self) -> list[WorkerRecord]:
        worker = self._worker
        if worker._oversight is not None:
            return []  # the supervisor tells of all its workers at once
        host, pid = socket.gethostname(), os.getpid()
        return [WorkerRecord(worker.name, host, pid, worker.concurrency, self._started_at, worker.queues)]

    def _about(self) -> dict[str, Any]:
        queues = self._worker.queues
        return {
            "worker": self._worker.name,
            "queues": "all" if queues is None else ",".join(queues),
            "concurrency": self._worker.concurrency,
        }


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])


def run_with_signals(main: Callable[[], Coroutine[Any, Any, None]], worker: Worker) -> None:
    """A loop of its own for a worker; SIGTERM and SIGINT stop it."""

    async def with_signals() -> None:
        loop = asyncio.get_running_loop()
        installed = []
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, worker.stop)
                installed.append(number)
            except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
                logger.debug("signals are left alone: not the main thread")
        try:
            await main()
        finally:
            for number in installed:
                loop.remove_signal_handler(number)

    loop = fastest_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(with_signals())
    finally:
        # Not asyncio.Runner: it would wait for ever for a handler that does not let itself be cancelled.
        leftover = asyncio.all_tasks(loop)
        for task in leftover:
            task.cancel()
        if leftover:
            loop.run_until_complete(asyncio.wait(leftover, timeout=STUBBORN_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


async def _call_hook(hook: Callable[[], Any]) -> None:
    answer = hook()
    if inspect.isawaitable(answer):
        await answer


def _checked_queues(queues: Iterable[str] | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    if isinstance(queues, str):
        raise ConfigurationError(
            f'queues must be a list of names such as ["mail"], not the string {queues!r}'
        )
    names = tuple(checked_name("queue", name) for name in queues)
    if not names:
        raise ConfigurationError("queues is empty; name at least one, or leave it out to serve every queue")
    return names


def _checked_lease(lease_seconds: float) -> float:
    if check_seconds(lease_seconds, "lease_seconds") < LEASE_SECONDS_MIN:
        raise ConfigurationError(
            f"lease_seconds must be {LEASE_SECONDS_MIN:g} or more, not {shorten(lease_seconds)}: "
            "a heartbeat has to arrive within it"
        )
    return lease_seconds


def _checked_count(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigurationError(f"{name} must be a whole number from 1 to {most}, not {shorten(value)}")
    return value
