"""The parent process: keeps worker processes running, settles the jobs of dead ones, and imports no user code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import Clock, SystemClock, seconds_to_micros
from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import Driver
from taskharbor.drivers.registry import driver_for
from taskharbor.errors import TaskHarborError
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics.cells import Cells
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.telemetry.metrics.serving import MetricsOptions, serving
from taskharbor.telemetry.metrics.totals import Totals
from taskharbor.telemetry.reports import Reports
from taskharbor.worker.exit_status import describe_exit
from taskharbor.worker.supervisor import os_process
from taskharbor.worker.supervisor.channel import (
    Drained,
    Hello,
    LostMessage,
    MessagesLost,
    Ready,
    Retiring,
    StartupError,
    StreamReport,
    SuspectsWaiting,
    Vitals,
    Waiting,
    WorkerConfig,
)
from taskharbor.worker.supervisor.child_main import EXIT_REPLACE
from taskharbor.worker.supervisor.child_process import ChildProcess, StartChild
from taskharbor.worker.supervisor.crash_recovery import ProcessExit
from taskharbor.worker.supervisor.event_forwarder import EventForwarder
from taskharbor.worker.supervisor.health import Health, HealthReports
from taskharbor.worker.supervisor.liveness import LivenessMonitor
from taskharbor.worker.supervisor.slot import ExitKind, WorkerSlot
from taskharbor.worker.supervisor.store_duties import StoreDuties

logger = logging.getLogger("taskharbor.supervisor")

STUCK_SECONDS = 300.0  # without a sign of life, then the supervisor kills and replaces the child
STEADY_SECONDS = 10.0  # an exit after less than this is a quick one
BACKOFF_SECONDS = 0.1  # before the second restart in a row; doubles with each further one
BACKOFF_SECONDS_MAX = 30.0
STOP_SECONDS = 1.5  # that children may take beyond the grace period before they are killed
SETTLE_SECONDS = 0.4  # then, to settle the jobs of the killed ones
LAST_MESSAGES_SECONDS = 1.0  # to read what a child sent before it exited
LOST_MESSAGES_MAX = 10_000  # that later processes learn of
BUSY_SECONDS = 5.0  # after a suspect has run this long, other suspects get another process


class Settings(Struct, frozen=True):
    command: tuple[str, ...]  # starts a child
    processes: int
    config: WorkerConfig
    stuck_seconds: float = STUCK_SECONDS
    health_file: Path | None = None
    health_address: tuple[str, int] | None = None
    metrics: MetricsOptions | None = None


class GaveUp(TaskHarborError):
    """No child has ever started, and a retry would not help; the message is the child's."""

    def __init__(self, startup_error: StartupError) -> None:
        super().__init__(startup_error.message)
        self.code = startup_error.code


