"""A snapshot that somebody holds, and how much of what is dead the driver walks past meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from taskharbor.drivers.postgres import PostgresDriver


async def entries_read(driver: PostgresDriver, at_least: int) -> int:
    """Entries of the order's index that the driver has looked at so far, dead ones included."""
    return await _told(driver, "SELECT idx_tup_read FROM pg_stat_user_indexes", at_least)


async def pages_read(driver: PostgresDriver) -> int:
    """Pages of the order's index that the driver has read so far."""
    return await _told(driver, "SELECT idx_blks_read + idx_blks_hit FROM pg_statio_user_indexes", 1)


async def _told(driver: PostgresDriver, statistic: str, at_least: int) -> int:
    await driver.close()  # a session tells the statistics what it did when it ends, at the latest
    connection = await asyncpg.connect(driver.dsn)
    try:
        async with asyncio.timeout(60):
            while True:
                left, told = await connection.fetchrow(  # type: ignore[misc]
                    "SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'taskharbor' "
                    f"AND datname = current_database()), ({statistic} WHERE indexrelname = 'ready_pkey')"
                )
                if left == 0 and told >= at_least:
                    return int(told)
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
