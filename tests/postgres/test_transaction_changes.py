"""Workers learn of a job when the caller's transaction commits, and not before."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from taskharbor import Harbor, Worker, chain
from taskharbor.drivers.postgres import PostgresDriver, changes
from taskharbor.drivers.postgres.changes import channel_of
from taskharbor.records import NewJob


class Listener:
    """Somebody who hears every notification of a schema, and who can tell that he has heard all."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.heard: list[str] = []
        self.last = asyncio.Event()

    @classmethod
    async def to(cls, driver: PostgresDriver) -> Listener:
        listener = cls(await asyncpg.connect(driver.dsn))
        await listener.connection.add_listener(
            channel_of(driver.schema), lambda _c, _p, channel, _m: listener.heard.append(channel)
        )
        await listener.connection.add_listener("the_last", lambda *_: listener.last.set())
        return listener

    async def count(self) -> int:
        """How many came until now: notifications are heard in the order of their commits."""
        self.last.clear()
        await self.connection.execute("NOTIFY the_last")
        async with asyncio.timeout(60):
            await self.last.wait()
        heard, self.heard = self.heard, []
        return len(heard)


async def test_notification_comes_with_the_commit_once(dsn: str) -> None:
    driver = PostgresDriver(dsn)
    harbor = Harbor(driver=driver)
    await harbor.amigrate()
    listener, connection = await Listener.to(driver), await asyncpg.connect(dsn)

    @harbor.task
    def task() -> None: ...

    with harbor.transaction(connection):
        async with connection.transaction():
            for _ in range(5):
                await harbor.aenqueue("t")
            assert await listener.count() == 0
        assert await listener.count() == 1
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                await harbor.aenqueue("t")
                raise ZeroDivisionError
        async with connection.transaction():
            await harbor.aenqueue("far ahead", delay=3600)  # who listens looks by himself before that
        assert await listener.count() == 0
        await asyncio.sleep(0.1)
        async with connection.transaction():
            job = await harbor.aenqueue("soon", delay=5)
        assert await listener.count() == 1
        async with connection.transaction():
            dependant = NewJob("019b76da-a800-7000-8000-000000000001", "t", depends_on=(job.id,))
            await harbor.driver.enqueue([dependant])
        assert await listener.count() == 1
        composition = chain(task.si(), task.si()).using(idempotency_key="k")
        async with connection.transaction():
            await composition.aenqueue()
            assert await listener.count() == 0
        assert await listener.count() == 1
        async with connection.transaction():
            assert (await composition.aenqueue()).existed  # which is nothing to tell of
        assert await listener.count() == 0
    await harbor.aclose()
    await connection.close()
    await listener.connection.close()


async def test_nobody_is_notified_where_nobody_listens(dsn: str) -> None:
    driver = PostgresDriver(dsn, listen=False)
    harbor = Harbor(driver=driver)
    await harbor.amigrate()
    listener, connection = await Listener.to(driver), await asyncpg.connect(dsn, statement_cache_size=0)
    with harbor.transaction(connection):
        async with connection.transaction():
            await harbor.aenqueue("t")
    assert await listener.count() == 0
    await harbor.aclose()
    await connection.close()
    await listener.connection.close()


async def test_notifications_are_bounded_however_many_commit(dsn: str) -> None:
    """Each of them takes a lock of the whole server: past a rate that keeps every worker awake, there are no more."""
    driver = PostgresDriver(dsn)
    await driver.migrate()
    connection = await asyncpg.connect(dsn)
    began = await connection.fetchval("SELECT clock_timestamp()")
    asked = "SELECT taskharbor.announcement() AS payload FROM generate_series(1, 5000)"
    said = [row["payload"] for row in await connection.fetch(asked)]
    tenths = (await connection.fetchval("SELECT clock_timestamp()") - began).total_seconds() * 10
    assert 1 <= 5000 - said.count(None) <= 25 * (tenths + 2)
    assert said[0] == ""
    previous = ""
    for payload in said:  # the last one before there are no more says so
        if payload is None:
            assert previous == "more"
            break
        previous = payload
    await asyncio.sleep(0.11)
    assert await connection.fetchval("SELECT taskharbor.announcement()") == ""
    await connection.close()
    await driver.close()


async def test_whoever_hears_that_there_are_more_looks_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What committed after the last notification, and was not told of, is found within a second or so."""
    monkeypatch.setattr(changes, "NET_SECONDS", 3600.0)  # which finds it later than the test waits
    driver = PostgresDriver(dsn)
    await driver.migrate()
    connection = await asyncpg.connect(dsn)
    async with asyncio.timeout(60):
        await driver.wait_for_change(driver.change_token(), 3600)  # until it listens: its first news say so
    token = driver.change_token()
    async with asyncio.timeout(60):
        await connection.execute(f"NOTIFY {channel_of(driver.schema)}, 'more'")
        for _ in range(3):
            await driver.wait_for_change(token, 3600)
            assert driver.change_token() > token
            token = driver.change_token()
    await connection.close()
    await driver.close()


@pytest.mark.parametrize("how", ["transaction", "function"])
async def test_idle_worker_is_woken_by_the_commit(
    dsn: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "NET_SECONDS", 3600.0)  # which finds the job later than the test waits
    driver = PostgresDriver(dsn)
    harbor = Harbor(driver=driver)
    await harbor.amigrate()
    ran = asyncio.Event()

    @harbor.task(name="t")
    async def handler() -> None:
        ran.set()

    worker = Worker(harbor, poll_seconds=3600)
    connection = await asyncpg.connect(dsn)
    async with worker, asyncio.timeout(60):
        while not await connection.fetchval(  # noqa: ASYNC110 - the server tells nobody
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        ):
            await asyncio.sleep(0.01)
        async with connection.transaction():
            if how == "function":
                await connection.execute("SELECT taskharbor.enqueue('t')")
            else:
                with harbor.transaction(connection):
                    await harbor.aenqueue("t")
            assert not ran.is_set()
        await ran.wait()
    await connection.close()
    await harbor.aclose()
