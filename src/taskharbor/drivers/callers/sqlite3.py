"""sqlite3, Python's own: a connection, used in the caller's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from taskharbor.drivers.callers.caller import SQLiteCaller, SQLiteConnection

T = TypeVar("T")


class PlainRows:
    """The connection with rows as tuples, whatever row factory the application has set."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw

    def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return self._cursor().execute(statement, parameters)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        return self._cursor().executemany(statement, rows)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self.raw.cursor()
        cursor.row_factory = None
        return cursor


class Sqlite3Caller(SQLiteCaller):
    asynchronous = False
    begin = 'connection.execute("BEGIN IMMEDIATE")'

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = PlainRows(connection)

    def in_transaction(self) -> bool:
        return self.connection.raw.in_transaction

    async def run(self, operation: Callable[[SQLiteConnection], T]) -> T:
        return operation(self.connection)
