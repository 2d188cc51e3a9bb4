"""Applications with a connection of their own, one for each library: what a test does with it, whatever it is.

A story is a coroutine. An application whose library is asynchronous tells it on a loop and enqueues with the
asynchronous form; any other steps it in this thread, without a loop, and enqueues with the synchronous form.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, ClassVar

import asyncpg
import django
import django.conf
import django.db
import django.db.transaction
import psycopg
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskharbor import Harbor, Job, Workflow
from taskharbor.sync import run_inline

django.conf.settings.configure(USE_TZ=True, DATABASES={"default": {}})
django.setup()


class Application(ABC):
    asynchronous: ClassVar[bool]
    prepares: ClassVar[bool] = False  # its library keeps statements prepared, as it would with its own
    connection: Any  # what `harbor.transaction` is given

    def __init__(self, dsn: str, harbor: Harbor) -> None:
        self.dsn = dsn
        self.harbor = harbor

    def tell(self, story: Callable[[Any], Awaitable[None]]) -> None:
        async def told() -> None:
            async with self.connected():
                await story(self)

        asyncio.run(told()) if self.asynchronous else run_inline(told())

    @abstractmethod
    def connected(self) -> AbstractAsyncContextManager[None]: ...

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Committed when the block is left, rolled back when it raises."""

    @abstractmethod
    def savepoint(self) -> AbstractAsyncContextManager[Any]: ...

    @abstractmethod
    async def execute(self, statement: str) -> None: ...

    @abstractmethod
    async def value(self, statement: str) -> Any: ...

    async def enqueue(self, task: str, payload: Any = None, **options: Any) -> Job[Any]:
        if self.asynchronous:
            return await self.harbor.aenqueue(task, payload, **options)
        return self.harbor.enqueue(task, payload, **options)

    async def enqueue_many(self, signatures: list[Any]) -> list[Job[Any]]:
        if self.asynchronous:
            return await self.harbor.aenqueue_many(signatures)
        return self.harbor.enqueue_many(signatures)

    async def get(self, job_id: str) -> Job[Any]:
        if self.asynchronous:
            return await self.harbor.jobs.aget(job_id)
        return self.harbor.jobs.get(job_id)

    async def enqueue_workflow(self, composition: Any) -> Workflow:
        stored: Workflow = await composition.aenqueue() if self.asynchronous else composition.enqueue()
        return stored

    async def get_workflow(self, workflow_id: str) -> Workflow:
        if self.asynchronous:
            return await self.harbor.workflows.aget(workflow_id)
        return self.harbor.workflows.get(workflow_id)


@asynccontextmanager
async def entered(context: AbstractContextManager[Any]) -> AsyncIterator[None]:
    """A synchronous block, entered and left without suspending."""
    with context:
        yield


# -- asyncpg -----------------------------------------------------------------------------------------


class Asyncpg(Application):
    asynchronous = True
    prepares = True

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        self.connection = await asyncpg.connect(self.dsn)
        # What an application may do, and what must not be in our way.
        await self.connection.set_type_codec(
            "json", schema="pg_catalog", encoder=str, decoder=lambda text: 1 / 0
        )
        try:
            yield
        finally:
            await self.connection.close()

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self.connection.transaction()  # type: ignore[no-any-return]

    savepoint = transaction

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def value(self, statement: str) -> Any:
        return await self.connection.fetchval(statement)


class AsyncpgPool(Asyncpg):
    prepares = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        pool = asyncpg.create_pool(self.dsn, min_size=1, max_size=1, statement_cache_size=0)
        async with pool, pool.acquire() as self.connection:
            yield


# -- psycopg -----------------------------------------------------------------------------------------


class Psycopg(Application):
    asynchronous = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as self.connection:
            yield

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return entered(self.connection.transaction())

    savepoint = transaction

    async def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    async def value(self, statement: str) -> Any:
        row = self.connection.execute(statement).fetchone()
        return next(iter(row.values()))