class Supervisor:
    """Runs `processes` workers; it reaches the machine and the store only through `start_child` and `open_store`."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        start_child: StartChild | None = None,
        open_store: Callable[[str], Driver] = driver_for,
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.counts: dict[str, int] = {}  # jobs by state, read from the store at the end
        self._settings = settings
        self._children: dict[ChildProcess, None] = {}
        self._suspect_runners: set[asyncio.Task[None]] = set()
        self._clock = clock = clock or SystemClock()
        self._start_child = start_child or partial(os_process.start, settings.command, clock)
        self._forwarder = EventForwarder(self._current_children)
        self._totals = Totals()  # of all children, and of what the supervisor settles for dead ones
        counts = settings.config.metrics or settings.config.rollups
        meter = _counted_in(self._totals) if counts else None
        reports = Reports(self._forwarder, logger, meter)
        self._liveness = LivenessMonitor(settings.stuck_seconds, self._current_children, reports, clock)
        self._config = replace(settings.config, liveness_seconds=self._liveness.interval)
        self._store_duties = StoreDuties(
            self.name,
            self._config,
            self._current_children,
            reports,
            clock=clock,
            open_store=open_store,
        )
        self._health_reports = HealthReports(self.health, settings.health_file, settings.health_address)
        self._stopping = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._any_was_ready = False
        self._lost_messages: dict[str, LostMessage] = {}  # of a stream, by the ids of their jobs

    # -- run and stop --

    def stop(self) -> None:
        """Shut all children down gracefully. A second call ends at once; leases then return the jobs."""
        if self._stopping.is_set():
            self._stop_now.set()
            return
        self._stopping.set()
        self._health_reports.stopping()
        children = counted(len(self._children), "worker process", "worker processes")
        log_line(
            logger,
            logging.INFO,
            "supervisor stops; it waits up to {seconds} s for {children}. A second signal ends it at once",
            {"children": children, "seconds": self._config.grace_seconds + STOP_SECONDS + SETTLE_SECONDS},
        )
        for child in self._current_children():
            child.terminate()

    async def run(self) -> None:
        """Run until `stop()`; when draining, until nothing is runnable."""
        metrics = self._settings.metrics
        async with serving(metrics, self._totals, self._store_duties.read_for_metrics):
            await self._run()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        fields = {"supervisor": self.name, "processes": self._settings.processes}
        log_line(logger, logging.INFO, "supervisor {supervisor} started", fields)
        parts: list[asyncio.Task[Any]] = [
            loop.create_task(part)
            for part in (
                self._work(),
                self._liveness.run(),
                self._enforce_stop_deadline(),
                self._stop_now.wait(),
                *self._health_reports.runs(),
            )
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                _raise_first(part)
        finally:
            for child in self._current_children():
                child.kill()
            for part in (*parts, *self._suspect_runners):
                part.cancel()
            await asyncio.wait([*parts, *self._suspect_runners], timeout=SETTLE_SECONDS)
            for child in self._current_children():
                self._close(child)
            self.counts = await self._store_duties.close(at_once=self._stop_now.is_set())
        log_line(logger, logging.INFO, "supervisor {supervisor} stopped", {"supervisor": self.name})

    async def _work(self) -> None:
        while True:
            async with asyncio.TaskGroup() as group:
                for number in range(self._settings.processes):
                    group.create_task(self._keep_slot_filled(number))
            if not self._suspect_runners:
                return
            # A suspect that failed or enqueued children has left work for the ordinary processes.
            await asyncio.wait(self._suspect_runners)
            if self._stopping.is_set():
                return

    async def _enforce_stop_deadline(self) -> None:
        """Kill the children that outlast the grace period by STOP_SECONDS; their jobs are released."""
        await self._stopping.wait()
        await asyncio.sleep(self._config.grace_seconds + STOP_SECONDS)
        for child in self._current_children():
            child.interrupted = True
            child.kill()
        await asyncio.sleep(SETTLE_SECONDS)

    def _current_children(self) -> Iterator[ChildProcess]:
        return iter(list(self._children))

    # -- health --

    def health(self) -> Health:
        """Healthy while a child works or waits for the store: restarting would not end an outage."""
        if self._stopping.is_set():
            return Health(False, "stopping")
        at_work = [
            child
            for child in self._current_children()
            if child.is_ready
            and not child.has_exited
            and not child.suspects_only
            and not child.retiring.is_set()
            and child.stuck_seconds is None
        ]
        asked = counted(self._settings.processes, "worker process", "worker processes")
        detail = f"{len(at_work)} of {asked} {agreeing(len(at_work), 'is', 'are')} at work"
        waits = any(child.waits_for_store and not child.has_exited for child in self._current_children())
        return Health(bool(at_work) or waits, detail + ("; waiting for the store" if waits else ""))

    # -- one child after another --

    async def _keep_slot_filled(self, number: int) -> None:
        quick_exits = 0
        async with asyncio.TaskGroup() as group:  # waits for retiring children at the end
            slot = WorkerSlot(group, self._start, self._supervise)
            while not self._stopping.is_set():
                begun = self._clock.monotonic()
                was_shared = slot.is_shared
                exit_kind = await slot.run_next_child(self._config_for(number))
                if exit_kind is ExitKind.DONE and self._config.drain:
                    if not was_shared:
                        return
                    # The predecessor's last jobs may leave work that this child could not see before it ended.
                    await slot.wait_for_predecessor()
                if exit_kind in (ExitKind.DONE, ExitKind.REPLACE):
                    continue
                quick_exits = 1 if self._clock.monotonic() - begun >= STEADY_SECONDS else quick_exits + 1
                await self._pause(_backoff_seconds(quick_exits))

    def _config_for(self, slot: int) -> WorkerConfig:
        if self._config.stream is None:
            return self._config
        lost = list(self._lost_messages.values())
        return replace(self._config, member=f"{self.name}-{slot}", lost_messages=lost)

    async def _pause(self, seconds: float) -> None:
        if seconds and not self._stopping.is_set():
            log_line(
                logger,
                logging.WARNING,
                "worker processes exit soon after their start; the next one starts in {restart_in} s",
                {"restart_in": seconds},
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _start(self, config: WorkerConfig) -> ChildProcess | None:
        try:
            child = await self._start_child(config)
        except OSError as error:  # no memory, too many processes: this may pass
            log_line(logger, logging.ERROR, "cannot start a worker process: {error}", {"error": str(error)})
            return None
        self._children[child] = None
        if child.shared_memory.metrics is not None:
            self._totals.add(child.shared_memory.metrics)
        if self._stopping.is_set():  # `stop()` came during the start, and did not see this child
            child.terminate()
        return child

    async def _supervise(self, child: ChildProcess) -> ExitKind:
        """Serve a child from its first message until its whole session is gone and its jobs are settled."""
        listening = asyncio.create_task(self._listen(child))
        status = await child.wait()
        # Its leases are extended until they are settled: no worker gets its jobs while part of its session runs.
        child.kill()
        await child.wait_until_gone()
        await asyncio.wait([listening], timeout=LAST_MESSAGES_SECONDS)
        listening.cancel()
        exit_kind = await self._settle_exit(child, status)
        del self._children[child]
        self._close(child)
        self._store_duties.update_presence()
        if exit_kind is ExitKind.FAILED_TO_START:
            self._give_up_if_none_ever_started(child, status)
        return exit_kind

    def _close(self, child: ChildProcess) -> None:
        if child.shared_memory.metrics is not None:
            self._totals.end(child.shared_memory.metrics)
        child.close()

    async def _listen(self, child: ChildProcess) -> None:
        try:
            async for message in child.channel.messages():
                self._receive(child, message)
        except Exception:
            logger.exception("unexpected message from a worker process; killing and replacing it")
            child.kill()

    def _receive(self, child: ChildProcess, message: object) -> None:
        match message:
            case Hello():
                child.hello = message
                self._store_duties.connect(message)
            case Waiting():
                child.waits_for_store = True
            case Ready(tasks, version):
                child.tasks = None if tasks is None else tuple(tasks)
                child.version = version
                child.is_ready = self._any_was_ready = True
                child.waits_for_store = False
                self._forwarder.forward()
                self._store_duties.update_presence()
            case StreamReport(stream):
                child.stream = stream
                self._store_duties.update_presence()
            case Vitals(vitals):
                child.vitals = vitals  # recorded with the next sign of presence
            case StartupError():
                child.startup_error = message
            case SuspectsWaiting():
                self._start_suspect_runner()
            case Retiring():
                child.retired_idle = message.idle
                child.retiring.set()
            case Drained():
                child.exit_deadline = self._clock.monotonic() + self._config.grace_seconds + STOP_SECONDS
            case _:
                raise AssertionError(f"a child never sends {type(message).__name__}")

    async def _settle_exit(self, child: ChildProcess, status: int) -> ExitKind:
        how = describe_exit(status)
        if child.stuck_seconds is not None:
            how = f"showed no sign of life for {child.stuck_seconds:g} s and was killed"
        recovered = await self._store_duties.settle(
            child, ProcessExit(child.name, how, interrupted=child.interrupted)
        )
        if recovered.suspects:
            self._start_suspect_runner()
        messages = [] if child.interrupted else child.lost_messages(how)
        self._remember_lost(messages)
        was_asked = self._stopping.is_set() or child.retiring.is_set()
        if status == 0 and not recovered.jobs and (was_asked or child.is_ready):
            return ExitKind.DONE
        if self._stopping.is_set() and not child.interrupted and not recovered.jobs:
            return ExitKind.DONE  # our signal ended it before it had installed its handler
        if status == EXIT_REPLACE and not recovered.jobs:
            return ExitKind.IDLE if child.retired_idle else ExitKind.REPLACE
        fields = {
            "worker": child.name,
            "how": how,
            "lost": recovered.lost + len(messages),
            "handed_back": recovered.handed_back,
        }
        if child.interrupted:
            log_line(
                logger, logging.WARNING, "worker process {worker} did not stop in time and was killed", fields
            )
        else:
            log_line(logger, logging.ERROR, "a worker process died: {worker} {how}", fields)
        return ExitKind.DIED if child.is_ready or was_asked else ExitKind.FAILED_TO_START

    def _remember_lost(self, messages: list[LostMessage]) -> None:
        """Let the process that reads these messages again hand them to the store: they may have killed this one."""
        if not messages:
            return
        self._lost_messages.update((each.job, each) for each in messages)
        for job in list(self._lost_messages)[: max(0, len(self._lost_messages) - LOST_MESSAGES_MAX)]:
            del self._lost_messages[job]
        for child in self._current_children():
            child.channel.send(MessagesLost(messages))

    def _give_up_if_none_ever_started(self, child: ChildProcess, status: int) -> None:
        """Raise GaveUp for an error that has kept every child from starting; once one has started, retry."""
        error = child.startup_error
        if error is None and status >= 0:
            error = StartupError(f"a worker process {describe_exit(status)} before it was ready", status or 1)
        if error is None:
            return  # a signal killed it, which may not be its own fault
        if not self._any_was_ready and not self._stopping.is_set():
            raise GaveUp(error)
        log_line(logger, logging.ERROR, "a worker process could not start: {error}", {"error": error.message})

    # -- suspects --

    def _start_suspect_runner(self) -> None:
        """Start a process for suspects, unless there is one that is not busy with a long suspect."""
        if self._stopping.is_set() or len(self._suspect_runners) >= self._settings.processes:
            return
        busy = [child for child in self._current_children() if child.suspects_only and self._is_busy(child)]
        if len(busy) == len(self._suspect_runners):
            runner = asyncio.create_task(self._execute_suspects())
            self._suspect_runners.add(runner)
            runner.add_done_callback(self._suspect_runners.discard)

    def _is_busy(self, child: ChildProcess) -> bool:
        long_ago = self._store_duties.store_now() - seconds_to_micros(BUSY_SECONDS)
        return any(at < long_ago for lease in child.shared_memory.leases() for at in lease.running.values())

    async def _execute_suspects(self) -> None:
        """Run suspects in one process after another. Poison may kill each of them: restart without a pause."""
        config = replace(self._config, suspects_only=True, max_jobs=None)
        failed_starts = 0
        while not self._stopping.is_set():
            child = await self._start(config)
            exit_kind = ExitKind.IDLE if child is None else await self._supervise(child)
            if exit_kind is ExitKind.DONE:
                return
            failed_starts = failed_starts + 1 if exit_kind in (ExitKind.FAILED_TO_START, ExitKind.IDLE) else 0
            await self._pause(_backoff_seconds(failed_starts))


def _counted_in(totals: Totals) -> Meter:
    """Return the supervisor's own meter. It imports no application: a task is declared if a child has counted it."""
    meter = Meter(Cells(), totals.knows)
    totals.add(meter.cells)
    return meter


def _raise_first(part: asyncio.Task[Any]) -> None:
    error = part.exception()
    while isinstance(error, BaseExceptionGroup):  # several children may have failed the same way
        error = error.exceptions[0]
    if error is not None:
        raise error


def _backoff_seconds(quick_exits: int) -> float:
    """Return 0 after the first quick exit, so that the jobs of a killed child start again at once."""
    if quick_exits <= 1:
        return 0.0
    return min(BACKOFF_SECONDS * 2.0 ** min(quick_exits - 2, 20), BACKOFF_SECONDS_MAX)
