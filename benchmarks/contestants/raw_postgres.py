"""The limit: asyncpg with the least that could be called a queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from benchmarks import postgres
from benchmarks.contestant import check_all_ran
from benchmarks.contestants._postgres import PostgresContestant

PAYLOAD = '{"task":"noop","args":[],"kwargs":{}}'
BATCH = 500
POOL = 10
TABLES = (
    "CREATE TABLE jobs (id bigserial PRIMARY KEY, payload text, enqueued_at timestamptz DEFAULT clock_timestamp())",
    "CREATE TABLE finished (id bigint PRIMARY KEY, finished_at timestamptz DEFAULT clock_timestamp())",
)
INSERT = "INSERT INTO jobs (payload) VALUES ($1)"
CLAIM = (
    "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) "
    "RETURNING id, payload"
)
PROBE = "WITH stored AS (INSERT INTO jobs (payload) VALUES ($1)) SELECT pg_notify('jobs', '')"
FINISH = "INSERT INTO finished (id) SELECT * FROM unnest($1::bigint[])"


class RawPostgres(PostgresContestant):
    name = "raw asyncpg"
    role = "limit"
    durability_note = (
        f"one insert a commit, COPY, claims and ends of {BATCH} by one connection, NOTIFY in the commit of a probe; "
        "no queue at all, the limit of server and library"
    )
    distribution = "asyncpg"
    own_worker = False

    @classmethod
    def install(cls, url: str) -> None:
        postgres.execute(url, *TABLES)

    async def open(self, directory: Path) -> None:
        self.pool = await asyncpg.create_pool(self.database_url, min_size=POOL, max_size=POOL)

    async def shut(self) -> None:
        await self.pool.close()

    async def put(self) -> None:
        await self.pool.execute(INSERT, PAYLOAD)

    def enqueue_one(self, count: int) -> float:
        return self.run(self.timed_inserts(count))

    async def timed_inserts(self, count: int) -> float:
        """By a connection that is kept: the pool would reset it after every job, in a round trip of its own."""
        async with self.pool.acquire() as connection:
            begun = time.perf_counter()
            for _ in range(count):
                await connection.execute(INSERT, PAYLOAD)
            return time.perf_counter() - begun

    async def put_many(self, count: int) -> None:
        await self.pool.copy_records_to_table("jobs", records=[(PAYLOAD,)] * count, columns=["payload"])

    async def put_probe(self, number: int) -> None:
        await self.pool.execute(PROBE, str(number))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        working = asyncio.create_task(self.work())
        try:
            yield
        finally:
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working

    async def work(self) -> None:
        """Claim what is there, and wait for a notification when there is nothing: two connections, no lease."""
        heard = asyncio.Event()
        async with self.pool.acquire() as listener, self.pool.acquire() as connection:
            await listener.add_listener("jobs", lambda *_: heard.set())
            while True:
                heard.clear()
                while claimed := await connection.fetch(CLAIM, BATCH):
                    for _, payload in claimed:
                        self.handle(payload)
                    await connection.execute(FINISH, [row["id"] for row in claimed])
                await heard.wait()

    def handle(self, payload: str) -> None:
        if payload == PAYLOAD:
            self.count_one()
        else:
            self.started(int(payload))

    async def timed_drain(self, count: int) -> float:
        """Claim and end by batches: no lease, no handler, no second process."""
        async with self.pool.acquire() as connection:
            begun = time.perf_counter()
            while claimed := await connection.fetch(CLAIM, BATCH):
                await connection.execute(FINISH, [row["id"] for row in claimed])
                self.ran += len(claimed)
            seconds = time.perf_counter() - begun
        check_all_ran(self.ran, count)
        return seconds


CONTESTANTS = [RawPostgres]