class PsycopgRaw(Psycopg):
    """Other placeholders, and autocommit between its transactions."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        with psycopg.connect(
            self.dsn, row_factory=dict_row, cursor_factory=psycopg.RawCursor, autocommit=True
        ) as self.connection:
            yield


class AsyncPsycopg(Application):
    asynchronous = True

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        async with await psycopg.AsyncConnection.connect(self.dsn, row_factory=dict_row) as self.connection:
            yield

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self.connection.transaction()  # type: ignore[no-any-return]

    savepoint = transaction

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def value(self, statement: str) -> Any:
        row = await (await self.connection.execute(statement)).fetchone()
        return next(iter(row.values()))


# -- SQLAlchemy --------------------------------------------------------------------------------------


def address(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


class SQLAlchemyConnection(Application):
    asynchronous = False
    prepares = True
    settings: ClassVar[dict[str, Any]] = {}

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        engine = self.engine()
        with self.opened(engine) as self.connection:
            yield
        engine.dispose()

    def engine(self) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(address(self.dsn, "psycopg"), connect_args=self.settings)

    def opened(self, engine: sqlalchemy.Engine) -> AbstractContextManager[Any]:
        return engine.connect()

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return entered(self.connection.begin())

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        return entered(self.connection.begin_nested())

    async def execute(self, statement: str) -> None:
        self.connection.execute(sqlalchemy.text(statement))

    async def value(self, statement: str) -> Any:
        return self.connection.execute(sqlalchemy.text(statement)).scalar()


class SQLAlchemySession(SQLAlchemyConnection):
    prepares = False
    settings: ClassVar[dict[str, Any]] = {"prepare_threshold": None}

    def opened(self, engine: sqlalchemy.Engine) -> AbstractContextManager[Any]:
        return Session(engine)


class AsyncSQLAlchemyConnection(Application):
    asynchronous = True
    prepares = True
    driver = "asyncpg"
    settings: ClassVar[dict[str, Any]] = {}

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        engine = self.engine()
        async with self.opened(engine) as self.connection:
            yield
        await engine.dispose()

    def engine(self) -> Any:
        return create_async_engine(address(self.dsn, self.driver), connect_args=self.settings)

    def opened(self, engine: Any) -> AbstractAsyncContextManager[Any]:
        return engine.connect()  # type: ignore[no-any-return]

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self.connection.begin()  # type: ignore[no-any-return]

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        return self.connection.begin_nested()  # type: ignore[no-any-return]

    async def execute(self, statement: str) -> None:
        await self.connection.execute(sqlalchemy.text(statement))

    async def value(self, statement: str) -> Any:
        return (await self.connection.execute(sqlalchemy.text(statement))).scalar()


class AsyncSQLAlchemySession(AsyncSQLAlchemyConnection):
    driver = "psycopg"
    prepares = False
    settings: ClassVar[dict[str, Any]] = {"prepare_threshold": None}

    def opened(self, engine: Any) -> AbstractAsyncContextManager[Any]:
        return AsyncSession(engine)


# -- Django ------------------------------------------------------------------------------------------


class Django(Application):
    asynchronous = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        use_in_django(self.dsn)
        self.connection = django.db.connection
        yield
        django.db.connection.close()

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return entered(django.db.transaction.atomic())

    savepoint = transaction

    async def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    async def value(self, statement: str) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()[0]


def use_in_django(dsn: str) -> None:
    """Make this its default database."""
    url = sqlalchemy.make_url(dsn)
    django.db.connections.databases["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "USER": url.username,
        "HOST": url.host,
        "PORT": url.port,
    }
    django.db.connections.configure_settings(django.db.connections.databases)
    if hasattr(django.db.connections._connections, "default"):
        del django.db.connections["default"]


APPLICATIONS: list[type[Application]] = [
    Asyncpg,
    AsyncpgPool,
    Psycopg,
    PsycopgRaw,
    AsyncPsycopg,
    SQLAlchemyConnection,
    SQLAlchemySession,
    AsyncSQLAlchemyConnection,
    AsyncSQLAlchemySession,
    Django,
]
