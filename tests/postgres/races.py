"""Races, each with two connections and a barrier: one side stops between two of its statements, or before its
commit, and the other one runs into it. A state machine, which does one thing after the other, sees none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from taskharbor.drivers.base import (
    Claim,
    Claimed,
    ClaimRequest,
    Operation,
    OperationVerdict,
    SettleAnswer,
    Transition,
)
from taskharbor.drivers.callers.asyncpg import AsyncpgCaller
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.caller_session import CallerSession
from taskharbor.drivers.postgres.connections import Session
from taskharbor.records import AttemptStatus, JobRecord, NewJob, State
from tests.postgres import store

T = TypeVar("T")

SECOND = 1_000_000
LEASE = 30 * SECOND
NOW = 1_767_225_600 * SECOND + 123_457
PATIENCE_SECONDS = 60.0


class PausingSession(Session):
    """Stops before the statement of that name until it is told to go on."""

    def __init__(self, connection: asyncpg.Connection, sql: dict[str, str], now: int | None) -> None:
        super().__init__(connection, sql, now)
        self.stop_before = ""
        self.stopped = asyncio.Event()
        self.go_on = asyncio.Event()

    def at(self, now: int) -> PausingSession:
        session = PausingSession(self.connection, self.sql, now)
        session.stop_before, session.stopped, session.go_on = self.stop_before, self.stopped, self.go_on
        return session

    async def _pass(self, name: str) -> None:
        if name == self.stop_before:
            self.stopped.set()
            await self.go_on.wait()

    async def rows(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
        await self._pass(name)
        return await super().rows(name, *arguments)

    async def value(self, name: str, *arguments: Any) -> Any:
        await self._pass(name)
        return await super().value(name, *arguments)

    async def do(self, name: str, *arguments: Any) -> None:
        await self._pass(name)
        await super().do(name, *arguments)


class PausingCallerSession(CallerSession):
    """The same on the connection of a caller: stops before it holds the jobs that exist, or looks where they are."""

    def __init__(self, connection: asyncpg.Connection, driver: PostgresDriver) -> None:
        super().__init__(AsyncpgCaller(connection), driver._sql, driver.schema, notify=False)
        self.stopped = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _pass(self, name: str) -> None:
        if name in ("hold_members", "places"):
            self.stopped.set()
            await self.go_on.wait()

    async def rows(self, name: str, *arguments: Any) -> list[Any]:
        await self._pass(name)
        return await super().rows(name, *arguments)

    async def do(self, name: str, *arguments: Any) -> None:
        await self._pass(name)
        await super().do(name, *arguments)


class Race:
    """A store with its driver, and connections of ours beside the driver's."""

    def __init__(self, driver: PostgresDriver) -> None:
        self.driver = driver
        self._jobs = 0
        self._tokens = 0

    # -- what happens before the race --

    def new(self, **fields: Any) -> NewJob:
        self._jobs += 1
        return NewJob(**{"id": f"019b76da-a800-7000-8000-{self._jobs:012x}", "task": "race", **fields})

    async def ready(self, **fields: Any) -> str:
        [answer] = await self.driver.enqueue([self.new(**fields)], now=NOW)
        return answer.id

    async def claim(self, limit: int = 10, token: str | None = None) -> tuple[str, Claim]:
        self._tokens += 1
        token = token or f"worker/{self._tokens}"
        return token, await self.driver.claim(ClaimRequest(token, LEASE, limit, once_limit=limit), now=NOW)

    async def running(self, **fields: Any) -> tuple[str, Claimed]:
        await self.ready(**fields)
        token, claim = await self.claim()
        [job] = claim.jobs
        return token, job

    async def record(self, job_id: str) -> JobRecord:
        [record] = await self.driver.get([job_id], now=NOW)
        assert record is not None
        return record

    async def state(self, job_id: str) -> State:
        return (await self.record(job_id)).state

    async def settle(self, *transitions: Transition, now: int | None = NOW) -> list[SettleAnswer]:
        return [settled.answer for settled in await self.driver.settle(transitions, now=now)]

    async def operate(self, operation: Operation, *ids: str) -> list[OperationVerdict]:
        return [answer.verdict for answer in await self.driver.operate(operation, ids, now=NOW)]

    async def done(self, **fields: Any) -> str:
        """A job that has succeeded and may be pruned."""
        token, job = await self.running(**fields)
        assert await self.settle(success(token, job)) == [SettleAnswer.DONE]
        return job.id

    async def prune(self) -> None:
        """Delete every job that has succeeded."""
        assert await self.driver.prune({State.SUCCEEDED: NOW + 1}, 100, now=NOW) > 0

    # -- the other side --

    @asynccontextmanager
    async def transaction(self, now: int | None = NOW) -> AsyncIterator[PausingSession]:
        """A transaction on a connection of its own, committed at the end of the block."""
        connection = await self.driver._connections.connect()
        try:
            # The story decides how long it stands still, and a slow machine how long that takes.
            await connection.execute("SET idle_in_transaction_session_timeout = 0")
            async with connection.transaction():
                yield PausingSession(connection, self.driver._sql, now)
        finally:
            await connection.close()

    async def until_somebody_waits(self, count: int = 1) -> None:
        """Until a connection of the store's database waits for a lock: so the barrier is seen, not hoped for."""
        connection = await asyncpg.connect(self.driver.dsn)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while count > await connection.fetchval(  # noqa: ASYNC110 - another process has no event of ours
                    "SELECT count(DISTINCT pid) FROM pg_locks JOIN pg_stat_activity USING (pid) "
                    "WHERE NOT granted AND datname = current_database()"
                ):
                    await asyncio.sleep(0.01)
        finally:
            await connection.close()


def success(token: str, job: Claimed, **fields: Any) -> Transition:
    return Transition(
        token, job.id, job.number, AttemptStatus.SUCCEEDED, State.SUCCEEDED, started_at=NOW, **fields
    )


def failure(token: str, job: Claimed) -> Transition:
    return Transition(token, job.id, job.number, AttemptStatus.FAILED, State.READY, 1, NOW, delay=0)


def race(story: Callable[[Race], Awaitable[None]]) -> Callable[[], None]:
    """Run a story on a fresh store, in a database of its own: what waits there waits because of the story."""

    def test() -> None:
        async def run(dsn: str) -> None:
            driver = PostgresDriver(dsn)
            try:
                await driver.migrate()
                async with asyncio.timeout(200):
                    await story(Race(driver))
            finally:
                await driver.close()

        with store.database() as dsn:
            asyncio.run(run(dsn))

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    return test


async def begun(coroutine: Coroutine[Any, Any, T], race: Race) -> asyncio.Task[T]:
    """Start it, and return when it waits for a lock."""
    task = asyncio.ensure_future(coroutine)
    await race.until_somebody_waits()
    assert not task.done()
    return task
