"""Watching over the children's signs of life."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from taskharbor.worker.supervisor.process import ChildProcess

logger = logging.getLogger("taskharbor.supervisor")

STARTING_SECONDS = 60.0  # at least, for a child to load the application and to run its start hooks
LOOK_SECONDS_MAX = 1.0  # between two looks at the children
DUMP_SECONDS = 0.5  # for a stuck child to write its stacks
JOBS_TOLD = 20  # of a stuck child, in the log


class Watch:
    """Ends a child that shows no sign of life for too long, or that takes too long to leave."""

    def __init__(self, stuck_seconds: float, children: Callable[[], Iterable[ChildProcess]]) -> None:
        self._stuck_seconds = stuck_seconds
        self._children = children
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def interval(self) -> float:
        return min(LOOK_SECONDS_MAX, self._stuck_seconds / 10)

    async def run(self) -> None:
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(self.interval)
            now = time.monotonic()
            # If we ourselves were held up, so were our eyes: nobody is silent for what we did not see.
            overslept = now - looked_at > 2 * self.interval + 1.0
            looked_at = now
            for child in self._children():
                self._look_at(child, now, overslept)

    def _look_at(self, child: ChildProcess, now: float, overslept: bool) -> None:
        silent = child.silent_seconds(now)
        limit = self._stuck_seconds if child.is_ready else max(self._stuck_seconds, STARTING_SECONDS)
        if overslept:
            child.seen_alive = now
        elif child.leave_by is not None and now >= child.leave_by:
            child.interrupted = True
            child.kill()
        elif silent >= limit and child.stuck_seconds is None:
            child.stuck_seconds = limit
            ending = asyncio.create_task(self._end_stuck(child))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end_stuck(self, child: ChildProcess) -> None:
        running = [job_id for held in child.page.held() for job_id in held.running]
        fields = {
            "worker": child.name,
            "pid": child.pid,
            "seconds": child.stuck_seconds,
            "jobs": running[:JOBS_TOLD],
        }
        logger.error("a worker process shows no sign of life and is replaced", extra={"fields": fields})
        if child.dump_stacks():
            await asyncio.sleep(DUMP_SECONDS)
        child.kill()
