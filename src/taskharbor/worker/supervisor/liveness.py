"""Watch the children for signs of life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from taskharbor.clock import Clock
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.reports import Reports
from taskharbor.worker.supervisor.child_process import ChildProcess

logger = logging.getLogger("taskharbor.supervisor")

STARTING_SECONDS = 60.0  # the least time a child has to load the application and to run its start hooks
CHECK_SECONDS_MAX = 1.0
DUMP_SECONDS = 0.5  # for a stuck child to write its stacks
JOBS_NAMED_MAX = 20  # jobs of a stuck child that the log line and the event name


class LivenessMonitor:
    """Kills a child that shows no sign of life for too long, or that takes too long to exit."""

    def __init__(
        self,
        stuck_seconds: float,
        children: Callable[[], Iterable[ChildProcess]],
        reports: Reports,
        clock: Clock,
    ) -> None:
        self._stuck_seconds = stuck_seconds
        self._children = children
        self._reports = reports
        self._clock = clock
        self._killing: set[asyncio.Task[None]] = set()

    @property
    def interval(self) -> float:
        return min(CHECK_SECONDS_MAX, self._stuck_seconds / 10)

    async def run(self) -> None:
        checked_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(self.interval)
            now = self._clock.monotonic()
            # While this process was suspended it saw no sign of any child: do not count that time.
            overslept = now - checked_at > 2 * self.interval + 1.0
            checked_at = now
            for child in self._children():
                self._check(child, now, overslept)

    def _check(self, child: ChildProcess, now: float, overslept: bool) -> None:
        silent = child.silent_seconds(now)
        limit = self._stuck_seconds if child.is_ready else max(self._stuck_seconds, STARTING_SECONDS)
        if overslept:
            child.last_alive_at = now
        elif child.exit_deadline is not None and now >= child.exit_deadline:
            child.interrupted = True
            child.kill()
        elif silent >= limit and child.stuck_seconds is None:
            child.stuck_seconds = limit
            killing = asyncio.create_task(self._kill_stuck(child))
            self._killing.add(killing)
            killing.add_done_callback(self._killing.discard)

    async def _kill_stuck(self, child: ChildProcess) -> None:
        running = [job_id for lease in child.shared_memory.leases() for job_id in lease.running]
        jobs = tuple(running[:JOBS_NAMED_MAX])
        fields = {"worker": child.name, "pid": child.pid, "seconds": child.stuck_seconds, "jobs": list(jobs)}
        log_line(
            logger,
            logging.ERROR,
            "a worker process shows no sign of life and is replaced: {worker}, for {seconds} s",
            fields,
        )
        # Another child delivers the event: this one cannot, and its subscribers' counters are lost with it.
        error = f"no sign of life for {child.stuck_seconds:g} s"
        self._reports.stuck(child.name, self._clock.now(), error, jobs)
        if child.dump_stacks():
            await self._clock.sleep(DUMP_SECONDS)
        child.kill()
