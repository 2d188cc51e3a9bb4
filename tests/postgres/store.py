"""Fresh stores on the run's server. A conformance suite makes its own, so this is not only for fixtures."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import asyncpg

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
    """A driver on an empty schema, not migrated yet."""
    schema = f"test_{next(_serial)}"
    yield PostgresDriver(shared_database(), schema=schema, clock=clock)
    execute(shared_database(), f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def another(first: PostgresDriver, clock: Clock | None = None) -> PostgresDriver:
    return PostgresDriver(first.dsn, schema=first.schema, clock=clock)
