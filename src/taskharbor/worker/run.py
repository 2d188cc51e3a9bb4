"""`WorkerRun`: one run of a worker. It wires fetcher, executor and committer, and starts and stops them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from taskharbor.clock import MICROS_PER_SECOND, wait_for
from taskharbor.codec import counted
from taskharbor.drivers.base import Claimed, WorkerRecord
from taskharbor.errors import StoreUnavailable, TaskHarborError, UnresponsiveHandler
from taskharbor.own_tasks import own_task, result_of
from taskharbor.telemetry.attempts import Reporter
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics.meter import watch_loop
from taskharbor.worker.handlers.isolation.pool import ProcessPool
from taskharbor.worker.handlers.isolation.running import ProcessRunner
from taskharbor.worker.handlers.outcomes import of_abandoned
from taskharbor.worker.pipeline.cancel_watch import CancelWatch
from taskharbor.worker.pipeline.committer import Committer
from taskharbor.worker.pipeline.dependency_results import Results
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.executor import Executor
from taskharbor.worker.pipeline.fetcher import Fetcher
from taskharbor.worker.pipeline.lease_keeper import BEATS_PER_LEASE, LeaseKeeper
from taskharbor.worker.pipeline.leases import HeldLeases, StoreTime
from taskharbor.worker.pipeline.patient_store import PatientStore
from taskharbor.worker.pipeline.pipeline import Pipeline
from taskharbor.worker.pipeline.recurring import Recurring
from taskharbor.worker.upkeep.colleagues import Colleagues, known_tasks
from taskharbor.worker.upkeep.loop_lag import warn_on_loop_lag
from taskharbor.worker.upkeep.maintenance import Maintenance
from taskharbor.worker.upkeep.parts import Parts
from taskharbor.worker.upkeep.presence import Presence
from taskharbor.worker.upkeep.retirement import Retirement
from taskharbor.worker.upkeep.retrying import Outages
from taskharbor.worker.upkeep.rollups import RollupWriter
from taskharbor.worker.upkeep.unresponsive import UNWIND_SECONDS, UnresponsiveWatch
from taskharbor.worker.upkeep.vitals import LoopLag

if TYPE_CHECKING:
    from taskharbor.worker.worker import Worker

logger = logging.getLogger("taskharbor.worker")

RELEASE_SECONDS = 2.0  # how long a worker that was cancelled tries to release its jobs
STALLED_SECONDS = 1.0  # if no handler begins for this long, jobs that were claimed ahead are handed back
# How long a retiring worker waits before it logs what still runs; each next wait is twice as long.
RETIRING_LOG_SECONDS = 60.0
RETIRING_LOG_SECONDS_MAX = 3600.0
JOBS_LOGGED_MAX = 20
NAMES_LOGGED_MAX = 50


Phase = Literal["starting", "waiting for the store", "at work", "stopping"]


class WorkerRun:
    """One run of a worker and its parts, from the first claim to the last settle."""

    def __init__(self, worker: Worker) -> None:
        driver = worker.harbor.driver
        source = worker._source or driver
        self._worker = worker
        self._clock = driver.clock
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._stop_asked = False  # by `stop`: a second call ends the worker now
        self._has_started = False
        self._ending_now = asyncio.Event()
        self._leases = leases = HeldLeases(worker.name, worker._supervisor_link)
        self._time = StoreTime(self._clock)
        self._started_at = self._time.now()
        self._outages = Outages(self._clock)
        store = PatientStore(source, self._outages)
        self._pipeline = pipeline = Pipeline(
            worker.concurrency, store=store, leases=leases, time=self._time, loop=self.loop
        )
        harbor, clock = worker.harbor, self._clock
        self._meter = worker._meter
        reporter = Reporter(
            worker.name, harbor.events, self._time, tracebacks=worker.log_tracebacks, meter=self._meter
        )
        recurring = Recurring(store, self._time)
        self._lease_keeper = LeaseKeeper(
            pipeline,
            lease=worker.lease,
            clock=clock,
            extended_outside=worker._supervisor_link is not None and worker._supervisor_link.extends_leases,
            reporter=reporter,
        )
        self._cancel_watch = CancelWatch(source, leases=leases, lease_keeper=self._lease_keeper, clock=clock)
        self._executor = self._new_executor(store, reporter, recurring)
        colleagues = Colleagues(driver, clock, harbor, worker.name, self._time)
        self._committer = self._new_committer(reporter, recurring, colleagues)
        self._retirement = Retirement(
            pipeline,
            self._executor,
            max_jobs=worker.max_jobs,
            max_memory_mib=worker.max_memory_mib,
            replacement_policy=worker._replacement_policy,
            clock=clock,
        )
        self._unresponsive = UnresponsiveWatch(
            pipeline, stopping=self._stopping, limit_seconds=worker.unresponsive_seconds, clock=clock
        )
        self._maintenance = Maintenance(
            harbor,
            worker=worker.name,
            clock=clock,
            outages=self._outages,
            reporter=reporter,
            before_collecting=self._lease_keeper.extend_expired,
        )
        self._fetcher = self._new_fetcher(reporter, colleagues)
        self._loop_lag = LoopLag()
        self._presence = Presence(driver, clock, self._who)
        self._rollups = RollupWriter(
            driver,
            clock,
            meter=self._meter if worker.rollups else None,
            now=self._time.now,
            since=None if self._meter is None else dict(self._meter.cells.jobs()),
        )

    def _new_executor(self, store: PatientStore, reporter: Reporter, recurring: Recurring) -> Executor:
        worker, harbor = self._worker, self._worker.harbor
        return Executor(
            self._pipeline,
            clock=self._clock,
            middlewares=harbor.middlewares,
            tracing=harbor.tracing,
            processes=ProcessRunner(ProcessPool(harbor, self._clock, worker.handler_max_jobs), self._clock),
            reporter=reporter,
            lease_keeper=self._lease_keeper,
            recurring=recurring,
            results=Results(store),
            cells=None if worker._supervisor_link is None else worker._supervisor_link.cells,
            takes_interrupts=worker._takes_interrupts,
            make_threads=worker._make_threads,
        )

    def _new_committer(self, reporter: Reporter, recurring: Recurring, colleagues: Colleagues) -> Committer:
        worker = self._worker
        return Committer(
            self._pipeline,
            self._executor,
            worker_policy=worker.retry,
            unrunnable_grace_seconds=worker.unrunnable_grace_seconds,
            max_losses=worker.max_losses,
            recurring=recurring,
            colleagues=colleagues,
            clock=self._clock,
            reporter=reporter,
            code_version=worker.harbor.version,
        )

    def _new_fetcher(self, reporter: Reporter, colleagues: Colleagues) -> Fetcher:
        worker = self._worker
        return Fetcher(
            self._pipeline,
            self._executor,
            queues=worker.queues,
            lease=worker.lease,
            max_losses=worker.max_losses,
            poll_seconds=worker.poll_seconds,
            expected_pace=worker._expected_pace,
            clock=self._clock,
            harbor=worker.harbor,
            report_unreadable=self._maintenance.report_unreadable,
            retirement=self._retirement,
            colleagues=colleagues,
            supervisor_link=worker._supervisor_link,
            reporter=reporter,
        )

    # -- start, work, stop --

    async def apply_lease_update(
        self,
        cancel_requested: Iterable[str],
        paused: Iterable[str],
        holds: Iterable[str],
        refused: Iterable[str],
    ) -> None:
        await self._lease_keeper.apply_lease_update(cancel_requested, paused, holds, refused)

    def stop(self) -> None:
        if self._stop_asked:
            self._ending_now.set()
        self._stop_asked = True
        self._stopping.set()

    def leave(self) -> None:
        self._stopping.set()

    @property
    def phase(self) -> Phase:
        """How far the run has come. Once started, it counts as at work even while the store is away."""
        if self._stopping.is_set():
            return "stopping"
        if self._has_started:
            return "at work"
        return "waiting for the store" if self._outages.is_away else "starting"

    def hand_back(self, unwanted: Callable[[Claimed], bool]) -> None:
        """Hand back the jobs that have not begun and that `unwanted` selects."""
        self._pipeline.hand_back(lambda execution: unwanted(execution.claimed))

    def predecessor_is_gone(self) -> None:
        self._retirement.look()

    async def with_store(self, step: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Repeat a step of the start until the store answers; return False if `stop` came first."""
        stepping = own_task(
            self._outages.retry_until_available(step, "waiting for the store", repeated=StoreUnavailable)
        )
        try:
            await _unless(self._stopping, _ended(stepping))
        finally:
            stepping.end()
            await asyncio.wait([stepping], timeout=UNWIND_SECONDS)
        if stepping.cancelled() or not stepping.done():
            return False
        stepping.result()
        return True

    async def _tidy_up(self) -> None:
        await self._maintenance.collect()
        await self._maintenance.catch_up()
        await self._maintenance.expire()

    async def work(self, until_drained: bool) -> None:
        """Execute jobs until the worker stops, retires or has drained. Only the application can cancel it."""
        self._pipeline.owner = own_task(self._work(until_drained))
        await result_of(self._pipeline.owner)

    async def _work(self, until_drained: bool) -> None:
        if not await self.with_store(self._tidy_up):
            return
        self._has_started = True
        self._log_started()
        if not until_drained:
            await self._presence.sign_on()
        try:
            await self._work_together(until_drained)
        except BaseException:  # the application cancelled it, or a part failed
            await self._leave_nothing_behind()
            raise
        finally:
            await self._executor.close()
            if not self._ending_now.is_set():
                await asyncio.gather(self._presence.sign_off(), self._rollups.stop())
        self._retirement.leave()
        log_line(logger, logging.INFO, "Worker {worker} stopped", {"worker": self._worker.name})

    async def _work_together(self, until_drained: bool) -> None:
        beat_seconds = self._worker.lease / MICROS_PER_SECOND / BEATS_PER_LEASE
        async with Parts() as parts:
            fetching = parts.start(lambda: self._fetcher.run(until_drained=until_drained))
            for part in (
                self._committer.run,
                self._lease_keeper.run,
                self._cancel_watch.run,
                self._maintenance.run,
                self._unresponsive.run,
                self._presence.run,
                self._rollups.run,
                self._retirement.run,
                self._hand_back_stalled,
                lambda: warn_on_loop_lag(self._loop_lag, beat_seconds),
            ):
                parts.start(part)
            if self._meter is not None and self._worker.metrics:
                parts.start(partial(watch_loop, self._meter))
            reasons = [
                parts.start(partial(_until, each)) for each in (self._stopping, self._retirement.is_due)
            ]
            await asyncio.wait([fetching, *reasons], return_when=asyncio.FIRST_COMPLETED)
            fetching.end()
            await self._unless_ended_now(_ended(fetching))
            fetching.end()  # after a second `stop` it does not wait for the store's answer
            if self._retirement.is_due.is_set():
                await self._retire()
            await self._shut_down()

    async def _leave_nothing_behind(self) -> None:
        """Shut down without a grace period, after the parts have ended: interrupt handlers and release their jobs."""
        self._executor.begin_no_more()
        for execution in list(self._pipeline.running):
            execution.interrupt("shutdown")
        await self._all_ended(UNWIND_SECONDS)
        self._abandon_unresponsive()
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._committer.flush()
        except (TimeoutError, TaskHarborError) as error:
            log_line(
                logger,
                logging.WARNING,
                "jobs run again when their leases expire, since they could not be released: {error}",
                {"error": repr(error)},
            )

    async def _hand_back_stalled(self) -> None:
        """Hand back jobs that were claimed ahead when no handler begins, so that other workers can run them."""
        while True:
            begun = self._pipeline.begun
            await self._clock.sleep(STALLED_SECONDS)
            if self._pipeline.claimed and self._pipeline.begun == begun:
                self._fetcher.slow_down()
                self._pipeline.hand_back()

    async def _retire(self) -> None:
        """Hand back what has not begun, and wait until the running handlers end, or until `stop`."""
        self._executor.begin_no_more(is_retiring=True)  # again: the last claim may have brought more
        patience = RETIRING_LOG_SECONDS
        while not await self._all_ended(patience, unless=self._stopping) and not self._stopping.is_set():
            log_line(
                logger,
                logging.INFO,
                "Worker {worker} is retiring and still runs {running}: {jobs}",
                {"worker": self._worker.name, **self._running()},
            )
            patience = min(2 * patience, RETIRING_LOG_SECONDS_MAX)

    async def _shut_down(self) -> None:
        """Hand back what has not begun, let the rest finish within the grace, then interrupt and release it."""
        self._executor.begin_no_more()
        self._log_stopping()
        for execution in self._pipeline.running:
            execution.ask_to_stop("shutdown")
        if await self._all_ended(self._worker.grace_seconds, but_for=self._unresponsive.given_up):
            await self._wait_until_settled()
            return
        if not self._ending_now.is_set():
            log_line(
                logger,
                logging.WARNING,
                "the grace period of {seconds} s is over; interrupting {running}: {jobs}",
                {"seconds": self._worker.grace_seconds, **self._running()},
            )
            for execution in list(self._pipeline.running):
                execution.interrupt("shutdown")
            await self._all_ended(UNWIND_SECONDS)
            self._abandon_unresponsive()
            await self._wait_until_settled()

    async def _wait_until_settled(self) -> None:
        """Wait until all is settled, at most until the leases run out.

        A worker that retires or drains also waits while the leases are extended; a shutdown does not.
        """
        seconds = self._lease_seconds_left()
        while True:
            try:
                await wait_for(
                    self._clock,
                    self._unless_ended_now(_until(self._pipeline.quiet)),
                    seconds + RELEASE_SECONDS,
                )
                return
            except TimeoutError:
                seconds = self._lease_seconds_left()
            if self._stopping.is_set() or not seconds:
                log_line(
                    logger,
                    logging.WARNING,
                    "the store did not settle every job; the rest run again when their leases expire",
                    {},
                )
                return

    def _lease_seconds_left(self) -> float:
        """Return how long the last lease still lasts, as far as this worker and its supervisor know."""
        now = self._time.now()
        left = [lease.expires_at - now for lease in self._leases.all() if not lease.is_over(now)]
        return max(left, default=0) / MICROS_PER_SECOND

    def _abandon_unresponsive(self) -> None:
        """Settle the jobs of handlers that do not end. Those handlers run on, but can commit nothing."""
        for execution in list(self._pipeline.running):
            log_line(
                logger,
                logging.WARNING,
                "Job {job} did not end when interrupted; the worker stops without waiting for its handler",
                execution.fields(),
            )
            outcome = of_abandoned(execution)
            execution.ask_to_stop("lease_lost")
            self._pipeline.end(execution, outcome)

    async def _all_ended(
        self, seconds: float, but_for: Set[Execution] = frozenset(), unless: asyncio.Event | None = None
    ) -> bool:
        async def ended() -> None:
            while not self._pipeline.is_idle_but_for(but_for):
                self._pipeline.left.clear()
                await self._pipeline.left.wait()

        try:
            await wait_for(self._clock, _unless(unless or self._ending_now, ended()), seconds)
        except TimeoutError:
            return False
        return self._pipeline.is_idle

    async def _unless_ended_now(self, step: Coroutine[Any, Any, None]) -> None:
        """Wait for a step, or until the worker must end now."""
        await _unless(self._ending_now, step)

    def raise_if_given_up(self) -> None:
        if self._unresponsive.given_up:
            names = ", ".join(sorted({execution.claimed.task for execution in self._unresponsive.given_up}))
            raise UnresponsiveHandler(
                f"a handler of {names} did not end within {self._worker.unresponsive_seconds:g} s of the request; "
                "this worker has shut down; end its process and start it again"
            )

    def _who(self) -> list[WorkerRecord]:
        worker = self._worker
        if worker._supervisor_link is not None:
            return []  # the supervisor records all its workers at once
        host, pid = socket.gethostname(), os.getpid()
        return [
            WorkerRecord(
                worker.name,
                host,
                pid,
                worker.concurrency,
                self._started_at,
                worker.queues,
                tasks=known_tasks(worker.harbor),
                lease=worker.lease,
                stream=None if worker._stream is None else worker._stream(),
                version=worker.harbor.version,
                vitals=self._loop_lag.vitals(),
            )
        ]

    def record_presence(self) -> None:
        """Record at once what the worker does."""
        self._presence.changed()

    # -- log lines --

    def _log_started(self) -> None:
        worker = self._worker
        tasks = sorted({task.name for task in worker.harbor.tasks.values()})
        fields = {
            "worker": worker.name,
            "queues": "all" if worker.queues is None else _listed(worker.queues),
            "tasks": _listed(tasks) or "none",
            "grace_seconds": worker.grace_seconds,
            "concurrency": worker.concurrency,
        }
        sentence = "Worker {worker} started (queues: {queues}; tasks: {tasks})"
        sentence += "; when stopped, it gives running jobs {grace_seconds} s"
        log_line(logger, logging.INFO, sentence, fields)
        if not tasks:
            log_line(
                logger,
                logging.WARNING,
                "Worker {worker} knows no task of an application: every job but built-in ones is put back. Import the "
                "modules that declare tasks where the Harbor is made, or name them: Harbor(include=[…]), --include",
                {"worker": worker.name},
            )

    def _log_stopping(self) -> None:
        """Log what a stopping worker waits for, and for how long."""
        if self._worker._on_stop is not None:
            self._worker._on_stop()
        if not self._stopping.is_set():
            return  # it drained or retired, so no handler is running
        fields = {"worker": self._worker.name, "seconds": self._worker.grace_seconds, **self._running()}
        sentence = "Worker {worker} stops"
        if self._pipeline.running:
            sentence += "; it waits up to {seconds} s for {running}: {jobs}. A second signal ends it at once"
        log_line(
            logger,
            logging.INFO,
            sentence,
            fields if self._pipeline.running else {"worker": self._worker.name},
        )

    def report_loop_stopped(self) -> None:
        """Log that something stopped the event loop, and which jobs may have done it."""
        log_line(
            logger,
            logging.WARNING,
            "the event loop was stopped, by a handler or a hook; the worker goes on, with {running}: {jobs}",
            self._running(),
        )

    def names_of_running(self) -> list[str]:
        """Return the tasks whose handlers run."""
        return _listed(sorted({each.claimed.task for each in self._pipeline.running}))

    def _running(self) -> dict[str, Any]:
        """Return the running jobs as fields of a log line."""
        running = [each.claimed.id for each in self._pipeline.running]
        return {"running": counted(len(running), "job"), "jobs": _listed(running, JOBS_LOGGED_MAX)}


def _listed(names: Sequence[str], most: int = NAMES_LOGGED_MAX) -> list[str]:
    """Return the first `most` names, and how many more there are."""
    more = len(names) - most
    return [*names[:most], *([f"and {more} more"] if more > 0 else [])]


async def _until(event: asyncio.Event) -> None:
    await event.wait()


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


async def _unless(event: asyncio.Event, step: Coroutine[Any, Any, None]) -> None:
    """Wait for a step, or until the event is set."""
    steps = [own_task(step), own_task(_until(event))]
    try:
        await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in steps:
            each.end()
