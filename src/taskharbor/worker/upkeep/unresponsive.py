"""Handlers that do not end on request: warn of them again and again, and give them up in the end."""

from __future__ import annotations

import asyncio
import logging

from taskharbor.clock import Clock
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.pipeline import Pipeline

logger = logging.getLogger("taskharbor.worker")

LOOK_SECONDS = 1.0
FIRST_WARNING_SECONDS = 5.0  # after the request to end; each next one after twice as long
WARNING_SECONDS_MAX = 600.0
UNWIND_SECONDS = 1.0  # how long a handler may take to end once it was interrupted at shutdown


class UnresponsiveWatch:
    """A thread cannot be killed. So its slot stays occupied, and people have to hear of it.

    With a limit, the worker stops because of a handler that has been unresponsive for that long.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        stopping: asyncio.Event,
        limit_seconds: float | None,
        clock: Clock,
    ) -> None:
        self.given_up: set[Execution] = set()
        self._pipeline = pipeline
        self._stopping = stopping
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._told: dict[Execution, _Told] = {}

    async def run(self) -> None:
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        now = self._clock.monotonic()
        running = () if self._stopping.is_set() else self._pipeline.running  # a shutdown has its own limits
        # One that runs in a process of its own is killed by and by.
        told_to_end = [e for e in running if e.stop_requested is not None and e.process is None]
        if not told_to_end:
            self._told.clear()
            return
        self._told = {
            execution: self._told.get(execution) or _Told(now, FIRST_WARNING_SECONDS)
            for execution in told_to_end
        }
        for execution, told in self._told.items():
            waited = now - told.at
            if waited >= told.warn_after:
                told.warn_after = waited + min(waited, WARNING_SECONDS_MAX)
                log_line(
                    logger,
                    logging.WARNING,
                    "Job {job} was asked to end {since_seconds} s ago and has not; its slot stays occupied",
                    execution.fields() | _why(execution) | {"since_seconds": round(waited)},
                )
            if self._limit_seconds is not None and waited >= self._limit_seconds:
                self._give_up(execution)

    def _give_up(self, execution: Execution) -> None:
        """Stop the worker: only the end of its process ends the thread of this handler."""
        if execution in self.given_up:
            return
        self.given_up.add(execution)
        log_line(
            logger,
            logging.ERROR,
            "Job {job} does not end; this worker shuts down so that its process can be replaced",
            execution.fields() | {"unresponsive_seconds": self._limit_seconds},
        )
        self._stopping.set()
        self._pipeline.left.set()


class _Told:
    __slots__ = ("at", "warn_after")

    def __init__(self, at: float, warn_after: float) -> None:
        self.at = at
        self.warn_after = warn_after


def _why(execution: Execution) -> dict[str, str | None]:
    return {"why": execution.interrupted or execution.stop_requested}
