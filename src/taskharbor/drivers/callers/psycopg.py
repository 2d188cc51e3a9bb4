"""psycopg 3: a connection, synchronous or not, from a pool or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskharbor.drivers.callers.caller import Arguments, PostgresCaller, named, no_transaction

if TYPE_CHECKING:
    import psycopg

_BEGIN = "with connection.transaction(): …"


class _PsycopgCaller(PostgresCaller):
    _connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

    @staticmethod
    def placeholder(number: int) -> str:
        return f"%(a{number})s"

    def in_transaction(self) -> bool:
        from psycopg.pq import TransactionStatus

        return self._connection.info.transaction_status is not TransactionStatus.IDLE


class PsycopgCaller(_PsycopgCaller):
    asynchronous = False

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection: psycopg.Connection[Any] = connection

    async def ensure_transaction(self) -> None:
        if self._connection.autocommit and not self.in_transaction():
            raise no_transaction(_BEGIN)

    async def value(self, statement: str, arguments: Arguments) -> str | None:
        with self._cursor() as cursor:
            [answer] = cursor.execute(statement.encode(), named(arguments), prepare=False).fetchone() or [
                None
            ]
            return answer

    async def do(self, statement: str, arguments: Arguments) -> None:
        with self._cursor() as cursor:
            cursor.execute(statement.encode(), named(arguments), prepare=False)

    def _cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        """Not the connection's own kind, which may take other placeholders, or give rows of any form."""
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        return Cursor(self._connection, row_factory=tuple_row)


class AsyncPsycopgCaller(_PsycopgCaller):
    asynchronous = True

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection: psycopg.AsyncConnection[Any] = connection

    async def ensure_transaction(self) -> None:
        if self._connection.autocommit and not self.in_transaction():
            raise no_transaction(f"async {_BEGIN}")

    async def value(self, statement: str, arguments: Arguments) -> str | None:
        async with self._cursor() as cursor:
            await cursor.execute(statement.encode(), named(arguments), prepare=False)
            [answer] = await cursor.fetchone() or [None]
            return answer

    async def do(self, statement: str, arguments: Arguments) -> None:
        async with self._cursor() as cursor:
            await cursor.execute(statement.encode(), named(arguments), prepare=False)

    def _cursor(self) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        return AsyncCursor(self._connection, row_factory=tuple_row)
