"""Many jobs are stored by one of two statements; which one makes no difference to what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import uuid_utils

from taskharbor.clock import ManualClock
from taskharbor.drivers.base import ClaimRequest
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.enqueue import _are_alike
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
