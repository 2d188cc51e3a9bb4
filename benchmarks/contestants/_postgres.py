"""Contestants whose store is a database of its own on the run's PostgreSQL server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import asyncpg

from benchmarks import postgres
from benchmarks.contestant import Contestant, Durability
from benchmarks.snapshot import SnapshotContestant


class PostgresStore(Contestant):
    directory: Path
    database_url: str
    store = "postgresql"
    durability = Durability.FULL
    needs_postgres = True
    unlogged_without_jobs: ClassVar[tuple[str, ...]] = ()
    """Tables that the library does not have logged, and that hold no job: those may be lost."""

    @classmethod
    def create_store(cls, directory: Path) -> None:
        postgres.create_database(directory)
        cls.install(postgres.url_of(directory))

    @classmethod
    def remove_store(cls, directory: Path) -> None:
        postgres.drop_database(directory)

    @classmethod
    def install(cls, url: str) -> None:
        """Make the library's tables in an empty database."""
        raise NotImplementedError

    def observed_durability(self) -> Durability:
        seen = postgres.fetch_row(
            self.database_url,
            "SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS waits, "
            "current_setting('full_page_writes') AS whole, "
            "EXISTS (SELECT FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r' "
            "AND relname <> ALL ($1::text[])) AS unlogged",
            self.unlogged_without_jobs,
        )
        if seen["fsync"] != "on" or seen["whole"] != "on" or seen["unlogged"]:
            return Durability.OFF
        return Durability.FULL if seen["waits"] in ("on", "remote_apply", "local") else Durability.NORMAL

    def count_queries(self) -> None:
        postgres.count_queries(self.directory)

    def queries_counted(self) -> int | None:
        return postgres.queries_counted(self.directory)

    def server_seconds(self) -> float | None:
        return postgres.processor_seconds()

    def log_bytes(self) -> int:
        return postgres.log_bytes()


class PostgresContestant(PostgresStore, SnapshotContestant):
    def setup(self, directory: Path) -> None:
        self.directory = directory
        self.database_url = postgres.url_of(directory)
        super().setup(directory)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self.database_url)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.fetchval("SELECT count(*) FROM pg_class")
                yield
        finally:
            await connection.close()
