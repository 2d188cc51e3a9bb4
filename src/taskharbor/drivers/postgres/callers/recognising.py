"""Who speaks for a connection that somebody hands us."""

from __future__ import annotations

from typing import Any

from taskharbor.drivers.libraries import (
    described,
    is_asynchronous_sqlalchemy,
    is_django,
    is_of,
    is_sqlalchemy,
    system_of,
)
from taskharbor.drivers.postgres.callers.asyncpg import KINDS, AsyncpgCaller
from taskharbor.drivers.postgres.callers.caller import Caller
from taskharbor.errors import ConfigurationError


def caller_of(connection: Any) -> Caller:
    if isinstance(connection, KINDS):
        return AsyncpgCaller(connection)
    if is_of(connection, "psycopg", "Connection"):
        from taskharbor.drivers.postgres.callers.psycopg import PsycopgCaller

        return PsycopgCaller(connection)
    if is_of(connection, "psycopg", "AsyncConnection"):
        from taskharbor.drivers.postgres.callers.psycopg import AsyncPsycopgCaller

        return AsyncPsycopgCaller(connection)
    system = system_of(connection)
    if system not in (None, "postgresql"):
        raise ConfigurationError(
            f"the connection given to transaction() is to a database of kind {system}, and the harbor is on "
            "PostgreSQL; a job can only be part of a transaction in the database that holds TaskHarbor's tables"
        )
    if is_sqlalchemy(connection):
        from taskharbor.drivers.postgres.callers import sqlalchemy

        if is_asynchronous_sqlalchemy(connection):
            return sqlalchemy.AsyncSQLAlchemyCaller(connection)
        return sqlalchemy.SQLAlchemyCaller(connection)
    if is_django(connection):
        from taskharbor.drivers.postgres.callers.django import DjangoCaller

        return DjangoCaller(connection)
    raise ConfigurationError(
        "transaction() takes a connection to the harbor's database, of asyncpg, of psycopg 3, SQLAlchemy's connection "
        f"or session, or django.db.connection, not {described(connection)}{_instead(connection)}"
    )


def _instead(connection: object) -> str:
    for module, name, instead in (
        ("asyncpg.pool", "Pool", "acquire a connection from the pool"),
        ("psycopg_pool", "ConnectionPool", "take a connection from the pool"),
        ("psycopg_pool", "AsyncConnectionPool", "take a connection from the pool"),
        ("sqlalchemy.engine.base", "Engine", "give a connection or a session of it"),
        ("sqlalchemy.ext.asyncio.engine", "AsyncEngine", "give a connection or a session of it"),
        ("psycopg2.extensions", "connection", "use psycopg 3, or SQLAlchemy over psycopg2"),
        ("django.db.utils", "ConnectionHandler", 'give one of them, such as connections["default"]'),
    ):
        if is_of(connection, module, name):
            return f"; {instead}"
    return ""
