"""chancy 0.26 on psycopg 3 (its C implementation), with its own worker.

Settings: the asyncio executor, a queue with `concurrency` of CONCURRENCY and `eager_polling` (the next jobs are fetched
when one is done, not at the next poll), notifications on (its default), and a logger that is silent: its own writes
two lines for each job to the terminal. `push_many` is its bulk call; it commits every BATCH jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from chancy import Chancy, Queue, Worker, job

from benchmarks.contestants._postgres import PostgresContestant

CONCURRENCY = 1000
BATCH = 1000

SILENT = logging.getLogger("benchmarks.chancy")
SILENT.setLevel(logging.ERROR)

current: ChancyQueue | None = None  # its jobs are found by import: they cannot be methods


@job(queue="bench")
async def noop() -> None:
    assert current is not None
    current.count_one()


@job(queue="bench")
async def probe(*, number: int) -> None:
    assert current is not None
    current.started(number)


class ChancyQueue(PostgresContestant):
    name = "chancy"
    durability_note = (
        f"psycopg (binary), LISTEN/NOTIFY, AsyncExecutor, concurrency={CONCURRENCY}, eager_polling; kill -9 reruns "
        "the job by its recovery plugin, finished jobs are kept until pruned; the end of a job is written within 1 s"
    )
    distribution = "chancy"
    unlogged_without_jobs = ("chancy_leader", "chancy_workers", "chancy_queue_rate_limits")

    @classmethod
    def install(cls, url: str) -> None:
        async def run() -> None:
            async with Chancy(url, log=SILENT) as chancy:
                await chancy.migrate()
                # A worker serves every queue, and would start a pool of processes for the default one.
                for name in ("default", "bench"):
                    executor = Chancy.Executor.Async
                    await chancy.declare(
                        Queue(name=name, concurrency=CONCURRENCY, executor=executor, eager_polling=True)
                    )

        asyncio.run(run())

    async def open(self, directory: Path) -> None:
        global current  # noqa: PLW0603
        current = self
        self.chancy = Chancy(self.database_url, log=SILENT)
        await self.chancy.__aenter__()

    async def shut(self) -> None:
        await self.chancy.__aexit__(None, None, None)

    async def put(self) -> None:
        await self.chancy.push(noop)

    async def put_many(self, count: int) -> None:
        jobs: list[Any] = [noop] * count
        async for _ in self.chancy.push_many(jobs, batch_size=BATCH):
            pass

    async def put_probe(self, number: int) -> None:
        await self.chancy.push(probe.job.with_kwargs(number=number))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with Worker(self.chancy, register_signal_handlers=False):
            yield


CONTESTANTS = [ChancyQueue]
