"""An idle worker costs the server next to nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.connections import Lane, Work
from tests.worker.stage import working

SECONDS = 60


class CountingDriver(PostgresDriver):
    queries = 0

    async def _run(self, lane: Lane, work: Work[Any], now: int | None = None, **more: Any) -> Any:
        self.queries += 1
        return await super()._run(lane, work, now, **more)

    async def _transact(self, lane: Lane, work: Work[Any], now: int | None = None, **more: Any) -> Any:
        self.queries += 3  # with its BEGIN and COMMIT
        return await super()._transact(lane, work, now, **more)


async def test_idle_worker_makes_fewer_than_two_queries_a_second(dsn: str) -> None:
    clock = ManualClock()
    driver = CountingDriver(dsn, clock=clock)
    await driver.migrate()
    async with Harbor(driver=driver) as harbor, working(harbor):
        before = driver.queries
        for _ in range(SECONDS * 10):
            clock.advance(0.1)
            await asyncio.sleep(0.001)
        made = driver.queries - before
    assert 0 < made < 2 * SECONDS, made
