"""Fresh stores on the run's server. A conformance suite makes its own, so this is not only for fixtures."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import asyncpg
import psycopg

from taskharbor.clock import Clock
from taskharbor.drivers.postgres import PostgresDriver, roles
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
    """An empty database."""
    name = f"test_{os.getpid()}_{next(_serial)}"
    execute(server().dsn(), f"CREATE DATABASE {name} TEMPLATE template0")
    try:
        yield server().dsn(name)
    finally:
        execute(server().dsn(), f"DROP DATABASE {name} WITH (FORCE)")


@cache
def shared_database() -> str:
    """One for the tests that need no more than a schema: a schema is made in a tenth of the time."""
    execute(server().dsn(), "CREATE DATABASE shared TEMPLATE template0")
    return server().dsn("shared")


@contextmanager
def fresh(clock: Clock | None = None) -> Iterator[PostgresDriver]:
    """A driver on an empty store, in a schema that others may have used before."""
    schema = _unused.pop() if _unused else _made()
    yield PostgresDriver(shared_database(), schema=schema, clock=clock)
    if _emptied(schema):
        _unused.append(schema)


def another(first: PostgresDriver, clock: Clock | None = None) -> PostgresDriver:
    return PostgresDriver(first.dsn, schema=first.schema, clock=clock)


# -- schemas that are used again: their tables are emptied in a tenth of the time that it takes to make them --

_unused: list[str] = []
_shapes: dict[str, str] = {}

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


def _made() -> str:
    schema = f"test_{next(_serial)}"
    driver = PostgresDriver(shared_database(), schema=schema)
    asyncio.run(driver.migrate())
    _shapes[schema] = _shape_of(schema)
    return schema


def _emptied(schema: str) -> bool:
    """Leave the schema as a new one is; if more than rows was touched, remove it and say no."""
    connection = _caretaker()
    untouched = _shape_of(schema) == _shapes[schema]
    if untouched:
        tables = [f"{schema}.{name}" for name in roles.TABLES if name not in _KEPT]
        # The locks wait for whatever is still being written.
        emptying = [f"LOCK TABLE {', '.join(tables)}", *(f"DELETE FROM {table}" for table in tables)]
    else:
        emptying = [f"DROP SCHEMA IF EXISTS {schema} CASCADE"]
    connection.execute("; ".join(emptying).encode())
    return untouched


def _shape_of(schema: str) -> str:
    [shape] = _caretaker().execute(_SHAPE, {"schema": schema}).fetchone() or [""]
    return str(shape)


@cache
def _caretaker() -> psycopg.Connection[Any]:
    """One connection for all of them: opening one takes longer than what it is for."""
    connection = psycopg.connect(shared_database(), autocommit=True)
    atexit.register(connection.close)
    return connection


_KEPT = ("schema_versions", "announcements")  # (the second is a sequence that goes by the clock)
