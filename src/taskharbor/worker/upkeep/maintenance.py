"""Maintenance: what every worker does now and then for the whole store."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from taskharbor.client.harbor import Harbor
from taskharbor.clock import Clock
from taskharbor.drivers.capabilities import HandOver, Upkeep
from taskharbor.errors import StoreError
from taskharbor.own_tasks import finished
from taskharbor.records import State
from taskharbor.rescue import COLLECT_SECONDS, IDLE_COLLECT_SECONDS, REPORT_SECONDS, Collector
from taskharbor.settle_batch import is_outage, log_bug
from taskharbor.telemetry.attempts import Reporter
from taskharbor.worker.upkeep.retrying import Outages

logger = logging.getLogger("taskharbor.worker")

# Counted in rounds of collecting. No worker begins an expired job, so the store may record its end a little later.
EXPIRE_EVERY = 12
PRUNE_EVERY = 105  # about a minute
PRUNE_SLICE = 5_000  # jobs a round: a long backlog must not delay the collecting of expired leases
PRUNE_HISTORY_EVERY = 10 * PRUNE_EVERY
EXPIRE_BATCH = 500
CATCH_UP_BATCH = 1_000
BACKLOGS_A_ROUND = 1_000
LEFT_OUT_SECONDS_MAX = 60.0
_COMPLAINT = "maintenance has to wait"


class Maintenance:
    def __init__(
        self,
        harbor: Harbor,
        *,
        worker: str,
        clock: Clock,
        outages: Outages,
        reporter: Reporter,
        before_collecting: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._harbor = harbor
        self._driver = harbor.driver
        self._has_upkeep = Upkeep.offered_by(harbor.driver) is not None
        self._collector = Collector(harbor.driver, worker, reports=reporter)
        self._clock = clock
        self._outages = outages
        self._reporter = reporter
        self._before_collecting = before_collecting
        self._backlogs = HandOver.offered_by(harbor.driver)
        self._backlogs_cursor: str | None = None
        self._pruning = False
        self._failed: dict[str, tuple[int, float]] = {}  # chore → failures in a row, and when to try again

    async def run(self) -> None:
        rounds = 0
        while True:
            # With jitter, so that many workers do not all look at once.
            pause = COLLECT_SECONDS if self._driver.outlook.leases else IDLE_COLLECT_SECONDS
            await self._clock.sleep(pause * random.uniform(0.85, 1.0))
            rounds += 1
            try:
                await self.collect()
                if self._driver.outlook.late:
                    await self.catch_up()
                if self._backlogs is not None and self._driver.outlook.backlogs:
                    await self._do(self._advance)
                if rounds % EXPIRE_EVERY == 0:
                    await self.expire()
                if self._has_upkeep and (self._pruning or rounds % PRUNE_EVERY == 0):
                    await self._do(self._prune)
                if self._has_upkeep and rounds % PRUNE_HISTORY_EVERY == 0:
                    await self._do(self._harbor._prune_schedules)
                self._outages.answered(_COMPLAINT)
            except StoreError as error:
                self._outages.unanswered(_COMPLAINT, error)
            except Exception as error:  # noqa: BLE001 - a bug of ours, or of a driver, must not end the worker
                log_bug(logger, "maintenance failed", error)

    async def collect(self) -> None:
        """Settle the jobs of expired leases."""
        await self._do(self._collect)

    async def catch_up(self) -> None:
        """Release or cancel the dependants that a job's end could not see yet."""
        if self._has_upkeep:
            await self._do(self._catch_up)

    async def report_unreadable(self, ids: Sequence[str]) -> None:
        """Report jobs that a claim found unreadable; the store has made them dead."""
        try:
            records = await self._driver.get(ids)
        except StoreError as error:
            self._outages.unanswered(_COMPLAINT, error)
            return
        for record in records:
            if record is not None:
                self._reporter.unreadable(record)

    async def expire(self) -> None:
        """Cancel what was not begun in time."""
        if self._has_upkeep:
            await self._do(self._expire)

    async def _do(self, chore: Callable[[], Awaitable[object]]) -> None:
        """Do a chore; after a failure that is no outage, leave it out for a while, each time for longer."""
        name, now = chore.__name__, self._clock.monotonic()
        failures, again_at = self._failed.get(name, (0, now))
        if now < again_at:
            return
        try:
            await chore()
        except Exception as error:
            if is_outage(error):
                raise
            pause = min(2.0**failures, LEFT_OUT_SECONDS_MAX)
            self._failed[name] = (min(failures + 1, 10), now + pause)
            log_bug(logger, f"maintenance failed in {name}", error)
        else:
            self._failed.pop(name, None)

    async def _collect(self) -> None:
        await self._before_collecting()
        await self._collector.collect()

    async def _catch_up(self) -> None:
        await finished(self._reported(Upkeep.of(self._driver).catch_up(CATCH_UP_BATCH)), REPORT_SECONDS)

    async def _advance(self) -> None:
        """Let backlogs go on whose first job has ended. (A worker of their stream does so at once.)"""
        assert self._backlogs is not None, "the caller asked"
        advanced = await self._backlogs.advance(BACKLOGS_A_ROUND, self._backlogs_cursor)
        self._backlogs_cursor = advanced.cursor

    async def _prune(self) -> None:
        self._pruning = False
        self._pruning = await self._harbor.aprune(PRUNE_SLICE) == PRUNE_SLICE  # then there is more

    async def _expire(self) -> None:
        expired = EXPIRE_BATCH
        while expired == EXPIRE_BATCH:
            step = Upkeep.of(self._driver).expire(EXPIRE_BATCH)
            expired = await finished(self._reported(step), REPORT_SECONDS)

    async def _reported(self, step: Awaitable[Sequence[str]]) -> int:
        """Let the store cancel jobs, and report each of them; return how many jobs the store named."""
        ids = await step
        for record in await self._driver.get(ids) if ids else ():
            if record is not None and record.state is State.CANCELLED:
                self._reporter.cancelled(record)
        return len(ids)
