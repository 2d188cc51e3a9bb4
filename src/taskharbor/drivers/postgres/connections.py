"""Connections: a few for each event loop, made when they are first needed and replaced when they break.

A connection belongs to the loop it was made on. Claims, settles and everything else have lanes of their
own, so that a worker's hot path never waits behind a list that somebody asked for.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, TypeVar

import asyncpg

from taskharbor.drivers.postgres import instants
from taskharbor.drivers.postgres.explain import COLLISIONS, explained

T = TypeVar("T")

CONNECT_SECONDS = 5.0
# After this long a command counts as lost: the network swallows answers without telling anybody.
COMMAND_SECONDS = 15.0
JOBS_PER_SECOND_AT_LEAST = 1000.0  # what even a slow server stores in bulk
COLLISIONS_MAX = 20  # how often a transaction is repeated because of somebody else's locks
CLOSE_SECONDS = 3.0

_INHERITED: list[object] = []  # connections of a parent process: never used, never closed


class Lane(Enum):
    """A kind of work, and how many connections of a loop may do it at the same time."""

    CLAIM = 1
    SETTLE = 2
    REST = 4


class Session:
    """One operation's view of the database: a connection, the statements, and the time if it was given."""

    __slots__ = ("connection", "given_now", "seconds", "sql")

    def __init__(self, connection: asyncpg.Connection, sql: dict[str, str], now: int | None) -> None:
        self.connection = connection
        self.sql = sql
        self.given_now = now
        self.seconds: float | None = None  # that a statement may take; None: the usual time

    def expect(self, jobs: int) -> None:
        """So many jobs at once may take longer than usual."""
        self.seconds = COMMAND_SECONDS + jobs / JOBS_PER_SECOND_AT_LEAST

    async def rows(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self.connection.fetch(self.sql[name], *arguments, timeout=self.seconds)

    async def row(self, name: str, *arguments: Any) -> asyncpg.Record | None:
        return await self.connection.fetchrow(self.sql[name], *arguments, timeout=self.seconds)

    async def value(self, name: str, *arguments: Any) -> Any:
        return await self.connection.fetchval(self.sql[name], *arguments, timeout=self.seconds)

    async def do(self, name: str, *arguments: Any) -> None:
        await self.connection.execute(self.sql[name], *arguments, timeout=self.seconds)

    async def now(self) -> int:
        """The given time, or the server's at this moment: ask after the locks are held."""
        if self.given_now is not None:
            return self.given_now
        moment: int = await self.value("now")
        return moment


Work = Callable[[Session], Awaitable[T]]


class Connections:
    def __init__(self, dsn: str, schema: str, sql: dict[str, str], *, pooler: bool) -> None:
        self.dsn = dsn
        self.schema = schema
        self._sql = sql
        # Behind a pooler that lends a server connection for one transaction at a time, a statement that was
        # prepared on one of them is unknown on the next: everything happens inside transactions, unprepared.
        self._pooler = pooler
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()

    # -- running work --

    async def run(self, lane: Lane, work: Work[T], now: int | None = None) -> T:
        """One statement, in a transaction of its own, repeated when it collided with another one."""
        return await self._repeatedly(lane, work, now, transaction=self._pooler)

    async def transact(self, lane: Lane, work: Work[T], now: int | None = None) -> T:
        """Several statements in one transaction, repeated when it collided with another one."""
        return await self._repeatedly(lane, work, now, transaction=True)

    async def _repeatedly(self, lane: Lane, work: Work[T], now: int | None, *, transaction: bool) -> T:
        try:
            for repetition in range(COLLISIONS_MAX):
                try:
                    async with self._connection(lane) as connection:
                        if not transaction:
                            return await work(Session(connection, self._sql, now))
                        async with connection.transaction():
                            return await work(Session(connection, self._sql, now))
                except COLLISIONS:
                    if repetition == COLLISIONS_MAX - 1:
                        raise
                # Jittered: whoever it collided with begins anew as well.
                await asyncio.sleep(random.uniform(0, 0.002 * (repetition + 1)))
        except Exception as error:
            raise self._explained(error) from error
        raise AssertionError("the last repetition returns or raises")

    def _explained(self, error: BaseException) -> BaseException:
        return explained(error, self.dsn, self.schema)

    # -- connections --

    async def connect(self) -> asyncpg.Connection:
        settings = {"application_name": "taskharbor"}
        if not self._pooler:
            settings["jit"] = "off"  # compiling a plan takes longer than anything that is done here
        connection = await asyncpg.connect(
            self.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            statement_cache_size=0 if self._pooler else 200,
            max_cached_statement_lifetime=0,  # for as long as the connection lasts
            server_settings=settings,
        )
        try:
            await instants.install(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    @asynccontextmanager
    async def dedicated(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for something long, outside of the lanes."""
        try:
            connection = await self.connect()
            try:
                yield connection
            finally:
                connection.terminate()
        except Exception as error:
            raise self._explained(error) from error

    @asynccontextmanager
    async def _connection(self, lane: Lane) -> AsyncIterator[asyncpg.Connection]:
        pool = await self._pool()
        async with pool.seats[lane]:
            connection = pool.take(lane) or await self.connect()
            try:
                yield connection
            except asyncpg.PostgresError:
                pool.give_back(lane, connection)  # the server has refused something; the connection is whole
                raise
            except BaseException:
                # Cancelled or broken in the middle of something: nobody knows what it would answer next.
                connection.terminate()
                raise
            pool.give_back(lane, connection)

    async def _pool(self) -> _Pool:
        if self._pid != os.getpid():
            _INHERITED.append(self._pools)
            self._reset()
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = _Pool()
            with self._lock:
                self._pools[loop] = pool
            await pool.watch()
        return pool

    async def close(self) -> None:
        """Let go of every connection, on this loop and on those of other threads that still run."""
        if self._pid != os.getpid():
            return
        with self._lock:
            pools = list(self._pools.items())
            self._pools = weakref.WeakKeyDictionary()
        here = asyncio.get_running_loop()
        for loop, pool in pools:
            if loop is here:
                await pool.close()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(pool.close(), loop)
                await asyncio.wait([asyncio.wrap_future(closing)], timeout=CLOSE_SECONDS)


class _Pool:
    """The connections of one loop."""

    def __init__(self) -> None:
        self.seats = {lane: asyncio.Semaphore(lane.value) for lane in Lane}
        self._idle: dict[Lane, list[asyncpg.Connection]] = {lane: [] for lane in Lane}
        self._closed = False
        self._watch = self._until_the_loop_ends()

    def take(self, lane: Lane) -> asyncpg.Connection | None:
        idle = self._idle[lane]
        while idle:
            connection = idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def give_back(self, lane: Lane, connection: asyncpg.Connection) -> None:
        if self._closed:
            connection.terminate()
        elif not connection.is_closed():
            self._idle[lane].append(connection)

    async def watch(self) -> None:
        """A loop that ends closes its asynchronous generators: this one takes the connections along."""
        await anext(self._watch)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self._let_go()

    async def close(self) -> None:
        await self._watch.aclose()

    async def _let_go(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            while idle:
                connection = idle.pop()
                try:
                    await connection.close(timeout=CLOSE_SECONDS)
                except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    connection.terminate()
