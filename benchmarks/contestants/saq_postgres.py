"""saq 0.26 on PostgreSQL by psycopg 3 (its C implementation), with its own worker.

Settings: `concurrency` of CONCURRENCY (a dequeue takes as many jobs as workers wait), a pool of as many connections
as it opens by default, LISTEN/NOTIFY (its default). Its own logger is left at WARNING. It has no bulk call for
PostgreSQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from saq import Queue, Worker

from benchmarks.contestants._postgres import PostgresContestant

CONCURRENCY = 20


class Saq(PostgresContestant):
    name = "saq"
    durability_note = (
        f"psycopg (binary), LISTEN/NOTIFY, concurrency={CONCURRENCY}; after a kill -9 its sweep reruns the job when it "
        "is stuck past its timeout, finished jobs are kept for 10 minutes"
    )
    distribution = "saq"
    put_many_exists = False
    jobs_max = 2000

    @classmethod
    def install(cls, url: str) -> None:
        async def run() -> None:
            queue = Queue.from_url(url)
            await queue.connect()
            await queue.disconnect()

        asyncio.run(run())

    async def open(self, directory: Path) -> None:
        self.queue = Queue.from_url(self.database_url)
        await self.queue.connect()

    async def shut(self) -> None:
        await self.queue.disconnect()

    async def put(self) -> None:
        await self.queue.enqueue("noop")

    async def put_probe(self, number: int) -> None:
        await self.queue.enqueue("probe", number=number)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async def noop(context: Any) -> None:
            self.count_one()

        async def probe(context: Any, *, number: int) -> None:
            self.started(number)

        functions: Any = [("noop", noop), ("probe", probe)]
        worker: Any = Worker(self.queue, functions=functions, concurrency=CONCURRENCY)
        worker.SIGNALS = []  # the loop is not the main thread's
        running = asyncio.create_task(worker.start())
        try:
            yield
        finally:
            await worker.stop()
            await running


CONTESTANTS = [Saq]
