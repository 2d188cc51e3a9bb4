"""SQLAlchemy: a connection or a session, synchronous or not, over whatever driver for PostgreSQL.

Statements go through SQLAlchemy and not past it, so that it knows of the transaction it has to commit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from taskharbor.drivers.postgres.callers.caller import Arguments, Caller, named, no_transaction

if TYPE_CHECKING:
    from sqlalchemy import Connection, TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

_BEGIN = "leave out isolation_level=AUTOCOMMIT, and commit the session or connection yourself"


class SQLAlchemyCaller(Caller):
    asynchronous = False

    def __init__(self, given: Connection | Session) -> None:
        self._given = given

    @staticmethod
    def placeholder(number: int) -> str:
        return f"(:a{number})"

    def in_transaction(self) -> bool:
        return bool(self._given.in_transaction())

    async def ensure_transaction(self) -> None:
        _refuse_autocommit(self._connection())

    async def value(self, statement: str, arguments: Arguments) -> str | None:
        answer: str | None = self._connection().execute(_text(statement), named(arguments)).scalar_one()
        return answer

    async def do(self, statement: str, arguments: Arguments) -> None:
        self._connection().execute(_text(statement), named(arguments))

    def _connection(self) -> Connection:
        from sqlalchemy import Connection

        given = self._given
        return given if isinstance(given, Connection) else given.connection()


class AsyncSQLAlchemyCaller(Caller):
    asynchronous = True

    def __init__(self, given: AsyncConnection | AsyncSession) -> None:
        self._given = given

    @staticmethod
    def placeholder(number: int) -> str:
        return f"(:a{number})"

    def in_transaction(self) -> bool:
        return bool(self._given.in_transaction())

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

    async def _connection(self) -> AsyncConnection:
        from sqlalchemy.ext.asyncio import AsyncConnection

        given = self._given
        return given if isinstance(given, AsyncConnection) else await given.connection()


@cache
def _text(statement: str) -> TextClause:
    from sqlalchemy import text

    return text(statement)


def _refuse_autocommit(connection: Connection) -> None:
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise no_transaction(_BEGIN)
