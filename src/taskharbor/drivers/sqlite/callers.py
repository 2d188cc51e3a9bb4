"""Enqueueing inside the caller's own transaction: on its connection, in its thread, committed by it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from taskharbor.drivers.sqlite import schema
from taskharbor.drivers.sqlite.session import Session
from taskharbor.errors import ConfigurationError, SchemaError

T = TypeVar("T")


class CallersSession(Session):
    """A session on a connection that is not ours: its row factory is left alone, its errors are its own."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        _check(connection, path)
        super().__init__(connection, now=0)
        self.execute = self._execute
        self.executemany = self._executemany

    def all_or_nothing(self, operation: Callable[[Session], T]) -> T:
        """A caller who goes on after an error, and commits, has nothing of what failed."""
        self.execute("SAVEPOINT taskharbor")
        try:
            result = operation(self)
        except BaseException:
            if self.connection.in_transaction:  # a trigger may have rolled back all of it
                self.execute("ROLLBACK TO taskharbor")
                self.execute("RELEASE taskharbor")
            raise
        self.execute("RELEASE taskharbor")
        return result

    def _cursor(self) -> sqlite3.Cursor:
        # A savepoint would begin a transaction that Python's sqlite3 does not know of, and commit it too.
        if not self.connection.in_transaction:
            if _is_autocommit(self.connection):
                raise ConfigurationError(
                    "the connection given to transaction() commits by itself (autocommit) and has no transaction "
                    'open; begin one first: connection.execute("BEGIN IMMEDIATE")'
                )
            self.connection.execute("BEGIN IMMEDIATE")
        cursor = self.connection.cursor()
        cursor.row_factory = None
        return cursor

    def _execute(self, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        return self._cursor().execute(statement, parameters)

    def _executemany(self, statement: str, rows: Iterable[Any]) -> sqlite3.Cursor:
        return self._cursor().executemany(statement, rows)


def _check(connection: sqlite3.Connection, path: str) -> None:
    if connection.text_factory is not str:
        raise ConfigurationError("transaction() needs a connection whose text_factory is str, the default")
    cursor = connection.cursor()
    cursor.row_factory = None
    _check_file(cursor, path)
    tables = cursor.execute("SELECT count(*) FROM sqlite_master WHERE name = 'taskharbor_schema'").fetchone()
    if not tables[0]:
        raise SchemaError(
            f"the connection given to transaction() is to a database without TaskHarbor's tables; connect to {path}, "
            "or point the Harbor at your own file and run `taskharbor migrate`"
        )
    version = schema.applied_version(cursor)
    if not schema.is_served(version):
        if version.number > schema.latest_version():
            remedy = "upgrade TaskHarbor"
        elif schema.is_unreleased(version.number):
            remedy = "a checkout from before the first release made it: use another file"
        else:
            remedy = "run `taskharbor migrate`"
        raise SchemaError(
            f"the connection given to transaction() has schema version {version.number}, this version of TaskHarbor "
            f"works with {schema.latest_version()}; {remedy}"
        )


def _check_file(cursor: sqlite3.Cursor, path: str) -> None:
    """The jobs must come to where the harbor's workers look for them."""
    file = next((file for _, name, file in cursor.execute("PRAGMA database_list") if name == "main"), "")
    if not file or not os.path.exists(path) or not os.path.samefile(file, path):
        raise ConfigurationError(
            f"the connection given to transaction() is to {file or 'a database in memory'}, "
            f"and the harbor is on {path}; both must be the same file"
        )


def _is_autocommit(connection: sqlite3.Connection) -> bool:
    # Python 3.12 has an attribute `autocommit` as well: True, False, or the older way, which isolation_level rules.
    return connection.isolation_level is None or getattr(connection, "autocommit", None) is True
