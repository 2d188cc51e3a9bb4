"""A snapshot held open elsewhere keeps what claims delete from being removed: how much of it they walk past."""

from __future__ import annotations

import pytest

from taskharbor import Harbor
from taskharbor.drivers.base import ClaimRequest
from taskharbor.drivers.postgres import PostgresDriver
from tests.postgres.snapshots import entries_read, snapshot_held

DEAD = 5_000
LEASE = 30_000_000


@pytest.mark.parametrize("queues", [None, ("default",)], ids=["every queue", "a named one"])
@pytest.mark.parametrize("ready", [1000, 10], ids=["more than asked for", "fewer"])
async def test_a_claim_walks_past_the_dead_once(dsn: str, queues: tuple[str, ...] | None, ready: int) -> None:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    async with Harbor(driver=driver) as harbor:

        @harbor.task(name="noop")
        async def noop() -> None: ...

        await noop.aenqueue_many([{}] * DEAD)
        async with snapshot_held(dsn):
            assert len((await driver.claim(ClaimRequest("worker/1", LEASE, DEAD))).jobs) == DEAD
            await noop.aenqueue_many([{}] * ready)
            before = await entries_read(driver, DEAD)
            claimed = await driver.claim(ClaimRequest("worker/2", LEASE, 100, queues=queues))
            walked = await entries_read(driver, before + DEAD) - before
        assert len(claimed.jobs) == min(ready, 100)
        assert walked < 1.5 * DEAD
