"""Extend the leases of all children from outside, even while a handler blocks its process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Driver, Extension, SettleAnswer
from taskharbor.errors import StoreError
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.pipeline.lease_keeper import BEATS_PER_LEASE
from taskharbor.worker.pipeline.leases import StoreTime
from taskharbor.worker.supervisor.channel import LeaseUpdate
from taskharbor.worker.supervisor.child_process import ChildProcess
from taskharbor.worker.supervisor.shared_memory import PublishedLease

logger = logging.getLogger("taskharbor.supervisor")


class SupervisorLeaseKeeper:
    def __init__(
        self, driver: Driver, *, lease: int, time: StoreTime, children: Callable[[], Iterable[ChildProcess]]
    ) -> None:
        self._driver = driver
        self._lease = lease
        self._children = children
        self._time = time

    async def run(self) -> None:
        beat_seconds = self._lease / MICROS_PER_SECOND / BEATS_PER_LEASE
        while True:
            pause = beat_seconds
            try:
                await self.beat()
            except StoreError as error:
                log_line(
                    logger,
                    logging.WARNING,
                    "could not extend the leases: {error}",
                    {"error": str(error)},
                )
                pause = beat_seconds / 4
            except Exception:  # a bug here must not end the heartbeat of every child
                logger.exception("a heartbeat failed")
                pause = beat_seconds / 4
            await asyncio.sleep(pause)

    async def beat(self) -> None:
        """Extend every published lease in one round trip; in none if there is no lease."""
        leases = [
            (child, lease)
            for child in self._children()
            if child.hello is not None and child.hello.address is not None
            for lease in child.shared_memory.leases()
        ]
        if not leases:
            return
        asked_at = self._time.asking()
        heartbeat = await self._driver.extend([self._extension(child, lease) for child, lease in leases])
        self._time.learn(heartbeat.now, asked_at)
        flags = {"paused": sorted(heartbeat.paused), "holds": sorted(heartbeat.holds)}
        updates = {child: LeaseUpdate(**flags) for child, _ in leases}
        for (child, lease), extended in zip(leases, heartbeat.leases, strict=True):
            if extended.answer is SettleAnswer.DONE:
                child.shared_memory.extended(lease, extended.expires_at)
                updates[child].cancel_requested += extended.cancel_requested
            else:
                updates[child].refused.append(extended.token)
        for child, update in updates.items():
            if update.cancel_requested or update.paused or update.holds or update.refused:
                child.channel.send(update)

    def _extension(self, child: ChildProcess, lease: PublishedLease) -> Extension:
        beat_ago = self._time.now() - self._lease // BEATS_PER_LEASE
        running = tuple((job_id, at) for job_id, at in lease.running.items() if at <= beat_ago)
        return Extension(child.token(lease), self._lease, running)
