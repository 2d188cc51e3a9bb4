"""What the supervisor does in the store, once a child has said where that is."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from taskharbor.clock import Clock, seconds_to_micros
from taskharbor.drivers.base import Driver, WorkerRecord
from taskharbor.errors import StoreError, TaskHarborError
from taskharbor.settle_batch import log_bug
from taskharbor.telemetry.cancellations import Subscribers
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.losses import Losses
from taskharbor.worker.pipeline.leases import StoreTime
from taskharbor.worker.supervisor.channel import Hello, WorkerConfig
from taskharbor.worker.supervisor.child_process import ChildProcess
from taskharbor.worker.supervisor.crash_recovery import ProcessExit, RecoveredJobs, settle_orphaned_jobs
from taskharbor.worker.supervisor.lease_keeper import SupervisorLeaseKeeper
from taskharbor.worker.upkeep.presence import Presence

logger = logging.getLogger("taskharbor.supervisor")

RETRY_SECONDS_MAX = 2.0
CLOSE_SECONDS = 0.4


class StoreDuties:
    """Extends the children's leases, settles what dead ones leave behind, tells who is there."""

    def __init__(
        self,
        supervisor: str,
        orders: WorkerConfig,
        children: Callable[[], Iterable[ChildProcess]],
        subscribers: Subscribers,
        *,
        clock: Clock,
        open_store: Callable[[str], Driver],
    ) -> None:
        self._supervisor = supervisor
        self._orders = orders
        self._lease = seconds_to_micros(orders.lease_seconds)
        self._children = children
        self._losses = Losses(subscribers, logger)
        self._clock = clock
        self._time = StoreTime(clock)
        self._open_store = open_store
        self._driver: Driver | None = None
        self._presence: Presence | None = None
        self._parts: list[asyncio.Task[None]] = []

    def meet(self, hello: Hello) -> None:
        """The first child that says where the jobs are kept lets the heartbeat from outside begin."""
        if hello.address is None:
            log_line(
                logger,
                logging.WARNING,
                "the store has no URL (Harbor(driver=…)): each worker extends its own leases, and what a dead one "
                "leaves behind waits for its lease to run out",
                {"worker": hello.worker},
            )
        elif self._driver is None:
            try:
                driver = self._driver = self._open_store(hello.address)
            except TaskHarborError as error:  # each worker goes on by itself, and extends its own leases
                log_line(
                    logger,
                    logging.ERROR,
                    "the supervisor cannot reach the store: {error}",
                    {"error": str(error)},
                )
                return
            heart = SupervisorLeaseKeeper(driver, lease=self._lease, time=self._time, children=self._children)
            presence = self._presence = Presence(driver, self._clock, self._who)
            self._parts = [asyncio.create_task(part) for part in (heart.run(), presence.run())]

    def store_now(self) -> int:
        """The store's time, as children write it into their pages: our own clock may be wrong."""
        return self._time.now()

    # -- who is there --

    def tell_who_is_there(self) -> None:
        if self._presence is not None:
            self._presence.changed()

    def _who(self) -> list[WorkerRecord]:
        """Every child that the store does not hear of by itself."""
        now, wall = self._clock.monotonic(), self._clock.now()
        host, queues = socket.gethostname(), self._orders.queues
        return [
            WorkerRecord(
                child.hello.worker,
                host,
                child.pid,
                1 if child.suspects_only else self._orders.concurrency,
                wall - seconds_to_micros(now - child.started),
                None if queues is None else tuple(queues),
                self._supervisor,
            )
            for child in self._children()
            if child.is_ready and not child.is_over and child.hello and child.hello.address
        ]

    # -- what the dead leave behind --

    async def settle(self, child: ChildProcess, death: ProcessExit) -> RecoveredJobs:
        """Repeated while the store is away, until the leases have run out: then others collect them."""
        left = child.shared_memory.left_behind() if child.hello is not None else []
        if not left or self._driver is None:
            return RecoveredJobs()
        tokens = [(child.token(held), held) for held in left]
        pause, give_up_at = 0.05, self._clock.monotonic() + self._orders.lease_seconds
        while True:
            try:
                return await settle_orphaned_jobs(
                    self._driver, tokens, death, lease=self._lease, report=self._losses.tell
                )
            except StoreError as error:
                fields = {"worker": death.worker, "error": str(error)}
                if self._clock.monotonic() + pause >= give_up_at:
                    log_line(
                        logger,
                        logging.WARNING,
                        "the jobs of {worker}, which died, are left to their leases: {error}",
                        fields,
                    )
                    return RecoveredJobs()
                log_line(
                    logger,
                    logging.WARNING,
                    "the jobs of {worker}, which died, cannot be settled yet: {error}",
                    fields,
                )
            except Exception as error:  # noqa: BLE001 - a supervisor goes on for its other children
                what = "the jobs of a dead worker could not be settled and are left to their leases"
                log_bug(logger, what, error, {"worker": death.worker})
                return RecoveredJobs()
            await self._clock.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    # -- the end --

    async def close(self, *, at_once: bool) -> dict[str, int]:
        """Let go of the store; with how many jobs stand in each state, if there is the time to ask."""
        for part in self._parts:
            part.cancel()
        counts: dict[str, int] = {}
        if self._driver is not None:
            with suppress(TimeoutError, StoreError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    if not at_once:
                        if self._presence is not None:
                            await self._presence.sign_off()
                        counts = {str(state): jobs for state, jobs in (await self._driver.counts()).items()}
                    await self._driver.close()
        return counts
