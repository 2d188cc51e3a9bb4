"""Recognise the library that a connection comes from, without importing any of them.

An application that has an object of a library has loaded the module of its class.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, TypeVar

from taskharbor.drivers.callers.caller import Caller
from taskharbor.errors import ConfigurationError

C = TypeVar("C", bound=Caller)

# The class of a connection, and the caller for it: its module here, and its name.
_CALLERS = {
    ("asyncpg", "Connection"): ("asyncpg", "AsyncpgCaller"),
    ("asyncpg.pool", "PoolConnectionProxy"): ("asyncpg", "AsyncpgCaller"),
    ("psycopg", "Connection"): ("psycopg", "PsycopgCaller"),
    ("psycopg", "AsyncConnection"): ("psycopg", "AsyncPsycopgCaller"),
    ("sqlite3", "Connection"): ("sqlite3", "Sqlite3Caller"),
    ("sqlalchemy.engine.base", "Connection"): ("sqlalchemy", "SQLAlchemyCaller"),
    ("sqlalchemy.orm.session", "Session"): ("sqlalchemy", "SQLAlchemyCaller"),
    ("sqlalchemy.orm.scoping", "scoped_session"): ("sqlalchemy", "SQLAlchemyCaller"),
    ("sqlalchemy.ext.asyncio.engine", "AsyncConnection"): ("sqlalchemy", "AsyncSQLAlchemyCaller"),
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"): ("sqlalchemy", "AsyncSQLAlchemyCaller"),
    ("sqlalchemy.ext.asyncio.scoping", "async_scoped_session"): ("sqlalchemy", "AsyncSQLAlchemyCaller"),
    ("django.utils.connection", "ConnectionProxy"): ("django", "DjangoCaller"),
    ("django.db.backends.base.base", "BaseDatabaseWrapper"): ("django", "DjangoCaller"),
}
_SYSTEMS = {"asyncpg": "postgresql", "psycopg": "postgresql", "sqlite3": "sqlite"}
_INSTEAD = (
    ("asyncpg.pool", "Pool", "acquire a connection from the pool"),
    ("psycopg_pool", "ConnectionPool", "take a connection from the pool"),
    ("psycopg_pool", "AsyncConnectionPool", "take a connection from the pool"),
    ("sqlalchemy.engine.base", "Engine", "give a connection or a session of it"),
    ("sqlalchemy.ext.asyncio.engine", "AsyncEngine", "give a connection or a session of it"),
    ("psycopg2.extensions", "connection", "use psycopg 3, or SQLAlchemy over psycopg2"),
    ("aiosqlite.core", "Connection", "use sqlite3, or SQLAlchemy over aiosqlite"),
    ("django.db.utils", "ConnectionHandler", 'give one of them, such as connections["default"]'),
)


def caller_of(connection: Any, kind: type[C]) -> C:
    """The caller for a connection to a store of this kind; a ConfigurationError for any other object."""
    library, caller = next((_CALLERS[known] for known in _CALLERS if is_of(connection, *known)), ("", ""))
    system = library and (_SYSTEMS.get(library) or _system_of(connection))
    if not system:
        raise ConfigurationError(
            f"transaction() takes a connection to the harbor's database, {kind.takes}, "
            f"not {_described(connection)}{_instead(connection)}"
        )
    if system != kind.system:
        raise ConfigurationError(
            f"the connection given to transaction() is to a database of kind {system}, and the harbor is on "
            f"{kind.store}; a job can only be part of a transaction in the database that holds TaskHarbor's tables"
        )
    made: C = getattr(import_module(f"taskharbor.drivers.callers.{library}"), caller)(connection)
    return made


def is_of(value: object, module: str, name: str) -> bool:
    """Whether it is an instance of that class; its module is loaded if there is an instance."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _system_of(connection: Any) -> str | None:
    """The kind of database behind an object of SQLAlchemy or Django, by their own name for it."""
    if hasattr(connection, "vendor"):  # Django's (its cache is such a proxy as well, and has none)
        return str(connection.vendor)
    bind = connection if hasattr(connection, "dialect") else getattr(connection, "get_bind", lambda: None)()
    return None if bind is None else str(bind.dialect.name)


def _instead(connection: object) -> str:
    for module, name, instead in _INSTEAD:
        if is_of(connection, module, name):
            return f"; {instead}"
    return ""


def _described(value: object) -> str:
    """The class of an object, for an error's text."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
