"""Django: `django.db.connection`, or one of `django.db.connections`."""

from __future__ import annotations

from typing import Any

from taskharbor.drivers.libraries import is_django_proxy
from taskharbor.drivers.postgres.callers.caller import Arguments, Caller, named, no_transaction


class DjangoCaller(Caller):
    asynchronous = False

    def __init__(self, connection: Any) -> None:
        from django.db import connections

        # `django.db.connection` is another one in every thread: the caller means that of its own.
        self._connection = connections[connection.alias] if is_django_proxy(connection) else connection

    @staticmethod
    def placeholder(number: int) -> str:
        return f"%(a{number})s"

    def in_transaction(self) -> bool:
        # Inside atomic() it is off as well; a connection that was never used has nothing open.
        return self._connection.connection is not None and not self._connection.autocommit

    async def ensure_transaction(self) -> None:
        if self._connection.get_autocommit():
            raise no_transaction("with django.db.transaction.atomic(): …")

    async def value(self, statement: str, arguments: Arguments) -> str | None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, named(arguments))
            [answer] = cursor.fetchone() or [None]
            return answer  # type: ignore[no-any-return]

    async def do(self, statement: str, arguments: Arguments) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, named(arguments))
