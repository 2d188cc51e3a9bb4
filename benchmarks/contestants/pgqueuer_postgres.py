"""pgqueuer 1.6 on asyncpg, with its own queue manager.

Settings: an asyncpg pool for the worker (its dequeue and its log of finished jobs then need not wait for each
other), batches of BATCH, durability `durable` (its default: all tables logged). The producer uses one connection; its
`enqueue` takes lists, which is its bulk call. Its trigger notifies in the enqueueing transaction; the worker listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from benchmarks.contestants._postgres import PostgresContestant

BATCH = 500


class PgQueuer(PostgresContestant):
    name = "pgqueuer"
    durability_note = (
        f"asyncpg, LISTEN/NOTIFY, batch_size={BATCH}; kill -9 reruns the job after 30 s without a heartbeat, "
        "finished jobs are deleted and logged by one row"
    )
    distribution = "pgqueuer"

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

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with asyncpg.create_pool(self.database_url, min_size=4, max_size=10) as pool:
            manager = QueueManager(Queries.from_asyncpg_pool(pool))

            @manager.entrypoint("noop")
            async def noop(job: Job) -> None:
                self.count_one()

            @manager.entrypoint("probe")
            async def probe(job: Job) -> None:
                self.started(int(job.payload or b"0"))

            running = asyncio.create_task(manager.run(batch_size=BATCH))
            try:
                yield
            finally:
                manager.shutdown.set()
                await running


CONTESTANTS = [PgQueuer]
