"""Watching over the children's signs of life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from taskharbor.clock import Clock, from_micros
from taskharbor.telemetry.events import Event
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.supervisor.child_process import ChildProcess

logger = logging.getLogger("taskharbor.supervisor")

STARTING_SECONDS = 60.0  # at least, for a child to load the application and to run its start hooks
LOOK_SECONDS_MAX = 1.0  # between two looks at the children
DUMP_SECONDS = 0.5  # for a stuck child to write its stacks
JOBS_TOLD = 20  # of a stuck child, at most


class Watch:
    """Ends a child that shows no sign of life for too long, or that takes too long to leave."""

    def __init__(
        self,
        stuck_seconds: float,
        children: Callable[[], Iterable[ChildProcess]],
        tell: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        self._stuck_seconds = stuck_seconds
        self._children = children
        self._tell = tell
        self._clock = clock
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def interval(self) -> float:
        return min(LOOK_SECONDS_MAX, self._stuck_seconds / 10)

    async def run(self) -> None:
        looked_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(self.interval)
            now = self._clock.monotonic()
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
        running = [job_id for held in child.shared_memory.held() for job_id in held.running]
        jobs = tuple(running[:JOBS_TOLD])
        fields = {"worker": child.name, "pid": child.pid, "seconds": child.stuck_seconds, "jobs": list(jobs)}
        log_line(
            logger,
            logging.ERROR,
            "a worker process shows no sign of life and is replaced: {worker}, for {seconds} s",
            fields,
        )
        # By another child: this one cannot, and whatever it counted would go with it.
        at = from_micros(self._clock.now())
        error = f"no sign of life for {child.stuck_seconds:g} s"
        self._tell(Event("stuck", "", "", "", at, worker=child.name, error=error, jobs=jobs))
        if child.dump_stacks():
            await self._clock.sleep(DUMP_SECONDS)
        child.kill()
