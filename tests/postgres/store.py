"""Fresh stores on the run's server. A conformance suite makes its own, so this is not only for fixtures."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

import asyncpg
import psycopg

from taskharbor.clock import Clock
from taskharbor.drivers.postgres import PostgresDriver
from tests.postgres.server import Server, running

_serial = itertools.count(1)


@cache
def server() -> Server:
    """The server of this process; it stops when the process does."""
    stack = ExitStack()
    started = stack.enter_context(running())
    atexit.register(stack.close)
    return started


def execute(dsn: str, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


def query(dsn: str, statement: str, *arguments: object) -> list[asyncpg.Record]:
    async def run() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetch(statement, *arguments)
        finally:
            await connection.close()

    return asyncio.run(run())


@contextmanager
def database() -> Iterator[str]:
    """An empty database, which others may have used before: emptying one takes a ninth of what making one takes."""
    name = _empty.pop() if _empty else _created()
    try:
        yield server().dsn(name)
    finally:
        if _is_empty_again(name):
            _empty.append(name)
        else:
            execute(server().dsn(), f"DROP DATABASE {name} WITH (FORCE)")


def _created() -> str:
    name = f"test_{os.getpid()}_{next(_serial)}"
    execute(server().dsn(), f"CREATE DATABASE {name} TEMPLATE template0 {_quickest_strategy()}")
    return name


@cache
def _version() -> int:
    [(version,)] = query(server().dsn(), "SELECT current_setting('server_version_num')::integer")
    return int(version)


def _quickest_strategy() -> str:
    """Copy the template's files: without fsync a fifth of the time that the default of PostgreSQL 15 takes."""
    return "STRATEGY file_copy" if _version() >= 15_00_00 else ""


@cache
def shared_database() -> str:
    """One for the tests that need no more than a schema: a schema is made in a tenth of the time."""
    execute(server().dsn(), "CREATE DATABASE shared TEMPLATE template0")
    return server().dsn("shared")


@contextmanager
def fresh(clock: Clock | None = None) -> Iterator[PostgresDriver]:
    """A driver on an empty store, in a schema that others may have used before."""
    schema = _unused.pop() if _unused else _made()
    yield PostgresDriver(shared_database(), schema=schema.name, clock=clock)
    if _emptied(schema):
        _unused.append(schema)


def another(first: PostgresDriver, clock: Clock | None = None) -> PostgresDriver:
    return PostgresDriver(first.dsn, schema=first.schema, clock=clock)


# -- databases that are used again -------------------------------------------------------------------

_empty: list[str] = []

_DISCONNECT = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_DROP_SCHEMAS = r"""
DO $$
DECLARE
    made text;
BEGIN
    FOR made IN
        SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'
    LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', made);
    END LOOP;
END $$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC;
"""
# What PostgreSQL makes by itself has lower numbers, but for the schema `public`, which was made above.
_LEFT = """
SELECT EXISTS (SELECT FROM pg_namespace WHERE oid >= 16384 AND nspname <> 'public')
    OR EXISTS (SELECT FROM pg_class WHERE oid >= 16384)
    OR EXISTS (SELECT FROM pg_proc WHERE oid >= 16384)
    OR EXISTS (SELECT FROM pg_type WHERE oid >= 16384)
    OR EXISTS (SELECT FROM pg_extension WHERE oid >= 16384)
    OR EXISTS (SELECT FROM pg_event_trigger)
    OR EXISTS (SELECT FROM pg_publication)
    OR EXISTS (SELECT FROM pg_default_acl)
    OR EXISTS (SELECT FROM pg_largeobject_metadata)
    OR EXISTS (SELECT FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
               WHERE d.datname = current_database())
    OR EXISTS (SELECT FROM pg_database WHERE datname = current_database() AND datacl IS NOT NULL)
"""


def _is_empty_again(name: str) -> bool:
    """Drop what is in a database; False if there is something that no schema holds, such as a setting."""
    if _version() < 15_00_00:  # whose schema `public` is another one
        return False
    with psycopg.connect(server().dsn(name), autocommit=True) as connection:
        connection.execute(_DISCONNECT)
        connection.execute(_DROP_SCHEMAS)
        [is_left] = connection.execute(_LEFT).fetchone() or [True]
    return not is_left


# -- schemas that are used again: their tables are emptied in a tenth of the time that it takes to make them --


class _Schema(NamedTuple):
    name: str
    shape: str | None
    tables: list[str]


_unused: list[_Schema] = []

# Who wrote each of the catalogue's rows about a schema: whatever is done to it, but for the rows of its tables,
# replaces some of them.
_SHAPE = """
SELECT string_agg(written.xmin::text, ' ' ORDER BY written.oid, written.part) FROM (
    SELECT n.oid, 0 AS part, n.xmin FROM pg_namespace AS n WHERE n.nspname = %(schema)s
    UNION ALL
    SELECT c.oid, 0, c.xmin FROM pg_class AS c WHERE c.relnamespace = to_regnamespace(%(schema)s)
    UNION ALL
    SELECT p.oid, 0, p.xmin FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace(%(schema)s)
    UNION ALL
    SELECT c.oid, a.attnum, a.xmin FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
    WHERE c.relnamespace = to_regnamespace(%(schema)s)
) AS written
"""
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %(schema)s AND tablename <> 'schema_versions'"


def _made() -> _Schema:
    name = f"test_{next(_serial)}"
    asyncio.run(PostgresDriver(shared_database(), schema=name).migrate())
    tables = _caretaker().execute(_TABLES, {"schema": name}).fetchall()
    return _Schema(name, _shape_of(name), sorted(f"{name}.{table}" for (table,) in tables))


def _emptied(schema: _Schema) -> bool:
    """Leave the schema as a new one is; if more than rows was touched, remove it and say no."""
    untouched = _shape_of(schema.name) == schema.shape
    if untouched:
        # The locks wait for whatever is still being written.
        statements = [f"LOCK TABLE {', '.join(schema.tables)}", *(f"DELETE FROM {t}" for t in schema.tables)]
    else:
        statements = [f"DROP SCHEMA IF EXISTS {schema.name} CASCADE"]
    _caretaker().execute("; ".join(statements).encode())
    return untouched


def _shape_of(name: str) -> str | None:
    [shape] = _caretaker().execute(_SHAPE, {"schema": name}).fetchone() or [None]
    return shape


@cache
def _caretaker() -> psycopg.Connection[tuple[Any, ...]]:
    """One connection for all of them: opening one takes longer than what it is for."""
    connection = psycopg.connect(shared_database(), autocommit=True)
    atexit.register(connection.close)
    return connection
