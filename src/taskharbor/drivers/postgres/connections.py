"""Connections: a few for each event loop, made when they are first needed and replaced when they break.

A connection belongs to the loop it was made on. Claims, settles and everything else have lanes of their
own, so that a worker's hot path never waits behind a list that a caller asked for.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, TypeVar

import asyncpg

from taskharbor.drivers.postgres import instants
from taskharbor.drivers.postgres.address import CONNECTIONS, names_application, refused_address
from taskharbor.drivers.postgres.explain import COLLISIONS, ends_connection, explained
from taskharbor.drivers.postgres.roles import explained_denial
from taskharbor.drivers.postgres.wire import Watch, Wire
from taskharbor.errors import TaskHarborError

T = TypeVar("T")

CONNECT_SECONDS = 5.0
# When nothing has moved for this long an answer counts as lost: see `wire`. What a worker lives by is answered within
# milliseconds or not at all, and it has to go on soon after the network does.
PROMPT_SECONDS = 5.0
# Everything else may wait for other clients' locks, or have much to do.
COMMAND_SECONDS = 15.0
PATIENCE_MAX = 8  # times as long, where a slow server, not the network, is why nothing was answered in time
JOBS_PER_SECOND_AT_LEAST = 1000.0  # what even a slow server stores in bulk
# Of payloads, results and errors: what one statement carries that is a transaction by itself, since nothing is locked
# while it is on its way; what a transaction settles; and what one statement of a transaction carries.
ALONE_BYTES = 4 * 1_048_576
TRANSACTION_BYTES = 1_048_576
STATEMENT_BYTES = 262_144
LARGE_BYTES = 131_072  # a statement of a transaction from here on may be on its way for a while …
BYTES_PER_SECOND_AT_LEAST = 65_536.0  # … on the slowest network that is waited for
COLLISIONS_MAX = 20  # how often a transaction is repeated because of other clients' locks
CLOSE_SECONDS = 3.0
GRACE_SECONDS = 0.5  # for which a cancelled caller waits until its connection is made

# What the server does about a client that the network has swallowed, and it cannot know about: an open transaction
# holds locks that the client's next connection waits for, and an idle connection takes up a place.
IDLE_SECONDS = 5.0
SESSION = {
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "jit": "off",  # compiling a plan takes longer than anything that is done here
}

_UNANSWERED = (OSError, asyncpg.CannotConnectNowError)  # (a timeout is an OSError)
_INHERITED: list[object] = []  # connections of a parent process: never used, never closed


class Lane(Enum):
    """A kind of work, with connections of its own."""

    CLAIM = "claim"
    SETTLE = "settle"
    REST = "rest"


def seats_of(connections: int, *, listener: bool) -> dict[Lane, int]:
    """How many connections of a loop may do each kind of work at the same time, of `connections` in all.

    The listener has one of its own, claims need one. A second one for settles lets a heartbeat through while a long
    settle is under way; the rest is for everything else.
    """
    left = connections - listener - 1
    settle = 2 if left >= 3 else 1
    return {Lane.CLAIM: 1, Lane.SETTLE: settle, Lane.REST: left - settle}


class Session:
    """One operation's view of the database: a connection, the statements, and the time if it was given."""

    __slots__ = ("connection", "given_now", "idle_seconds", "sql", "watch")

    def __init__(
        self,
        connection: asyncpg.Connection,
        sql: dict[str, str],
        now: int | None,
        *,
        watch: Watch | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        self.connection = connection
        self.sql = sql
        self.given_now = now
        self.watch = watch  # over how long the server may say nothing
        self.idle_seconds = (
            idle_seconds  # after which the server gives up on a transaction; None: as it likes
        )

    def expect(self, jobs: int) -> None:
        """Allow more time for many jobs at once."""
        if self.watch is not None:
            self.watch.expect(COMMAND_SECONDS + jobs / JOBS_PER_SECOND_AT_LEAST)

    async def rows(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
        return await self.connection.fetch(self.sql[name], *arguments)

    async def row(self, name: str, *arguments: Any) -> asyncpg.Record | None:
        return await self.connection.fetchrow(self.sql[name], *arguments)

    async def value(self, name: str, *arguments: Any) -> Any:
        return await self.connection.fetchval(self.sql[name], *arguments)

    async def do(self, name: str, *arguments: Any) -> None:
        await self.connection.execute(self.sql[name], *arguments)

    async def run_script(self, script: str) -> None:
        """Execute the statements of a migration."""
        await self.connection.execute(script, timeout=3600)

    @asynccontextmanager
    async def carrying(self, size: int) -> AsyncIterator[None]:
        """Inside a transaction, around statements of at most `size` bytes: the server waits as long as each may take.

        To the server, a client whose statement is still on its way is idle. It cannot tell one that sends slowly from
        one that the network has swallowed, so the time is in proportion to the size.
        """
        if size < LARGE_BYTES or self.idle_seconds is None:
            yield
            return
        longer = self.idle_seconds + size / BYTES_PER_SECOND_AT_LEAST
        await self.do("wait_when_idle", _milliseconds(longer))
        yield
        await self.do("wait_when_idle", _milliseconds(self.idle_seconds))

    def at(self, now: int) -> Session:
        """The same, with this as the time of everything."""
        return Session(self.connection, self.sql, now, watch=self.watch, idle_seconds=self.idle_seconds)

    def savepoint(self) -> asyncpg.transaction.Transaction:
        """A part of the transaction that can be undone by itself: `start`, then `commit` or `rollback`."""
        return self.connection.transaction()

    async def now(self) -> int:
        """The given time, or the server's at this moment: ask after the locks are held."""
        if self.given_now is not None:
            return self.given_now
        moment: int = await self.value("now")
        return moment


Work = Callable[[Session], Awaitable[T]]


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


async def _transaction(session: Session, work: Work[T]) -> T:
    """Rolled back where the server or the work itself has refused something: what else goes wrong ends the connection.

    (A rollback after a lost answer would wait for an answer as well.)
    """
    transaction = session.connection.transaction()
    await transaction.start()
    try:
        answer = await work(session)
    except asyncpg.PostgresError as error:
        if not ends_connection(error):
            await transaction.rollback()
        raise
    except TaskHarborError:  # between two statements
        await transaction.rollback()
        raise
    await transaction.commit()
    return answer


async def _connected(connecting: Coroutine[Any, Any, asyncpg.Connection]) -> asyncpg.Connection:
    """Connect. A cancelled caller waits for the connection, within `GRACE_SECONDS`, and closes it.

    asyncpg drops a future when it is cancelled while it negotiates TLS. The event loop then prints the future's
    exception ("Future exception was never retrieved"), which is what a user sees of Ctrl-C.
    """
    task = asyncio.ensure_future(connecting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_close_unused)
        try:
            await asyncio.wait([task], timeout=GRACE_SECONDS)
        finally:
            task.cancel()
        await asyncio.wait([task])
        raise


def _close_unused(task: asyncio.Task[asyncpg.Connection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


class Connections:
    def __init__(
        self, dsn: str, schema: str, sql: dict[str, str], *, pooler: bool, most: int = CONNECTIONS
    ) -> None:
        self.dsn = dsn
        self.schema = schema
        self._sql = sql
        # Behind a pooler that lends a server connection for one transaction at a time, a statement that was
        # prepared on one of them is unknown on the next: everything happens inside transactions, unprepared.
        self._pooler = pooler
        self._seats = seats_of(most, listener=not pooler)
        self._named = names_application(dsn)  # as the caller wants it
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()

    # -- running work --

    async def run(self, lane: Lane, work: Work[T], now: int | None = None, *, prompt: bool = False) -> T:
        """One statement, in a transaction of its own, repeated when it collided with another one."""
        return await self._repeatedly(lane, work, now, transaction=self._pooler, prompt=prompt)

    async def transact(self, lane: Lane, work: Work[T], now: int | None = None, *, prompt: bool = False) -> T:
        """Several statements in one transaction, repeated when it collided with another one."""
        return await self._repeatedly(lane, work, now, transaction=True, prompt=prompt)

    async def _repeatedly(
        self, lane: Lane, work: Work[T], now: int | None, *, transaction: bool, prompt: bool
    ) -> T:
        try:
            for repetition in range(COLLISIONS_MAX):
                try:
                    return await self._once(lane, work, now, transaction=transaction, prompt=prompt)
                except COLLISIONS:
                    if repetition == COLLISIONS_MAX - 1:
                        raise
                # Jittered: the other side of the collision begins anew as well.
                await asyncio.sleep(random.uniform(0, 0.002 * (repetition + 1)))
        except asyncpg.InsufficientPrivilegeError as error:
            raise await self._denied(error) from error
        except TaskHarborError:
            raise
        except Exception as error:
            raise self._explained(error) from error
        raise AssertionError("the last repetition returns or raises")

    async def _once(
        self, lane: Lane, work: Work[T], now: int | None, *, transaction: bool, prompt: bool
    ) -> T:
        pool = await self._pool()
        async with pool.seats[lane]:
            try:
                wire = pool.take(lane) or Wire.tap(await self.connect())
            except _UNANSWERED:
                pool.distrust()
                raise
            whole = False
            connection = wire.connection
            seconds = (PROMPT_SECONDS if prompt else COMMAND_SECONDS) * pool.patience[lane]
            watch = Watch(wire, seconds)
            try:
                idle_seconds = None if self._pooler or not transaction else IDLE_SECONDS
                session = Session(connection, self._sql, now, watch=watch, idle_seconds=idle_seconds)
                answer = await (_transaction(session, work) if transaction else work(session))
                pool.patience[lane] = 1
                whole = True
                return answer
            except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                if watch.is_over:
                    pool.distrust()
                    # Were it the server that is slow, and not the network that is gone, it would never be done.
                    pool.patience[lane] = min(2 * pool.patience[lane], PATIENCE_MAX)
                    raise TimeoutError(f"nothing was heard of it for {watch.seconds:g} s") from error
                if isinstance(error, asyncpg.PostgresError):
                    whole = not ends_connection(error)  # the server has refused something, and listens on
                    if not whole:
                        pool.distrust()
                raise
            except OSError:
                pool.distrust()
                raise
            except TaskHarborError:
                whole = True
                raise
            finally:
                watch.stop()
                if whole:
                    pool.give_back(lane, wire)
                else:
                    # Cancelled or broken in the middle of something: its next answer is unknown.
                    connection.terminate()

    async def _denied(self, error: asyncpg.InsufficientPrivilegeError) -> BaseException:
        """The server names what it refused to touch; which right was missing has to be asked for."""
        try:
            return await self._once(
                Lane.REST,
                lambda session: explained_denial(session, self.dsn, self.schema, error),
                None,
                transaction=True,
                prompt=False,
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            return self._explained(error)

    def _explained(self, error: BaseException) -> BaseException:
        return explained(error, self.dsn, self.schema)

    # -- connections --

    async def connect(
        self, command_seconds: float | None = None, name: str = "taskharbor"
    ) -> asyncpg.Connection:
        async with asyncio.timeout(CONNECT_SECONDS):
            try:
                connection = await _connected(
                    asyncpg.connect(
                        self.dsn,
                        timeout=CONNECT_SECONDS,
                        command_timeout=command_seconds,
                        statement_cache_size=0 if self._pooler else 200,
                        max_cached_statement_lifetime=0,  # for as long as the connection lasts
                        server_settings={} if self._named else {"application_name": name},
                    )
                )
            except (asyncpg.PostgresError, ValueError, FileNotFoundError) as error:
                refused = refused_address(error, self.dsn)
                if refused is None:
                    raise
                raise refused from error
            try:
                if self._pooler:
                    async with connection.transaction():
                        await instants.install(connection)
                else:
                    # Not with the server_settings: a pooler in session mode refuses those that it does not know.
                    idle = {"idle_in_transaction_session_timeout": _milliseconds(IDLE_SECONDS)}
                    await connection.execute(
                        "".join(f"SET {key} = '{value}';" for key, value in {**idle, **SESSION}.items())
                    )
                    await instants.install(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection

    @asynccontextmanager
    async def dedicated(
        self, command_seconds: float = COMMAND_SECONDS, name: str = "taskharbor"
    ) -> AsyncIterator[asyncpg.Connection]:
        """A connection for something long, outside of the lanes; `name` is what the server calls it."""
        try:
            connection = await self.connect(command_seconds, name)
            try:
                yield connection
            finally:
                connection.terminate()
        except TaskHarborError:
            raise
        except Exception as error:
            raise self._explained(error) from error

    async def distrust(self) -> None:
        """A connection that is none of the lanes' was lost: theirs may be as well."""
        (await self._pool()).distrust()

    async def _pool(self) -> _Pool:
        if self._pid != os.getpid():
            _INHERITED.append(self._pools)
            self._reset()
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = _Pool(self._seats)
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

    def __init__(self, seats: dict[Lane, int]) -> None:
        self.seats = {lane: asyncio.Semaphore(seats[lane]) for lane in Lane}
        self.patience = dict.fromkeys(Lane, 1)  # how many times the usual time a lane may take
        self._idle: dict[Lane, list[Wire]] = {lane: [] for lane in Lane}
        self._closed = False
        self._watch = self._until_the_loop_ends()

    def take(self, lane: Lane) -> Wire | None:
        idle = self._idle[lane]
        while idle:
            wire = idle.pop()
            if not wire.connection.is_closed():
                return wire
        return None

    def give_back(self, lane: Lane, wire: Wire) -> None:
        if self._closed:
            wire.connection.terminate()
        elif not wire.connection.is_closed():
            self._idle[lane].append(wire)

    def distrust(self) -> None:
        """One connection was lost, so the idle ones may be as well: each would cost its user the whole time."""
        for idle in self._idle.values():
            while idle:
                idle.pop().connection.terminate()

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
                connection = idle.pop().connection
                try:
                    await connection.close(timeout=CLOSE_SECONDS)
                except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    connection.terminate()
