"""What the supervisor does in the store: extend leases, settle the jobs of dead children, list its workers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from taskharbor.clock import Clock, seconds_to_micros
from taskharbor.drivers.base import Driver, WorkerRecord
from taskharbor.errors import StoreError, StoreUnavailable, TaskHarborError
from taskharbor.settle_batch import log_bug
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics.store_gauges import StoreReading, read_store
from taskharbor.telemetry.reports import Reports
from taskharbor.worker.pipeline.leases import StoreTime
from taskharbor.worker.supervisor.channel import Hello, WorkerConfig
from taskharbor.worker.supervisor.child_process import ChildProcess
from taskharbor.worker.supervisor.crash_recovery import ProcessExit, RecoveredJobs, settle_orphaned_jobs
from taskharbor.worker.supervisor.lease_keeper import SupervisorLeaseKeeper
from taskharbor.worker.upkeep.presence import Presence
from taskharbor.worker.upkeep.rollups import RollupWriter

logger = logging.getLogger("taskharbor.supervisor")

RETRY_SECONDS_MAX = 2.0
CLOSE_SECONDS = 0.4


class StoreDuties:
    """The supervisor's work in the store, from the moment a child has sent the store's address."""

    def __init__(
        self,
        supervisor: str,
        config: WorkerConfig,
        children: Callable[[], Iterable[ChildProcess]],
        reports: Reports,
        *,
        clock: Clock,
        open_store: Callable[[str], Driver],
    ) -> None:
        self._supervisor = supervisor
        self._config = config
        self._lease = seconds_to_micros(config.lease_seconds)
        self._children = children
        self._reports = reports
        self._clock = clock
        self._time = StoreTime(clock)
        self._open_store = open_store
        self._driver: Driver | None = None
        self._presence: Presence | None = None
        self._rollups: RollupWriter | None = None  # of what the supervisor settles for dead children
        self._parts: list[asyncio.Task[None]] = []

    def connect(self, hello: Hello) -> None:
        """Open the store that the first child names, and begin to extend leases there."""
        if hello.address is None:
            log_line(
                logger,
                logging.WARNING,
                "the store has no URL (Harbor(driver=…)): each worker extends its own leases, and the jobs of a dead "
                "worker wait until its leases expire",
                {"worker": hello.worker},
            )
        elif self._driver is None:
            try:
                driver = self._driver = self._open_store(hello.address)
            except TaskHarborError as error:  # each worker then extends its own leases
                fields = {"error": str(error)}
                log_line(logger, logging.ERROR, "the supervisor cannot open the store: {error}", fields)
                return
            keeper = SupervisorLeaseKeeper(
                driver, lease=self._lease, time=self._time, children=self._children
            )
            presence = self._presence = Presence(driver, self._clock, self._worker_records, first_seconds=0.0)
            meter = self._reports.meter if self._config.rollups else None
            rollups = self._rollups = RollupWriter(driver, self._clock, meter=meter, now=self._time.now)
            parts = (keeper.run(), presence.run(), rollups.run())
            self._parts = [asyncio.create_task(part) for part in parts]

    def store_now(self) -> int:
        """Return the store's time, which children write into shared memory; our own clock may be wrong."""
        return self._time.now()

    async def read_for_metrics(self) -> StoreReading:
        """Read what the store's gauges show."""
        if self._driver is None:
            raise StoreUnavailable("no worker process has named the store yet")
        return await read_store(self._driver)

    # -- presence --

    def update_presence(self) -> None:
        if self._presence is not None:
            self._presence.changed()

    def _worker_records(self) -> list[WorkerRecord]:
        """List the children that do not register themselves in the store."""
        now, wall = self._clock.monotonic(), self._clock.now()
        host, queues = socket.gethostname(), self._config.queues
        return [
            WorkerRecord(
                child.hello.worker,
                host,
                child.pid,
                1 if child.suspects_only else self._config.concurrency,
                wall - seconds_to_micros(now - child.started),
                None if queues is None else tuple(queues),
                self._supervisor,
                tasks=child.tasks,
                lease=self._lease,
                stream=child.stream,
                version=child.version,
                vitals=child.vitals,
            )
            for child in self._children()
            if child.is_ready and not child.has_exited and child.hello and child.hello.address
        ]

    # -- the jobs of dead children --

    async def settle(self, child: ChildProcess, process_exit: ProcessExit) -> RecoveredJobs:
        """Settle a dead child's jobs. Retry during an outage until the leases expire; then any worker may."""
        orphaned = child.shared_memory.orphaned_leases() if child.hello is not None else []
        if not orphaned or self._driver is None:
            return RecoveredJobs()
        leases = [(child.token(lease), lease) for lease in orphaned]
        pause, give_up_at = 0.05, self._clock.monotonic() + self._config.lease_seconds
        while True:
            try:
                return await settle_orphaned_jobs(
                    self._driver, leases, process_exit, lease=self._lease, reports=self._reports
                )
            except StoreError as error:
                fields = {"worker": process_exit.worker, "error": str(error)}
                if self._clock.monotonic() + pause >= give_up_at:
                    what = "could not settle the jobs of the dead worker {worker}; they wait for their leases: {error}"
                    log_line(logger, logging.WARNING, what, fields)
                    return RecoveredJobs()
                what = "could not settle the jobs of the dead worker {worker} yet: {error}"
                log_line(logger, logging.WARNING, what, fields)
            except Exception as error:  # noqa: BLE001 - the supervisor must go on for its other children
                what = "could not settle the jobs of a dead worker; they wait for their leases"
                log_bug(logger, what, error, {"worker": process_exit.worker})
                return RecoveredJobs()
            await self._clock.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    # -- close --

    async def close(self, *, at_once: bool) -> dict[str, int]:
        """Close the store; return the number of jobs in each state, if there is time to ask."""
        for part in self._parts:
            part.cancel()
        counts: dict[str, int] = {}
        if self._driver is not None:
            with suppress(TimeoutError, StoreError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    if not at_once:
                        if self._presence is not None:
                            await self._presence.sign_off()
                        if self._rollups is not None:
                            await self._rollups.stop()
                        counts = {str(state): jobs for state, jobs in (await self._driver.counts()).items()}
                    await self._driver.close()
        return counts
