"""Many jobs are stored by one of two statements, or by several; which makes no difference to what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import msgspec
import pytest
import uuid_utils

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import AlikeJobs, ClaimRequest, Enqueued
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.connections import STATEMENT_BYTES
from taskharbor.drivers.postgres.enqueue import BATCH_MAX, _are_alike
from taskharbor.errors import PayloadError
from taskharbor.records import Delivery, NewJob, Options, State
from tests.postgres import store

HOUR = 3_600_000_000
ALIKE: dict[str, dict[str, Any]] = {
    "defaults": {},
    "placed": {
        "queue": "mail",
        "priority": 7,
        "delivery": Delivery.AT_MOST_ONCE,
        "options": Options(timeout=3.0),
    },
    "delayed": {"delay": HOUR, "expires_at": 2 * HOUR + ManualClock().now()},
    "timed": {"run_at": ManualClock().now() + HOUR},
}
UNLIKE: dict[str, Any] = {
    "queue": "other",
    "task": "other",
    "priority": 1,
    "run_at": ManualClock().now() + HOUR,
    "delay": HOUR,
    "expires_at": ManualClock().now() + HOUR,
    "idempotency_key": "key",
    "delivery": Delivery.AT_MOST_ONCE,
    "options": Options(max_attempts=3),
}


@pytest.fixture
def driver() -> Iterator[PostgresDriver]:
    with store.fresh(ManualClock()) as driver:
        yield driver


def new_job(**given: Any) -> NewJob:
    return NewJob(id=str(uuid_utils.uuid7()), **{"task": "noop", "payload": '{"n":1}'} | given)


async def stored_fields(driver: PostgresDriver, jobs: list[NewJob]) -> list[tuple[Any, ...]]:
    """What the store says about each, without what must differ."""
    answers = await driver.enqueue(jobs)
    records = await driver.get([job.id for job in jobs])
    return [
        (answer.state, answer.run_at, answer.enqueued_at, *msgspec.structs.astuple(record)[1:])
        for answer, record in zip(answers, records, strict=True)
        if record is not None
    ]


@pytest.mark.parametrize("given", ALIKE.values(), ids=ALIKE)
async def test_jobs_that_are_alike_are_stored_as_each_would_be(
    driver: PostgresDriver, given: dict[str, Any]
) -> None:
    await driver.migrate()
    [alone] = await stored_fields(driver, [new_job(**given)])
    together = [new_job(**given) for _ in range(3)]
    assert _are_alike(together)
    assert await stored_fields(driver, together) == [alone] * 3
    await driver.close()


@pytest.mark.parametrize("field", UNLIKE)
async def test_one_that_differs_keeps_what_it_was_given(driver: PostgresDriver, field: str) -> None:
    await driver.migrate()
    jobs = [new_job(), new_job(**{field: UNLIKE[field]})]
    assert not _are_alike(jobs)
    await driver.enqueue(jobs)
    plain, other = await driver.get([job.id for job in jobs])
    assert plain is not None
    assert other is not None
    seen = "run_at" if field == "delay" else field
    assert getattr(other, seen) != getattr(plain, seen)
    await driver.close()


async def test_a_batch_of_which_one_exists_stores_the_others(driver: PostgresDriver) -> None:
    await driver.migrate()
    jobs = [new_job() for _ in range(3)]
    await driver.enqueue(jobs[1:2])
    assert [answer.existed for answer in await driver.enqueue(jobs)] == [False, True, False]
    await driver.close()


async def test_payloads_stay_with_their_ids(driver: PostgresDriver) -> None:
    await driver.migrate()
    jobs = [new_job(payload=f'{{"n":{number}}}') for number in range(300)]
    await driver.enqueue(jobs)
    claim = await driver.claim(ClaimRequest(token="worker/1", lease=HOUR, limit=300))
    assert {job.id: job.payload for job in claim.jobs} == {job.id: job.payload for job in jobs}
    assert (await driver.counts())[State.RUNNING] == 300
    await driver.close()


# -- more than one statement carries --------------------------------------------------------------

MANY = 2 * BATCH_MAX + 500


def numbered(count: int, size: int = 0, making: Callable[[int], None] = lambda start: None) -> AlikeJobs:
    """Jobs with a number each, in payloads of at least this size; `making` is told where each batch begins."""

    def make(start: int, stop: int) -> tuple[list[str], list[str]]:
        making(start)
        filler = "x" * size
        payloads = [f'{{"n":{number},"x":"{filler}"}}' for number in range(start, stop)]
        return [str(uuid_utils.uuid7()) for _ in payloads], payloads

    return AlikeJobs(new_job(), count, make)


async def payloads_of(driver: PostgresDriver, answers: list[Enqueued]) -> list[str]:
    records = await driver.get([answer.id for answer in answers])
    return [record.payload for record in records if record is not None]


async def test_batches_of_one_call_are_stored_as_one(dsn: str) -> None:
    driver = PostgresDriver(dsn)  # by the server's clock, which goes on between two statements
    await driver.migrate()
    jobs = numbered(MANY)
    answers = await driver.enqueue(jobs)
    assert [answer.id for answer in answers] == jobs.ids
    assert len({(answer.enqueued_at, answer.run_at, answer.state) for answer in answers}) == 1
    assert await payloads_of(driver, answers) == jobs.payloads
    records = await driver.get(jobs.ids)
    assert {record.enqueued_at for record in records if record is not None} == {answers[0].enqueued_at}
    await driver.close()


async def test_a_job_that_exists_among_many_batches_stands_for_the_one_given(driver: PostgresDriver) -> None:
    await driver.migrate()
    jobs = numbered(MANY)
    await driver.enqueue([jobs[BATCH_MAX + 1]])
    answers = await driver.enqueue(jobs)
    assert [position for position, answer in enumerate(answers) if answer.existed] == [BATCH_MAX + 1]
    assert (await driver.counts())[State.READY] == MANY
    await driver.close()


async def test_batches_are_bounded_in_bytes(driver: PostgresDriver) -> None:
    await driver.migrate()
    jobs = numbered(BATCH_MAX + 1, size=STATEMENT_BYTES // 400)
    assert sum(map(len, jobs.payloads)) > 2 * STATEMENT_BYTES
    answers = await driver.enqueue(jobs)
    assert await payloads_of(driver, answers) == jobs.payloads
    await driver.close()


async def test_what_is_wrong_with_a_later_batch_undoes_the_earlier_ones(driver: PostgresDriver) -> None:
    await driver.migrate()
    async with Harbor(driver=driver) as harbor:

        @harbor.task
        async def count(number: int) -> None: ...

        before = await server_pids(driver)
        payloads: list[dict[str, object]] = [{"number": number} for number in range(MANY)]
        payloads[-2]["number"] = "two"
        with pytest.raises(PayloadError, match=f"^at index {MANY - 2}: .*expected `int`"):
            await count.aenqueue_many(payloads)
        assert (await harbor.jobs.acounts())["ready"] == 0
        assert await server_pids(driver) == before  # no connection was given up for it


async def test_a_list_that_the_caller_changes_meanwhile_is_stored_as_it_was_given(
    driver: PostgresDriver,
) -> None:
    await driver.migrate()
    other = await asyncpg.connect(driver.dsn)
    async with Harbor(driver=driver) as harbor, asyncio.timeout(30), asyncio.TaskGroup() as group:

        @harbor.task
        async def count(number: int) -> None: ...

        payloads = [{"number": number} for number in range(MANY)]
        async with other.transaction():
            await other.execute(f"LOCK TABLE {driver.schema}.jobs")
            storing = group.create_task(count.aenqueue_many(payloads))
            while not await is_waiting(other):
                pass
            payloads.clear()  # the third batch has not been made yet
        assert [job.payload["number"] for job in await storing] == list(range(MANY))
    await other.close()


async def is_waiting(connection: asyncpg.Connection) -> bool:
    """Whether a statement waits for a lock of this connection."""
    blocked = "SELECT EXISTS (SELECT FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))"
    return bool(await connection.fetchval(blocked))


async def server_pids(driver: PostgresDriver) -> set[int]:
    await driver.counts()
    connection = await asyncpg.connect(driver.dsn)
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await connection.close()
    return {row["pid"] for row in rows}


async def test_the_next_batch_is_made_while_the_server_stores_the_last(driver: PostgresDriver) -> None:
    await driver.migrate()
    second = asyncio.Event()
    jobs = numbered(MANY, making=lambda start: second.set() if start == BATCH_MAX else None)
    other = await asyncpg.connect(driver.dsn)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        async with other.transaction():
            await other.execute(f"LOCK TABLE {driver.schema}.jobs")
            storing = group.create_task(driver.enqueue(jobs))
            await second.wait()  # although the server cannot have stored the first one
            assert not storing.done()
        assert len(await storing) == MANY
    await other.close()
    await driver.close()
