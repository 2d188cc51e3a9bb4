"""Retirement: a worker that has done enough claims no more, and ends with the last of its jobs.

Retirement is never rushed and has no grace period: its handlers end by themselves.
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
    """Replaces workers that retire."""

    may_retire: bool  # False while this worker's predecessor still has jobs

    def retires(self, why: str, *, idle: bool) -> None:
        """The worker claims no more; idle if it has not begun any job."""

    def leaves(self) -> None:
        """A worker that retires has settled its last job."""


class Retirement:
    """Whether a worker has done enough. Without a limit it never has."""

    def __init__(
        self,
        pipeline: Pipeline,
        executor: Executor,
        *,
        max_jobs: int | None,
        max_memory_mib: int | None,
        succession: ReplacementPolicy | None,
        clock: Clock,
    ) -> None:
        self.is_due = asyncio.Event()
        self._max_jobs = max_jobs
        self._max_memory_mib = max_memory_mib
        self._pipeline = pipeline
        self._executor = executor
        self._succession = succession
        self._clock = clock
        self._told_to_stay = False

    async def run(self) -> None:
        while self._max_jobs is not None or self._max_memory_mib is not None:
            self.look()
            if self._told_to_stay:
                self._pipeline.room.set()
            await self._clock.sleep(LOOK_SECONDS)

    def jobs_left(self) -> int | None:
        """How many more may begin; None for any number: also beyond the limit, while it may not retire."""
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
        why = self._enough()
        if why is None:
            return
        if self._succession is None or self._succession.may_retire:
            self.is_due.set()
            log_line(
                logger,
                logging.INFO,
                "worker retires: {why}; it claims no more, and ends with its last job",
                {"why": why},
            )
            if self._succession is not None:
                self._succession.retires(why, idle=not self._pipeline.begun)
            self._executor.begin_no_more(is_retiring=True)
        elif not self._told_to_stay:
            self._told_to_stay = True
            log_line(
                logger,
                logging.WARNING,
                "worker has done enough ({why}), and goes on until its predecessor is gone",
                {"why": why},
            )

    def _enough(self) -> str | None:
        """Why it is enough, if it is."""
        if self._max_jobs is not None and self._pipeline.begun >= self._max_jobs:
            return f"it has begun {counted(self._max_jobs, 'job')}"
        limit = self._max_memory_mib
        if limit is not None and (size := resident_mib()) > limit:
            return f"it has {size} MiB of memory, more than {limit}"
        return None

    def leave(self) -> None:
        """Its last job is settled."""
        if self.is_due.is_set() and self._succession is not None:
            self._succession.leaves()
