"""procrastinate 3.10 on psycopg 3 (its C implementation), with its own worker.

Settings: the asynchronous connector, a worker with `concurrency` of CONCURRENCY and a pool of as many connections as
make it fastest, LISTEN/NOTIFY (its default: a trigger notifies in the enqueueing transaction), its logger at WARNING.
`batch_defer_async` is its bulk call. The worker fetches one job at a time, by its design.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import procrastinate

from benchmarks.contestants._postgres import PostgresContestant

CONCURRENCY = 20
POOL = 10

logging.getLogger("procrastinate").setLevel(logging.WARNING)


class Procrastinate(PostgresContestant):
    name = "procrastinate"
    durability_note = (
        f"psycopg (binary), LISTEN/NOTIFY, concurrency={CONCURRENCY}; after a kill -9 the job stays as it is until the "
        "application retries stalled jobs, finished jobs are kept"
    )
    distribution = "procrastinate"
    jobs_max = 2000

    @classmethod
    def install(cls, url: str) -> None:
        with procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url)).open() as app:
            app.schema_manager.apply_schema()

    async def open(self, directory: Path) -> None:
        connector = procrastinate.PsycopgConnector(conninfo=self.database_url, min_size=POOL, max_size=POOL)
        self.app = procrastinate.App(connector=connector)
        await self.app.open_async()

        @self.app.task(name="noop")
        async def noop() -> None:
            self.count_one()

        @self.app.task(name="probe")
        async def probe(number: int) -> None:
            self.started(number)

        self.noop, self.probe_task = noop, probe

    async def shut(self) -> None:
        await self.app.close_async()

    async def put(self) -> None:
        await self.noop.defer_async()

    async def put_many(self, count: int) -> None:
        arguments: list[dict[str, Any]] = [{}] * count
        await self.noop.batch_defer_async(*arguments)

    async def put_probe(self, number: int) -> None:
        await self.probe_task.defer_async(number=number)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        options: dict[str, Any] = {"concurrency": CONCURRENCY, "install_signal_handlers": False}
        running = asyncio.create_task(self.app.run_worker_async(**options))
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


CONTESTANTS = [Procrastinate]
