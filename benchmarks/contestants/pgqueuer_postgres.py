"""pgqueuer 1.6 on asyncpg, with its own queue manager.

Settings: an asyncpg pool for the worker (its dequeue and its log of finished jobs then need not wait for each
other), batches of BATCH, durability `durable` (its default: all tables logged). The producer uses one connection; its
`enqueue` takes lists, which is its bulk call. Its trigger notifies in the enqueueing transaction; the worker listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import asyncpg
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks import handlers
from benchmarks.contestants._postgres import PostgresContestant
from benchmarks.work import PLAIN, Kind, Work

BATCH = 500
THREADS = 100
"""For handlers that are plain functions: its documentation has them called by `asyncio.to_thread`."""


class PgQueuer(PostgresContestant):
    name = "pgqueuer"
    durability_note = (
        f"asyncpg, LISTEN/NOTIFY, batch_size={BATCH}; kill -9 reruns the job after 30 s without a heartbeat, "
        "finished jobs are deleted and logged by one row"
    )
    distribution = "pgqueuer"
    kinds: ClassVar[tuple[Kind, ...]] = ("async", "sync")

    @classmethod
    def install(cls, url: str) -> None:
        async def run() -> None:
            connection = await asyncpg.connect(url)
            await Queries.from_asyncpg_connection(connection).install()
            await connection.close()

        asyncio.run(run())

    async def open(self, directory: Path) -> None:
        self.connection = await asyncpg.connect(self.database_url)
        self.queries = Queries.from_asyncpg_connection(self.connection)

    async def shut(self) -> None:
        await self.connection.close()

    async def put(self) -> None:
        await self.queries.enqueue("noop", None)

    async def put_many(self, count: int) -> None:
        await self.queries.enqueue(["noop"] * count, [None] * count, [0] * count)

    async def put_probe(self, number: int) -> None:
        await self.queries.enqueue("probe", str(number).encode())

    def fill_work(self, work: Work, count: int) -> None:
        self.run(self.put_work(work, count))

    async def put_work(self, work: Work, count: int) -> None:
        if work == PLAIN:
            return await self.put_many(count)
        entrypoint = "work_sync" if work.kind == "sync" else "work"
        payload = str(work.milliseconds).encode()
        await self.queries.enqueue([entrypoint] * count, [payload] * count, [0] * count)
        return None

    def probe_work(self, work: Work, number: int) -> None:
        entrypoint = "probe_sync" if work.kind == "sync" else "probe"
        self.run(self.queries.enqueue(entrypoint, str(number).encode()))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with asyncpg.create_pool(self.database_url, min_size=4, max_size=10) as pool:
            self.loop.set_default_executor(ThreadPoolExecutor(self.slots or THREADS))
            manager = QueueManager(Queries.from_asyncpg_pool(pool))

            @manager.entrypoint("noop")
            async def noop(job: Job) -> None:
                self.count_one()

            @manager.entrypoint("work")
            async def work(job: Job) -> None:
                await asyncio.sleep(milliseconds_of(job) / 1_000)
                self.count_one()

            @manager.entrypoint("work_sync")
            async def work_sync(job: Job) -> None:
                await asyncio.to_thread(handlers.sleep, milliseconds_of(job))
                self.count_one()

            @manager.entrypoint("probe_sync")
            async def probe_sync(job: Job) -> None:
                await asyncio.to_thread(self.started, int(job.payload or b"0"))

            @manager.entrypoint("probe")
            async def probe(job: Job) -> None:
                self.started(int(job.payload or b"0"))

            running = asyncio.create_task(manager.run(batch_size=min(BATCH, self.slots or BATCH)))
            try:
                yield
            finally:
                manager.shutdown.set()
                await running


def milliseconds_of(job: Job) -> float:
    return float(job.payload or b"0")


CONTESTANTS = [PgQueuer]
