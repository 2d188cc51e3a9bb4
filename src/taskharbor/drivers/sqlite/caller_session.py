"""Enqueue and read inside a caller's own transaction: on its connection, committed by it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from taskharbor.clock import Clock
from taskharbor.drivers.callers import SQLiteCaller, SQLiteConnection, caller_of
from taskharbor.drivers.callers.caller import no_transaction
from taskharbor.drivers.callers.sqlite3 import Sqlite3Caller
from taskharbor.drivers.sqlite import schema
from taskharbor.drivers.sqlite.session import Session
from taskharbor.errors import ConfigurationError, SchemaError

T = TypeVar("T")


class CallerSession:
    """The driver's operations on a connection of the application. Its errors are the application's to handle."""

    def __init__(self, connection: object, path: str, clock: Clock, *, same_database: bool = False) -> None:
        self.caller = caller_of(connection, SQLiteCaller)  # type: ignore[type-abstract]
        self._path = path
        self._same_database = same_database
        self._clock = clock
        # SQLAlchemy and Django connect when they are first used, and perhaps to another file each time.
        self._is_checked = isinstance(self.caller, Sqlite3Caller)
        if isinstance(self.caller, Sqlite3Caller):
            self._check(self.caller.connection)

    async def write(self, operation: Callable[[Session], T], now: int | None = None) -> T:
        """Run the operation inside the caller's transaction: all of it, or nothing."""
        self.caller.refuse_synchronous()
        return await self.caller.run(
            lambda connection: self._all_or_nothing(connection, operation, self._session(connection, now))
        )

    def can_read(self) -> bool:
        return self.caller.reaches_here() and (self._same_database or self.caller.in_transaction())

    async def read(self, operation: Callable[[Session], T], now: int | None = None) -> T:
        def run(connection: SQLiteConnection) -> T:
            if self._same_database:  # nothing has been enqueued on it, so nothing has been checked
                _check_tables(connection, self._path)
            return operation(self._session(connection, now))

        return await self.caller.run(run)

    def _session(self, connection: SQLiteConnection, now: int | None) -> Session:
        return Session(cast(Any, connection), self._clock.now() if now is None else now)

    def _all_or_nothing(
        self, connection: SQLiteConnection, operation: Callable[[Session], T], session: Session
    ) -> T:
        """A caller that goes on after an error, and commits, stores nothing of what failed."""
        if not self._is_checked:
            self._check(connection)
        # Without a transaction, the savepoint would begin one that the library does not know of, and commit it too.
        if not connection.raw.in_transaction:
            if _is_autocommit(connection):
                raise no_transaction(self.caller.begin)
            connection.execute("BEGIN IMMEDIATE")
        connection.execute("SAVEPOINT taskharbor")
        try:
            result = operation(session)
        except BaseException:
            if connection.raw.in_transaction:  # a trigger may have rolled back all of it
                connection.execute("ROLLBACK TO taskharbor")
                connection.execute("RELEASE taskharbor")
            raise
        connection.execute("RELEASE taskharbor")
        return result

    def _check(self, connection: SQLiteConnection) -> None:
        if connection.raw.text_factory is not str:
            raise ConfigurationError(
                "transaction() needs a connection whose text_factory is str, the default"
            )
        if not self._same_database:
            _check_file(connection, self._path)
        _check_tables(connection, self._path)


def _check_tables(connection: SQLiteConnection, path: str) -> None:
    tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'taskharbor_schema'")
    if not tables.fetchone()[0]:
        raise SchemaError(
            f"the connection given to transaction() is to a database without TaskHarbor's tables; connect to {path}, "
            "or point the Harbor at your own file and run `taskharbor migrate`"
        )
    version = schema.applied_version(connection)
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


def _check_file(connection: SQLiteConnection, path: str) -> None:
    """The harbor's workers look for jobs in one file."""
    databases = connection.execute("PRAGMA database_list").fetchall()
    file = next((file for _, name, file in databases if name == "main"), "")
    if not file or not os.path.exists(path) or not os.path.samefile(file, path):
        raise ConfigurationError(
            f"the connection given to transaction() is to {file or 'a database in memory'}, "
            f"and the harbor is on {path}; both must be the same file"
        )


def _is_autocommit(connection: SQLiteConnection) -> bool:
    # Python 3.12 has an attribute `autocommit` as well: True, False, or the older way, which isolation_level rules.
    return connection.raw.isolation_level is None or getattr(connection.raw, "autocommit", None) is True
