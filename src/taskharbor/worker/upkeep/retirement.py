"""Retirement: a worker that has reached a limit claims no more, and ends with its last job.

Retirement has no grace period and interrupts no handler.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from taskharbor.clock import Clock
from taskharbor.codec import counted
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.pipeline.executor import Executor
from taskharbor.worker.pipeline.pipeline import Pipeline
from taskharbor.worker.upkeep.rss import resident_mib

logger = logging.getLogger("taskharbor.worker")

LOOK_SECONDS = 1.0


class ReplacementPolicy(Protocol):
    """Decides whether a worker may retire, and replaces it."""

    may_retire: bool  # False while this worker's predecessor still has jobs

    def retires(self, why: str, *, idle: bool) -> None:
        """Start a replacement: the worker claims no more. `idle` means that it has not begun any job."""

    def leaves(self) -> None:
        """Note that the retiring worker has settled its last job."""


class Retirement:
    """Decides when a worker has reached a limit. Without a limit it never retires."""

    def __init__(
        self,
        pipeline: Pipeline,
        executor: Executor,
        *,
        max_jobs: int | None,
        max_memory_mib: int | None,
        replacement_policy: ReplacementPolicy | None,
        clock: Clock,
    ) -> None:
        self.is_due = asyncio.Event()
        self._max_jobs = max_jobs
        self._max_memory_mib = max_memory_mib
        self._pipeline = pipeline
        self._executor = executor
        self._replacement_policy = replacement_policy
        self._clock = clock
        self._is_waiting_for_predecessor = False

    async def run(self) -> None:
        while self._max_jobs is not None or self._max_memory_mib is not None:
            self.look()
            if self._is_waiting_for_predecessor:
                self._pipeline.room.set()
            await self._clock.sleep(LOOK_SECONDS)

    def jobs_left(self) -> int | None:
        """Return how many more jobs may begin; None for any number, also while it may not retire yet."""
        if self._max_jobs is None:
            return None
        left = self._max_jobs - self._pipeline.begun
        if left > 0:
            return left
        self.look()
        return 0 if self.is_due.is_set() else None

    def look(self) -> None:
        if self.is_due.is_set():
            return
        why = self._limit_reached()
        if why is None:
            return
        if self._replacement_policy is None or self._replacement_policy.may_retire:
            self.is_due.set()
            log_line(
                logger,
                logging.INFO,
                "worker retires: {why}; it claims no more jobs and ends with its last one",
                {"why": why},
            )
            if self._replacement_policy is not None:
                self._replacement_policy.retires(why, idle=not self._pipeline.begun)
            self._executor.begin_no_more(is_retiring=True)
        elif not self._is_waiting_for_predecessor:
            self._is_waiting_for_predecessor = True
            log_line(
                logger,
                logging.WARNING,
                "worker should retire ({why}), but goes on until its predecessor is gone",
                {"why": why},
            )

    def _limit_reached(self) -> str | None:
        """Return the limit that the worker has reached, or None."""
        if self._max_jobs is not None and self._pipeline.begun >= self._max_jobs:
            return f"it has begun {counted(self._max_jobs, 'job')}"
        limit = self._max_memory_mib
        if limit is not None and (size := resident_mib()) > limit:
            return f"it has {size} MiB of memory, more than {limit}"
        return None

    def leave(self) -> None:
        """Report to the replacement policy that the last job is settled."""
        if self.is_due.is_set() and self._replacement_policy is not None:
            self._replacement_policy.leaves()
