"""`?listen=off`: nothing that a pooler in transaction mode would lose between two transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from taskharbor import Harbor, Worker
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.connections import Lane
from taskharbor.errors import JobFailed
from taskharbor.records import State
from tests.postgres.proxy import Proxy

ENDS = ("COMMIT;", "ROLLBACK;")


async def _live(url: str) -> list[str]:
    """A bit of everything that a producer, a worker and an operator do; what the sessions still hold then."""
    async with Harbor(url) as harbor:

        @harbor.task(name="double", max_attempts=2)
        async def double(n: int) -> int:
            if n < 0:
                raise ValueError(n)
            return 2 * n

        assert await harbor.driver.migrate()
        jobs = await double.aenqueue_many([{"n": n} for n in range(20)])
        tagged = await double.using(tags=["a"], idempotency_key="k", delay=0.05).aenqueue(n=20)
        failing = await double.using(max_attempts=1).aenqueue(n=-1)
        running = asyncio.ensure_future(Worker(harbor, lease_seconds=1, grace_seconds=5).run())
        async with asyncio.timeout(60):
            assert await jobs[3].aresult() == 6
            with pytest.raises(JobFailed):
                await failing.aresult()
            assert await tagged.aresult() == 40
            for job in jobs:
                await job.aresult()
            await harbor.dlq.adiscard(failing.id)
            late = await double.aenqueue(n=50)  # found by polling: nobody listens
            assert await late.aresult() == 100
        running.cancel()
        await asyncio.wait([running])
        assert (await harbor.jobs.acounts())[State.SUCCEEDED] == 22
        driver = harbor.driver
        assert isinstance(driver, PostgresDriver)
        return [held for connection in _taken_from(driver) for held in await _held_by(connection)]


def _taken_from(driver: PostgresDriver) -> Iterator[asyncpg.Connection]:
    """Its idle connections; nobody else has them any more."""
    pool = driver._connections._pools[asyncio.get_running_loop()]
    for lane in Lane:
        while (wire := pool.take(lane)) is not None:
            yield wire.connection
            wire.connection.terminate()


async def _held_by(connection: asyncpg.Connection) -> list[str]:
    """What this session would take along from one transaction to the next."""
    rows = await connection.fetch(
        "SELECT 'prepared: ' || name AS held FROM pg_prepared_statements "
        "UNION ALL SELECT 'listens: ' || c FROM pg_listening_channels() AS c "
        "UNION ALL SELECT 'set: ' || name FROM pg_settings WHERE source = 'session' AND setting <> reset_val "
        "UNION ALL SELECT 'locks: ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    )
    return [row["held"] for row in rows]


async def test_without_listening_no_session_holds_anything_between_transactions(dsn: str) -> None:
    proxy = Proxy(dsn)
    await proxy.start()
    held = await _live(f"{proxy.dsn}?listen=off")
    await proxy.stop()
    assert held == []
    # And nothing is executed outside of a transaction, where the next statement may reach another session.
    inside: set[int] = set()
    statements = [each for each in proxy.statements if "pg_listening_channels" not in each[1]]
    for connection, statement in statements:
        if statement == "BEGIN;":
            inside.add(connection)
        else:
            assert connection in inside, statement
            assert not statement.startswith(("LISTEN", "SET ")), statement
        if statement in ENDS:
            inside.remove(connection)
    assert len(statements) > 50
    assert not inside


async def test_with_listening_the_same_look_finds_what_is_held(dsn: str) -> None:
    """The look itself is tested: prepared statements are what makes the usual way fast."""
    assert any(held.startswith("prepared: ") for held in await _live(dsn))
