"""`--load`: what the load model is fitted to. Idle workers, and where a drain's time and disk go on the server."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks import postgres
from benchmarks.contestants.taskharbor_postgres import TaskHarborPostgres
from benchmarks.processes import processor_seconds
from benchmarks.settings import Settings
from benchmarks.stores import fresh_store
from taskharbor import Harbor, Worker

HARBORS_MAX = 40
STARTING_MAX = 20
SETTLE_SECONDS = 3.0
IDLE_SECONDS = 5.0


def measure_idle_workers(workers: int, parent: Path) -> dict[str, float | None]:
    """What that many idle workers cost the server in a second.

    Up to 40 of them have a harbor each, with connections of their own. More of them share these harbors: each sends
    all that an idle worker sends, over fewer connections than in life.
    """
    logging.getLogger("taskharbor").setLevel(logging.ERROR)
    with fresh_store(TaskHarborPostgres, parent) as directory:
        postgres.count_queries(directory)
        used = asyncio.run(idle(postgres.url_of(directory), directory, workers))
    return {f"idle_{name}_{workers}": value for name, value in used.items()}


async def idle(url: str, directory: Path, workers: int) -> dict[str, float | None]:
    harbors = [Harbor(url) for _ in range(min(workers, HARBORS_MAX))]
    started = [asyncio.Event() for _ in range(workers)]
    gate, ended = asyncio.Semaphore(STARTING_MAX), asyncio.Event()

    async def work(number: int) -> None:
        async with AsyncExitStack() as running:
            async with gate:
                await running.enter_async_context(Worker(harbors[number % len(harbors)], concurrency=10))
            started[number].set()
            await ended.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(workers):
            group.create_task(work(number))
        for event in started:
            await event.wait()
        await asyncio.sleep(SETTLE_SECONDS)
        connections = await asyncio.to_thread(connections_of, url, directory)
        before = await asyncio.to_thread(used_by, directory)
        begun = time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        after = await asyncio.to_thread(used_by, directory)
        seconds = time.perf_counter() - begun
        ended.set()
    for harbor in harbors:
        await harbor.aclose()

    def per_second(was: float | None, now: float | None) -> float | None:
        return None if was is None or now is None else (now - was) / seconds

    server, queries, own = (per_second(*pair) for pair in zip(before, after, strict=True))
    return {
        "server_us": server and server * 1e6,
        "queries": queries,
        "worker_us": own and own * 1e6 / workers,
        "connections": connections / len(harbors),
    }


def used_by(directory: Path) -> tuple[float | None, float | None, float | None]:
    return postgres.processor_seconds(), postgres.queries_counted(directory), processor_seconds(os.getpid())


def connections_of(url: str, directory: Path) -> int:
    statement = "SELECT count(*) AS connections FROM pg_stat_activity WHERE datname = $1"
    name = postgres.database_of(directory)
    return int(postgres.fetch_row(postgres.server_url(), statement, name)["connections"])


def measure_footprint(settings: Settings, parent: Path) -> dict[str, float | None]:
    """One drain with the server's statements timed: the share of claims, and bytes that a finished job keeps."""
    with fresh_store(TaskHarborPostgres, parent) as directory:
        contestant = TaskHarborPostgres(poll_seconds=settings.poll_seconds)
        empty = size_of(directory)
        postgres.count_queries(directory)
        contestant.setup(directory)
        try:
            contestant.fill(settings.jobs)
            waiting = size_of(directory)
            enqueueing = postgres.statement_milliseconds(directory, "%")
            contestant.drain(settings.jobs)
        finally:
            contestant.close()
        claims = postgres.statement_milliseconds(directory, "%claim%")
        everything = postgres.statement_milliseconds(directory, "%")
        finished = size_of(directory)
    return {
        "claim_share": None
        if claims is None or everything is None
        else claims / (everything - (enqueueing or 0.0)),
        "waiting_bytes": (waiting - empty) / settings.jobs,
        "finished_bytes": (finished - empty) / settings.jobs,
    }


def size_of(directory: Path) -> int:
    statement = "SELECT pg_database_size($1) AS bytes"
    name = postgres.database_of(directory)
    return int(postgres.fetch_row(postgres.server_url(), statement, name)["bytes"])
