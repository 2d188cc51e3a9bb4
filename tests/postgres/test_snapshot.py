"""A snapshot held open elsewhere keeps what claims delete from being removed: how much of it they walk past."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from taskharbor import Harbor
from taskharbor.drivers.base import ClaimRequest
from taskharbor.drivers.postgres import PostgresDriver

DEAD = 5_000
LEASE = 30_000_000


async def entries_read(driver: PostgresDriver, at_least: int) -> int:
    """Entries of the order's index that the driver has looked at so far, dead ones included."""
    await driver.close()  # a session tells the statistics what it did when it ends, at the latest
    connection = await asyncpg.connect(driver.dsn)
    try:
        async with asyncio.timeout(30):
            while True:
                left, read = await connection.fetchrow(  # type: ignore[misc]
                    "SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'taskharbor' "
                    "AND datname = current_database()), idx_tup_read "
                    "FROM pg_stat_user_indexes WHERE indexrelname = 'ready_pkey'"
                )
                if left == 0 and read >= at_least:
                    return int(read)
                await asyncio.sleep(0.02)
    finally:
        await connection.close()


@asynccontextmanager
async def snapshot_held(dsn: str) -> AsyncIterator[None]:
    """By an idle transaction of somebody else."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT count(*) FROM pg_class")
            yield
    finally:
        await connection.close()


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
