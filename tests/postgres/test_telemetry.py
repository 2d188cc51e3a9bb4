"""What is counted of jobs on PostgreSQL: every way in once, and nothing of a transaction that is rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from taskharbor import Context, Harbor, Worker
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.records import State
from tests.postgres import store
from tests.telemetry.attempts import counters, read
from tests.worker.stage import soon


@pytest.fixture
def driver() -> Iterator[PostgresDriver]:
    with store.fresh() as driver:
        yield driver


async def test_every_way_in_counts_once_and_a_rollback_counts_nothing(driver: PostgresDriver):
    """1,000 of a committed and 1,000 of a rolled-back transaction, and 1,000 children."""
    async with Harbor(driver=driver) as harbor:

        @harbor.task(name="send")
        async def send(ctx: Context) -> None:
            ctx.enqueue(child.s())

        @harbor.task(name="child")
        async def child() -> None: ...

        def enqueue_in_transactions() -> None:
            with psycopg.connect(driver.dsn) as connection:
                for end in (connection.commit, connection.rollback):
                    with harbor.transaction(connection):
                        send.enqueue_many([{}] * 1_000)
                    end()

        await asyncio.to_thread(enqueue_in_transactions)
        worker = Worker(harbor, metrics=True)
        await soon(worker.drain())
        assert (await harbor.jobs.acounts())[State.SUCCEEDED] == 2_000
    assert worker._meter is not None
    found = read(worker._meter)
    enqueued = [counters(found, task=task)["jobs_enqueued"] for task in ("send", "child")]
    assert (enqueued, sum(enqueued)) == ([1_000, 1_000], 2_000)


async def test_roll_ups_hold_what_a_worker_has_counted(driver: PostgresDriver):
    async with Harbor(driver=driver) as harbor:

        @harbor.task(name="send")
        async def send() -> None: ...

        await send.aenqueue_many([{}] * 300)
        await soon(Worker(harbor).drain())
        points = await harbor.stats.aseries(task="send")
    assert sum(point.succeeded for point in points) == 300
