"""The PostgreSQL server of a run, and the databases on it: a fresh one for each measurement.

Children find the server by an environment variable and not by an argument: a password in an argument is there
where every account that may list processes can read it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from benchmarks.processes import command_of, family_seconds
from tools.postgres_server import DURABLE, Server, running

URL_VARIABLE = "BENCH_POSTGRES_URL"

# Every commit waits for the disk. The rest is what a small server of one's own is commonly given: a quarter of a
# gigabyte of buffers, and so much log between two checkpoints that none falls into a short measurement.
SETTINGS = {
    **DURABLE,
    "shared_buffers": "256MB",
    "effective_cache_size": "1GB",
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    "max_connections": "400",
}
# Counts the queries of an idle worker. It counts in the databases that ask for it, and costs the others nothing.
COUNTING = {"shared_preload_libraries": "'pg_stat_statements'", "pg_stat_statements.track": "none"}


@contextmanager
def serving(url: str | None, scratch: Path) -> Iterator[None]:
    """A server for the contestants that need one: that of the given URL, else one that ends with the run."""
    with ExitStack() as stack:
        stack.enter_context(_told(url or _started(stack, scratch).dsn()))
        yield


def _started(stack: ExitStack, scratch: Path) -> Server:
    try:
        return stack.enter_context(running({**SETTINGS, **COUNTING}, parent=scratch))
    except RuntimeError:  # built without the extension that counts
        return stack.enter_context(running(SETTINGS, parent=scratch))


@contextmanager
def _told(url: str) -> Iterator[None]:
    before = os.environ.get(URL_VARIABLE)
    os.environ[URL_VARIABLE] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ[URL_VARIABLE]
        else:
            os.environ[URL_VARIABLE] = before


def server_url() -> str:
    try:
        return os.environ[URL_VARIABLE]
    except KeyError:
        raise RuntimeError(f"no PostgreSQL server: {URL_VARIABLE} is not set") from None


def database_of(directory: Path) -> str:
    """A store is named by its directory, on a server as well."""
    name = directory.name.replace("-", "_")
    if not re.fullmatch(r"[a-z0-9_]{1,63}", name):
        raise ValueError(f"a benchmark's directory names its database, and {directory.name!r} cannot")
    return name


def url_of(directory: Path) -> str:
    return urlunsplit(urlsplit(server_url())._replace(path=f"/{database_of(directory)}"))


def create_database(directory: Path) -> None:
    # A checkpoint before each measurement, so that what one has written is not flushed during the next.
    name = database_of(directory)
    execute(server_url(), f"CREATE DATABASE {name} TEMPLATE template0", "CHECKPOINT")


def drop_database(directory: Path) -> None:
    execute(server_url(), f"DROP DATABASE IF EXISTS {database_of(directory)} WITH (FORCE)")


def execute(url: str, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


def fetch_row(url: str, statement: str, *arguments: object) -> asyncpg.Record:
    async def run() -> asyncpg.Record:
        connection = await asyncpg.connect(url)
        try:
            [row] = await connection.fetch(statement, *arguments)
            return row
        finally:
            await connection.close()

    return asyncio.run(run())


def version() -> str:
    return str(fetch_row(server_url(), "SHOW server_version")["server_version"])


# -- counting queries ----------------------------------------------------------------------------


def count_queries(directory: Path) -> None:
    """From now on, in the sessions that begin from now on; not at all where the server cannot."""
    try:
        execute(
            server_url(),
            "CREATE EXTENSION IF NOT EXISTS pg_stat_statements",
            f"ALTER DATABASE {database_of(directory)} SET pg_stat_statements.track = 'top'",
        )
    except asyncpg.PostgresError:
        return


def queries_counted(directory: Path) -> int | None:
    statement = (
        "SELECT sum(s.calls)::bigint AS calls FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid "
        "WHERE d.datname = $1"
    )
    try:
        return fetch_row(server_url(), statement, database_of(directory))["calls"]  # type: ignore[no-any-return]
    except asyncpg.PostgresError:
        return None


def statement_milliseconds(directory: Path, like: str) -> float | None:
    """How long the statements whose text is like this took in all; None where they were not counted."""
    statement = (
        "SELECT sum(s.total_exec_time) AS milliseconds FROM pg_stat_statements AS s "
        "JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = $1 AND s.query ILIKE $2"
    )
    try:
        took = fetch_row(server_url(), statement, database_of(directory), like)["milliseconds"]
    except asyncpg.PostgresError:
        return None
    return None if took is None else float(took)


# -- what a measurement costs the server -----------------------------------------------------------


def log_bytes() -> int:
    """How much the server has ever written to its log."""
    statement = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS bytes"
    return int(fetch_row(server_url(), statement)["bytes"])


def processor_seconds() -> float | None:
    """Time that all processes of the server have used so far; None where it does not run on this machine."""
    pid = postmaster_pid(server_url())
    return None if pid is None else family_seconds(pid)


@cache
def postmaster_pid(url: str) -> int | None:
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    try:
        told = fetch_row(url, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int AS pid")
    except asyncpg.PostgresError:  # not for this user
        return None
    pid = int(told["pid"])
    return pid if command_of(pid) == "postgres" else None
