"""A claim of many jobs: it answers what any other claim answers, and writes less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Claim, ClaimRequest
from taskharbor.drivers.postgres import leases
from taskharbor.drivers.postgres.claim_hints import ClaimHints, SearchPlan, SearchReport
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.roles import Role
from taskharbor.records import Delivery, Options
from tests.postgres.crew import SCHEMA, Crew, crew
from tests.postgres.races import LEASE, NOW, SECOND, Race, race

FEW, MANY = SearchPlan(), SearchPlan(many=True)
CLAIM_WAL_BYTES_MAX = 90  # a job


@pytest.fixture(scope="module")
def hands() -> Iterator[Crew]:
    with crew() as hands:
        yield hands


async def undone(race: Race, plan: SearchPlan, request: ClaimRequest) -> Claim:
    """What a claim with this plan answers. Its transaction is rolled back, and so the jobs are still there."""
    connection = await race.driver._connections.connect()
    try:
        transaction = connection.transaction()
        await transaction.start()
        claim, _ = await leases.claim(Session(connection, race.driver._sql, NOW), request, plan)
        await transaction.rollback()
        return claim
    finally:
        await connection.close()


# -- the answer ------------------------------------------------------------------------------------

Fields = Callable[[int], dict[str, Any]]

STOCKS: dict[str, Fields] = {
    "plain": lambda n: {},
    "several tasks and payloads": lambda n: {
        "task": f"task {n % 3}",
        "payload": f'{{"n": {n}, "é": "\\u001e"}}',
    },
    "several due times": lambda n: {"run_at": NOW - n * SECOND},
    "due later": lambda n: {"run_at": NOW + (n - 90) * SECOND},
    "several priorities": lambda n: {"priority": n % 3},
    "several queues": lambda n: {"queue": f"queue {n % 3}"},
    "options": lambda n: {"options": Options(max_attempts=n + 1)} if n % 2 else {},
    "expiry": lambda n: {"expires_at": NOW + n * SECOND + 1} if n % 2 else {},
    "at_most_once": lambda n: {"delivery": Delivery.AT_MOST_ONCE} if n == 70 else {},
    "at_least_once": lambda n: {"delivery": Delivery.AT_LEAST_ONCE},
    "a large payload": lambda n: {"payload": f'"{"x" * 70_000}"'} if n == 50 else {},
    "large payloads": lambda n: {"payload": f'"{"x" * 20_000}"'},
    "the separator in a task": lambda n: {"task": f"task\x1e{n}"},
    "the separator in a payload": lambda n: {"payload": "\x1e" if n == 50 else '"x"'},
    "the separator in every payload": lambda n: {"payload": "\x1e"},
}


@pytest.mark.parametrize("stock", STOCKS)
def test_claim_of_many_answers_what_a_claim_answers(stock: str) -> None:
    @race
    async def story(race: Race) -> None:
        await race.driver.enqueue([race.new(**STOCKS[stock](n)) for n in range(100)], now=NOW)
        request = ClaimRequest("worker/1", LEASE, 80, bytes_limit=600_000)
        # The claim of many is first: it takes nothing that bears a mark of a claim before.
        many, few = await undone(race, MANY, request), await undone(race, FEW, request)
        assert many == few
        assert many.jobs

    story()


@race
async def test_claim_answers_every_field_of_its_jobs(race: Race) -> None:
    """Whether it came in a column of its own or is shared by all of them."""
    fields: list[dict[str, Any]] = [
        {"payload": "1", "expires_at": NOW + 9},
        {"payload": "2", "priority": 7, "task": "other", "options": Options(timeout=3.0)},
        {
            "payload": "3",
            "priority": 7,
            "task": "other",
            "delivery": Delivery.AT_LEAST_ONCE,
            "run_at": NOW - 5,
        },
    ]
    await race.driver.enqueue([race.new(**each) for each in fields], now=NOW)
    _, claim = await race.claim()
    assert [(job.payload, job.task, job.priority, job.queue) for job in claim.jobs] == [
        ("3", "other", 7, "default"),
        ("2", "other", 7, "default"),
        ("1", "race", 0, "default"),
    ]
    assert [(job.run_at, job.enqueued_at, job.expires_at) for job in claim.jobs] == [
        (NOW - 5, NOW, None),
        (NOW, NOW, None),
        (NOW, NOW, NOW + 9),
    ]
    assert [(job.number, job.attempts, job.first_number, job.version) for job in claim.jobs] == [
        (1, 0, 1, 1)
    ] * 3
    assert [job.delivery for job in claim.jobs] == [Delivery.AT_LEAST_ONCE, None, None]
    assert [job.options is None for job in claim.jobs] == [True, False, True]


@race
async def test_claim_of_jobs_that_share_a_rank_answers_one_row(race: Race) -> None:
    await race.driver.enqueue([race.new() for _ in range(100)], now=NOW)
    rows = []

    class Counting(Session):
        async def rows(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
            rows.extend(answer := await super().rows(name, *arguments))
            return answer

    async with race.transaction() as session:
        counting = Counting(session.connection, race.driver._sql, NOW)
        claim, _ = await leases.claim(counting, ClaimRequest("worker/1", LEASE, 80), FEW)
    assert (len(claim.jobs), len(rows)) == (80, 1)


@race
async def test_jobs_of_a_lease_are_the_same_from_wherever_they_are_read(race: Race) -> None:
    """A claim keeps no column that has the usual value everywhere; who reads it adds the value."""
    ids = [answer.id for answer in await race.driver.enqueue([race.new() for _ in range(100)], now=NOW)]
    async with race.transaction() as session:
        claim, _ = await leases.claim(session, ClaimRequest("worker/1", LEASE, 100), MANY)
    _, again = await race.claim(token="worker/1")
    assert again.jobs == claim.jobs
    expired = await race.driver.take_expired("collector/1", LEASE, now=NOW + LEASE)
    assert expired is not None
    assert expired.jobs == claim.jobs
    assert [job.id for job in claim.jobs] == ids
    assert (await race.record(ids[0])).attempts == 0


# -- the cost --------------------------------------------------------------------------------------


@race
async def test_claim_after_one_of_many_writes_little(race: Race) -> None:
    """No row is locked before it is deleted: that alone would write more than half as much again."""
    await race.driver.enqueue([race.new() for _ in range(2_000)], now=NOW)
    _, claim = await race.claim(1_000)
    assert len(claim.jobs) == 1_000
    connection = await asyncpg.connect(race.driver.dsn)
    try:
        before = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        _, claim = await race.claim(1_000)
        written = await connection.fetchval("SELECT pg_current_wal_insert_lsn()") - before
    finally:
        await connection.close()
    assert len(claim.jobs) == 1_000
    assert written / 1_000 < CLAIM_WAL_BYTES_MAX


# -- who may hold it up ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.PRODUCER, Role.ADMIN])
@pytest.mark.parametrize("mode", ["ROW SHARE", "EXCLUSIVE"])
def test_nobody_but_a_worker_can_take_the_turn_of_a_claim(hands: Crew, role: Role, mode: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        hands.as_(hands.names[role], f'BEGIN; LOCK TABLE "{SCHEMA}".claiming IN {mode} MODE; ROLLBACK')


# -- when it is tried ------------------------------------------------------------------------------


def test_claim_of_many_is_tried_after_one_that_had_many_from_the_same_queues() -> None:
    hints = ClaimHints(ManualClock())
    every, some = ClaimRequest("worker/1", LEASE, 1), ClaimRequest("worker/1", LEASE, 1, ("some",))
    suspects = ClaimRequest("worker/1", LEASE, 1, suspects=True)
    claim = Claim(NOW, NOW + LEASE, [])
    assert not hints.look(every).many
    hints.learn(every, SearchPlan(), claim, SearchReport(None, 0, many=True))
    assert [hints.look(each).many for each in (every, some, suspects)] == [True, False, False]
    hints.learn(every, SearchPlan(many=True), claim, SearchReport(None, 0, many=False))
    assert not hints.look(every).many
