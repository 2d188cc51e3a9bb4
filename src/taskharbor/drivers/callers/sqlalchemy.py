"""SQLAlchemy: a connection or a session, synchronous or not, over any driver.

Statements go through SQLAlchemy and not past it, so that it knows of the transaction it has to commit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from taskharbor.drivers.callers.caller import (
    Arguments,
    PostgresCaller,
    SQLiteCaller,
    SQLiteConnection,
    named,
    no_transaction,
)
from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

T = TypeVar("T")


class _SQLAlchemyCaller(PostgresCaller, SQLiteCaller):
    begin = "leave out isolation_level=AUTOCOMMIT, and commit the session or connection yourself"
    _given: Connection | Session | AsyncConnection | AsyncSession

    def __init__(self) -> None:
        self._begun: object = None  # the transaction of SQLAlchemy that SQLite has begun as well

    @staticmethod
    def placeholder(number: int) -> str:
        return f"(:a{number})"

    def in_transaction(self) -> bool:
        return bool(self._given.in_transaction())

    def _run_on(self, connection: Connection, operation: Callable[[SQLiteConnection], T]) -> T:
        if not connection.in_transaction():
            connection.begin()  # as its execute() does, so that its commit() commits
        on_sqlite = SQLAlchemyOnSQLite(connection)
        if connection.in_nested_transaction():
            self._refuse_late_beginning(connection, on_sqlite.raw)
        try:
            return operation(on_sqlite)
        finally:
            if not connection.in_nested_transaction() and on_sqlite.raw.in_transaction:
                self._begun = connection.get_transaction()

    def _refuse_late_beginning(self, connection: Connection, raw: Any) -> None:
        """Python's sqlite3 begins a transaction at the first write. A savepoint before that is a transaction of its
        own for SQLite: its end commits the job, and SQLAlchemy's rollback comes too late."""
        begins_late = raw.isolation_level is not None and _autocommit_of(raw) is not False
        if begins_late and connection.get_transaction() is not self._begun:
            raise ConfigurationError(
                "transaction() cannot enqueue its first job inside begin_nested(): Python's sqlite3 may not have "
                "begun the transaction around the savepoint, and the savepoint's end would commit the job. Enqueue "
                "before begin_nested(), or let the engine begin at once, for example by "
                'connect_args={"autocommit": False} (Python 3.12 and newer)'
            )


class SQLAlchemyCaller(_SQLAlchemyCaller):
    asynchronous = False

    def __init__(self, given: Connection | Session) -> None:
        super().__init__()
        self._given: Connection | Session = given

    async def ensure_transaction(self) -> None:
        _refuse_autocommit(self._connection())

    async def value(self, statement: str, arguments: Arguments) -> str | None:
        answer: str | None = self._connection().execute(_text(statement), named(arguments)).scalar_one()
        return answer

    async def do(self, statement: str, arguments: Arguments) -> None:
        self._connection().execute(_text(statement), named(arguments))

    async def run(self, operation: Callable[[SQLiteConnection], T]) -> T:
        return self._run_on(self._connection(), operation)

    def _connection(self) -> Connection:
        from sqlalchemy import Connection

        given = self._given
        return given if isinstance(given, Connection) else given.connection()


class AsyncSQLAlchemyCaller(_SQLAlchemyCaller):
    asynchronous = True

    def __init__(self, given: AsyncConnection | AsyncSession) -> None:
        super().__init__()
        self._given: AsyncConnection | AsyncSession = given

    async def ensure_transaction(self) -> None:
        connection = await self._connection()
        await connection.run_sync(_refuse_autocommit)

    async def value(self, statement: str, arguments: Arguments) -> str | None:
        connection = await self._connection()
        answer: str | None = (await connection.execute(_text(statement), named(arguments))).scalar_one()
        return answer

    async def do(self, statement: str, arguments: Arguments) -> None:
        connection = await self._connection()
        await connection.execute(_text(statement), named(arguments))

    async def run(self, operation: Callable[[SQLiteConnection], T]) -> T:
        connection = await self._connection()
        return await connection.run_sync(self._run_on, operation)

    async def _connection(self) -> AsyncConnection:
        from sqlalchemy.ext.asyncio import AsyncConnection

        given = self._given
        return given if isinstance(given, AsyncConnection) else await given.connection()


class SQLAlchemyOnSQLite:
    """SQLAlchemy's connection as the SQLite driver uses one."""

    def __init__(self, connection: Connection) -> None:
        self.execute = connection.exec_driver_sql
        self.raw: Any = connection.connection.driver_connection

    def executemany(self, statement: str, rows: Any, /) -> CursorResult[Any]:
        return self.execute(statement, list(rows))


def _autocommit_of(raw: Any) -> object:
    import sqlite3

    try:
        return getattr(getattr(raw, "_conn", raw), "autocommit", None)  # aiosqlite shows no such attribute
    except sqlite3.ProgrammingError:  # only its own thread may ask
        return None


@cache
def _text(statement: str) -> TextClause:
    from sqlalchemy import text

    return text(statement)


def _refuse_autocommit(connection: Connection) -> None:
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise no_transaction(_SQLAlchemyCaller.begin)
