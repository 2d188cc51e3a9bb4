"""Maintenance: what every worker does now and then for all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from taskharbor.client.harbor import Harbor
from taskharbor.clock import Clock
from taskharbor.collecting import COLLECT_SECONDS, Collector
from taskharbor.errors import StoreError
from taskharbor.job import State
from taskharbor.worker.outage import Outages
from taskharbor.worker.report import Reporter

# Rounds of collecting. Nobody begins an expired job anyway, so its end can be written down a little later.
EXPIRE_EVERY = 12
PRUNE_EVERY = 105  # about a minute
PRUNE_SLICE = 5_000  # jobs a round: a long backlog must not keep anybody from collecting meanwhile
PRUNE_HISTORY_EVERY = 10 * PRUNE_EVERY
EXPIRE_BATCH = 500
CATCH_UP_BATCH = 1_000
_COMPLAINT = "maintenance has to wait"


class Maintenance:
    def __init__(
        self,
        harbor: Harbor,
        *,
        worker: str,
        max_losses: int,
        clock: Clock,
        outages: Outages,
        reporter: Reporter,
        before_collecting: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._harbor = harbor
        self._driver = harbor.driver
        self._collector = Collector(harbor.driver, worker, max_losses=max_losses, report=reporter.losses.tell)
        self._clock = clock
        self._outages = outages
        self._reporter = reporter
        self._before_collecting = before_collecting

    async def run(self) -> None:
        rounds = 0
        pruning = False
        while True:
            # Jittered, so that many workers do not all look at once.
            await self._clock.sleep(COLLECT_SECONDS * random.uniform(0.85, 1.0))
            rounds += 1
            try:
                await self.collect()
                await self.catch_up()
                if rounds % EXPIRE_EVERY == 0:
                    await self.expire()
                if pruning or rounds % PRUNE_EVERY == 0:
                    pruning = await self._harbor.aprune(PRUNE_SLICE) == PRUNE_SLICE  # then there is more
                if rounds % PRUNE_HISTORY_EVERY == 0:
                    await self._harbor._prune_schedules()
                self._outages.answered(_COMPLAINT)
            except StoreError as error:
                self._outages.unanswered(_COMPLAINT, error)

    async def collect(self) -> None:
        """Settle what expired leases held."""
        await self._before_collecting()
        await self._collector.collect()

    async def catch_up(self) -> None:
        """Release or cancel the dependants that a job's end could not see yet."""
        await self._tell_cancelled(await self._driver.catch_up(CATCH_UP_BATCH))

    async def expire(self) -> None:
        """Cancel what was not begun in time."""
        while expired := await self._driver.expire(EXPIRE_BATCH):
            await self._tell_cancelled(expired)
            if len(expired) < EXPIRE_BATCH:
                break

    async def _tell_cancelled(self, ids: Sequence[str]) -> None:
        for record in await self._driver.get(ids) if ids else ():
            if record is not None and record.state is State.CANCELLED:
                self._reporter.expired(record)
