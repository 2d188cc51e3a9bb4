"""Django: `django.db.connection`, or one of `django.db.connections`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from taskharbor.drivers.callers.caller import (
    Arguments,
    PostgresCaller,
    SQLiteCaller,
    SQLiteConnection,
    named,
    no_transaction,
)
from taskharbor.drivers.callers.recognition import is_of

T = TypeVar("T")


class DjangoCaller(PostgresCaller, SQLiteCaller):
    asynchronous = False
    begin = "with django.db.transaction.atomic(): …"

    def __init__(self, connection: Any) -> None:
        from django.db import connections

        # `django.db.connection` is another one in every thread: the caller means that of its own.
        is_proxy = is_of(connection, "django.utils.connection", "ConnectionProxy")
        self._connection = connections[connection.alias] if is_proxy else connection

    def in_transaction(self) -> bool:
        # Inside atomic() it is off as well; a connection that was never used has nothing open.
        return self._connection.connection is not None and not self._connection.autocommit

    async def ensure_transaction(self) -> None:
        if self._connection.get_autocommit():
            raise no_transaction(self.begin)

    # -- PostgreSQL --

    @staticmethod
    def placeholder(number: int) -> str:
        return f"%(a{number})s"

    async def value(self, statement: str, arguments: Arguments) -> str | None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, named(arguments))
            [answer] = cursor.fetchone() or [None]
            return answer  # type: ignore[no-any-return]

    async def do(self, statement: str, arguments: Arguments) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, named(arguments))

    # -- SQLite --

    async def run(self, operation: Callable[[SQLiteConnection], T]) -> T:
        from taskharbor.drivers.callers.sqlite3 import PlainRows

        connection = self._connection
        connection.validate_no_broken_transaction()
        with connection.cursor():  # opens it, and refuses another thread and a running loop as Django does
            pass
        # Past Django's cursors, whose log of statements knows no placeholder but its own.
        with connection.wrap_database_errors:
            return operation(PlainRows(connection.connection))
