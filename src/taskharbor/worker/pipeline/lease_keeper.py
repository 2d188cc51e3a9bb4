"""The heartbeat: extends every live lease, and learns of cancel requests and paused queues."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from taskharbor.clock import MICROS_PER_SECOND, Clock
from taskharbor.drivers.base import Extended, Extension, Heartbeat, SettleAnswer
from taskharbor.errors import StoreError
from taskharbor.telemetry.attempts import Reporter
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.leases import HeldLease
from taskharbor.worker.pipeline.pipeline import Pipeline

logger = logging.getLogger("taskharbor.worker")

BEATS_PER_LEASE = 3
MARK_TRIES = 3
MARK_PAUSE_SECONDS = 0.1
_COMPLAINT = "the store did not take a heartbeat"


class LeaseKeeper:
    def __init__(
        self,
        pipeline: Pipeline,
        *,
        lease: int,
        clock: Clock,
        reporter: Reporter,
        extended_outside: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._driver = pipeline.store.driver
        self._outages = pipeline.store.outages
        self._lease = lease
        self._leases = pipeline.leases
        self._time = pipeline.time
        self._clock = clock
        self._extended_outside = extended_outside
        self._meter = reporter.meter

    async def run(self) -> None:
        beat_seconds = self._lease / MICROS_PER_SECOND / BEATS_PER_LEASE
        if self._extended_outside:
            # A look is cheap, and must notice in time that the supervisor does not extend.
            beat_seconds /= 2
        pause = beat_seconds
        while True:
            await self._clock.sleep(pause)
            try:
                await self.beat()
                self._outages.answered(_COMPLAINT)
                pause = beat_seconds
            except StoreError as error:
                self._outages.unanswered(_COMPLAINT, error)
                pause = beat_seconds / 4

    async def beat(self) -> None:
        await self._extend(self._due())

    def _due(self) -> list[HeldLease]:
        """Return all leases; with a supervisor, only those that it has let run down to half their time."""
        leases = self._leases.all()
        if not self._extended_outside:
            return leases
        for lease in leases:
            lease.refresh()
        half_from_now = self._time.now() + self._lease // 2
        return [lease for lease in leases if lease.expires_at < half_from_now]

    async def _extend(self, leases: list[HeldLease]) -> None:
        if not leases:
            return
        asked_at = self._time.asking()
        heartbeat = await self._driver.extend([self._extension(lease) for lease in leases])
        self._time.learn(heartbeat.now, asked_at)
        for lease, extended in zip(leases, heartbeat.leases, strict=True):
            self._heed(lease, extended)
        self._heed_paused(heartbeat.paused)
        self._pipeline.heed_holds(heartbeat.holds)

    async def apply_lease_update(
        self,
        cancel_requested: Iterable[str],
        paused: Iterable[str],
        holds: Iterable[str],
        refused: Iterable[str],
    ) -> None:
        """Apply what the store answered the supervisor: jobs to cancel, paused queues, holds, refused leases."""
        leases = {lease.token: lease for lease in self._leases.all()}
        for job_id in cancel_requested:
            for lease in leases.values():
                self._heed_cancel(lease, job_id)
        self._heed_paused(frozenset(paused))
        self._pipeline.heed_holds(frozenset(holds))
        # Only the store knows whether they are lost or were settled a moment ago.
        await self._extend([leases[token] for token in refused if token in leases])

    def heed_cancels(self, jobs: Mapping[str, Iterable[str]]) -> None:
        """Interrupt jobs with a cancel request: their ids, by the token of their lease."""
        for lease in self._leases.all():
            for job_id in jobs.get(lease.token, ()):
                self._heed_cancel(lease, job_id)

    def _heed_paused(self, paused: frozenset[str]) -> None:
        if paused:
            self._pipeline.hand_back(lambda execution: execution.claimed.queue in paused)

    async def mark_at_most_once(self, execution: Execution) -> bool:
        """Write into the lease that this job is at_most_once, before it begins; False if the lease is lost."""
        lease = execution.lease
        extension = self._extension(lease, at_most_once=(execution.claimed.id,))
        for _ in range(MARK_TRIES):
            try:
                heartbeat: Heartbeat = await self._driver.extend([extension])
            except StoreError as error:
                log_line(
                    logger,
                    logging.WARNING,
                    "could not mark a job as at_most_once in its lease: {error}",
                    {"error": str(error)},
                )
                await self._clock.sleep(MARK_PAUSE_SECONDS)
                continue
            [extended] = heartbeat.leases
            self._heed(lease, extended)
            return extended.answer is SettleAnswer.DONE
        return False

    def _extension(self, lease: HeldLease, at_most_once: tuple[str, ...] = ()) -> Extension:
        beat_ago = self._time.now() - self._lease // BEATS_PER_LEASE
        running = tuple(
            (job_id, execution.started_at)
            for job_id, execution in lease.executions.items()
            if execution.started_at is not None and execution.started_at <= beat_ago
        )
        return Extension(lease.token, self._lease, running, at_most_once)

    def _heed(self, lease: HeldLease, extended: Extended) -> None:
        if extended.answer is SettleAnswer.DONE:
            lease.expires_at = extended.expires_at
            for job_id in extended.cancel_requested:
                self._heed_cancel(lease, job_id)
        elif not all(execution.has_ended for execution in lease.executions.values()):
            self._lose(lease)
        # Otherwise its last jobs are being settled, most likely as this was asked: the answer to that decides.

    def _heed_cancel(self, lease: HeldLease, job_id: str) -> None:
        execution = lease.executions.get(job_id)
        if execution is not None:
            execution.interrupt("cancel")

    def _lose(self, lease: HeldLease) -> None:
        """Interrupt the handlers under a lost lease: they can commit nothing."""
        log_line(logger, logging.WARNING, "a lease expired before it was extended", {"lease": lease.token})
        if self._meter is not None:
            self._meter.extension_refused()
        self._leases.forget(lease)
        for execution in list(lease.executions.values()):
            execution.interrupt("lease_lost")

    async def extend_expired(self) -> None:
        """Try to extend this worker's own expired leases before it collects expired leases.

        The store refuses, and so learns that this worker is alive: it does not count a loss against their jobs.
        """
        now = self._time.now()
        await self._extend([lease for lease in self._leases.all() if lease.is_over(now)])
