"""`UnresponsiveWatch`: warns of handlers that do not end on request, and finally stops the worker."""

from __future__ import annotations

import asyncio
import logging

from taskharbor.clock import Clock
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.pipeline import Pipeline

logger = logging.getLogger("taskharbor.worker")

LOOK_SECONDS = 1.0
FIRST_WARNING_SECONDS = 5.0  # after the request to end; each next warning after twice as long
WARNING_SECONDS_MAX = 600.0
UNWIND_SECONDS = 1.0  # how long a handler may take to end after a shutdown interrupts it


class UnresponsiveWatch:
    """Warns of handlers that do not end: a thread cannot be killed, so such a handler keeps its slot.

    With a limit, the worker stops once a handler has been unresponsive for that long.
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
        self._overdue: dict[Execution, _Overdue] = {}

    async def run(self) -> None:
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        now = self._clock.monotonic()
        running = () if self._stopping.is_set() else self._pipeline.running  # a shutdown has its own limits
        # The process of an isolated handler is killed elsewhere.
        unresponsive = [e for e in running if e.stop_requested is not None and e.process is None]
        if not unresponsive:
            self._overdue.clear()
            return
        self._overdue = {
            execution: self._overdue.get(execution) or _Overdue(now, FIRST_WARNING_SECONDS)
            for execution in unresponsive
        }
        for execution, overdue in self._overdue.items():
            waited = now - overdue.since
            if waited >= overdue.warn_after:
                overdue.warn_after = waited + min(waited, WARNING_SECONDS_MAX)
                log_line(
                    logger,
                    logging.WARNING,
                    "Job {job} was asked to end {since_seconds} s ago and has not; its slot stays occupied",
                    execution.fields() | _why(execution) | {"since_seconds": round(waited)},
                )
            if self._limit_seconds is not None and waited >= self._limit_seconds:
                self._give_up(execution)

    def _give_up(self, execution: Execution) -> None:
        """Stop the worker: only the end of the process ends this handler's thread."""
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


class _Overdue:
    __slots__ = ("since", "warn_after")

    def __init__(self, since: float, warn_after: float) -> None:
        self.since = since
        self.warn_after = warn_after


def _why(execution: Execution) -> dict[str, str | None]:
    return {"why": execution.interrupted or execution.stop_requested}
