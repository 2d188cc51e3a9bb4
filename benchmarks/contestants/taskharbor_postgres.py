"""TaskHarbor on PostgreSQL, at its defaults.

Jobs are enqueued as those of the other libraries here are, inside a running loop: by `aenqueue`. `(sync)` is the
same by `enqueue`, from threads that have no loop.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from benchmarks import postgres
from benchmarks.contestant import Contestant, Role, Started, run_in_threads
from benchmarks.contestants._postgres import PostgresContestant
from benchmarks.contestants._taskharbor import TaskHarbor
from benchmarks.work import Kind, Work
from taskharbor import Harbor, chord


class TaskHarborPostgres(PostgresContestant, TaskHarbor):
    name = "taskharbor postgres"
    role: ClassVar[Role] = "taskharbor"
    durability_note = (
        "asyncpg, LISTEN/NOTIFY; kill -9 reruns the job after its lease, finished jobs and history are kept"
    )
    distribution = "taskharbor"
    kinds: ClassVar[tuple[Kind, ...]] = ("async", "sync", "process")

    @classmethod
    def install(cls, url: str) -> None:
        with Harbor(url) as harbor:
            harbor.migrate()

    async def open(self, directory: Path) -> None:
        self.declare(Harbor(self.database_url))
        await self.harbor.driver.open()

    def store_url(self) -> str | None:
        return self.database_url

    async def shut(self) -> None:
        await self.harbor.aclose()

    async def put(self) -> None:
        await self.noop.aenqueue()

    async def put_many(self, count: int) -> None:
        await self.noop.aenqueue_many([{}] * count)

    async def put_probe(self, number: int) -> None:
        await self.probe_task.aenqueue(number)

    def enqueue_bulk(self, count: int) -> float:
        return self.run(self.timed_put_many(count))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with self.worker():
            yield

    def fill(self, count: int) -> None:
        TaskHarbor.fill(self, count)  # in chunks

    def fill_work(self, work: Work, count: int) -> None:
        TaskHarbor.fill_work(self, work, count)

    def store_chord(self, count: int) -> float:
        return self.run(self.timed_store_chord(count))  # as bulk is: by a connection that is open

    async def timed_store_chord(self, count: int) -> float:
        begun = time.perf_counter()
        self.workflow = await chord([self.noop.s() for _ in range(count)], self.finalizer.s()).aenqueue()
        return time.perf_counter() - begun

    def drain_share(self, told: Callable[[int], None]) -> None:
        TaskHarbor.drain_share(self, told)

    def drain(self, count: int) -> float:
        return TaskHarbor.drain(self, count)  # until the last one is settled, not only run

    def rest(self) -> None:
        postgres.execute(self.database_url, "VACUUM (ANALYZE)")  # as autovacuum does after enough changes

    def serve(self, started: Started) -> None:
        TaskHarbor.serve(self, started)


class TaskHarborPostgresSync(TaskHarborPostgres):
    name = "taskharbor postgres (sync)"
    durability_note = "as taskharbor postgres, enqueued by the synchronous form"
    kinds = ()
    separate_worker = False  # its worker would be the same

    opened = False

    def store_url(self) -> None:
        return None

    def enqueue(self) -> None:
        self.noop.enqueue()

    def enqueue_one(self, count: int) -> float | None:
        self.noop.enqueue()  # opens the connections of the synchronous form
        return Contestant.enqueue_one(self, count)

    def enqueue_concurrent(self, count: int, callers: int) -> float:
        self.noop.enqueue()
        return run_in_threads(self.enqueue, count, callers)

    def enqueue_bulk(self, count: int) -> float:
        if not self.opened:
            self.noop.enqueue()
            self.opened = True
        begun = time.perf_counter()
        self.noop.enqueue_many([{}] * count)
        return time.perf_counter() - begun

    def store_chord(self, count: int) -> None:  # type: ignore[override]
        return None

    def fill(self, count: int) -> None:
        return None

    def drain(self, count: int) -> None:  # type: ignore[override]
        return None


CONTESTANTS = [TaskHarborPostgres, TaskHarborPostgresSync]
