"""Races about claims of many jobs, which lock no row before they delete it. See `tests/postgres/races.py`.

Most of them happen between the look at the rows and their deletion, inside one SQL function. A trigger is the barrier
there: it waits until a row stands in a table of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from taskharbor.drivers.base import Cancel, Claim, ClaimRequest, OperationVerdict, Update
from taskharbor.drivers.postgres import leases, operate
from taskharbor.drivers.postgres.claim_hints import SearchPlan
from taskharbor.drivers.postgres.connections import Session
from taskharbor.records import NewJob, State
from tests.postgres.races import LEASE, NOW, PATIENCE_SECONDS, Race, race

JOBS = 100
MANY = SearchPlan(many=True)

GATE = """
CREATE TABLE gate (open boolean);
CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE NOT EXISTS (SELECT FROM gate) LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER gate BEFORE DELETE ON {schema}.ready EXECUTE FUNCTION wait_at_the_gate();
"""
# So that a claim which waits for a lock waits for good, and the test sees it.
FOREVER = """
ALTER FUNCTION {schema}.take_turn SET lock_timeout = 0;
ALTER FUNCTION {schema}.take_unlocked SET lock_timeout = 0;
"""


async def stored(race: Race, **fields: object) -> list[str]:
    jobs: list[NewJob] = [race.new(**fields) for _ in range(JOBS)]
    return [answer.id for answer in await race.driver.enqueue(jobs, now=NOW)]


def request(token: str, limit: int = JOBS) -> ClaimRequest:
    return ClaimRequest(token, LEASE, limit)


async def claim_many(session: Session, token: str, limit: int = JOBS) -> Claim:
    claim, _ = await leases.claim(session, request(token, limit), MANY)
    return claim


async def change(race: Race, statement: str) -> None:
    """Run statements beside the claim; the gate does not hold them up."""
    async with race.transaction() as session:
        await session.connection.execute("SET LOCAL session_replication_role = replica")
        await session.connection.execute(statement.format(schema=race.driver.schema))


@asynccontextmanager
async def deletion_awaited(race: Race) -> AsyncIterator[asyncio.Task[Claim]]:
    """A claim of many that has looked, and deletes what it has seen when the block ends."""
    await change(race, GATE)

    async def claim() -> Claim:
        async with race.transaction() as session:
            return await claim_many(session, "worker/many")

    claiming = asyncio.ensure_future(claim())
    connection = await asyncpg.connect(race.driver.dsn)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await connection.fetchval(  # noqa: ASYNC110 - another process has no event of ours
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        ):
            await asyncio.sleep(0.01)
    await connection.close()
    assert not claiming.done()
    yield claiming
    await change(race, "INSERT INTO gate VALUES (true)")


# -- between the look and the deletion -------------------------------------------------------------


@race
async def test_job_that_is_cancelled_while_a_claim_looks_is_not_claimed(race: Race) -> None:
    ids = await stored(race)
    async with deletion_awaited(race) as claiming, race.transaction() as session:
        await session.connection.execute("SET LOCAL session_replication_role = replica")
        assert ids[7] in await operate.operate(session, Cancel(), [ids[7]])
    assert [job.id for job in (await claiming).jobs] == [*ids[:7], *ids[8:]]
    assert await race.state(ids[7]) is State.CANCELLED
    assert await race.state(ids[8]) is State.RUNNING


@race
async def test_job_that_another_claim_takes_while_a_claim_looks_is_claimed_once(race: Race) -> None:
    ids = await stored(race)
    async with deletion_awaited(race) as claiming, race.transaction() as session:
        await session.connection.execute("SET LOCAL session_replication_role = replica")
        other, _ = await leases.claim(session, request("worker/few", 3), SearchPlan())
    assert [job.id for job in other.jobs] == ids[:3]
    assert [job.id for job in (await claiming).jobs] == ids[3:]


@race
async def test_claim_of_many_locks_no_row_behind_a_rank_that_holds_only_future_jobs(race: Race) -> None:
    await race.driver.enqueue([race.new(priority=100, delay=3_600_000_000)], now=NOW)
    ids = await stored(race)
    async with deletion_awaited(race) as claiming, race.transaction() as session:
        await session.connection.execute("SET LOCAL session_replication_role = replica")
        other, _ = await leases.claim(session, request("worker/few", 3), SearchPlan())
    assert [job.id for job in other.jobs] == ids[:3]  # a row that is locked would be passed over
    assert [job.id for job in (await claiming).jobs] == ids[3:]


@race
async def test_row_that_is_changed_while_a_claim_looks_is_handed_out_as_it_is_then(race: Race) -> None:
    ids = await stored(race)
    async with deletion_awaited(race) as claiming:
        await change(race, f"UPDATE {{schema}}.ready SET attempts = 3, number = 5 WHERE id = '{ids[7]}'")
    jobs = (await claiming).jobs
    assert [job.id for job in jobs] == ids
    assert (jobs[7].attempts, jobs[7].number) == (3, 6)
    assert (jobs[8].attempts, jobs[8].number) == (0, 1)


@race
async def test_row_that_is_moved_while_a_claim_looks_stays_where_it_went(race: Race) -> None:
    ids = await stored(race)
    async with deletion_awaited(race) as claiming:
        await change(
            race, f"UPDATE {{schema}}.ready SET run_at = run_at + interval '1 day' WHERE id = '{ids[7]}'"
        )
    assert [job.id for job in (await claiming).jobs] == [*ids[:7], *ids[8:]]
    assert await race.state(ids[7]) is not State.RUNNING
    async with race.transaction() as session:
        rows = await session.connection.fetch(f"SELECT id::text FROM {race.driver.schema}.ready")
    assert [row["id"] for row in rows] == [ids[7]]


@race
async def test_claim_does_not_wait_for_long_for_a_row_that_is_locked_while_it_looks(race: Race) -> None:
    """It gives back what it has deleted, and takes the rows one by one, past the one that is held."""
    ids = await stored(race)
    async with race.transaction() as holder:
        async with deletion_awaited(race) as claiming:
            await holder.connection.execute(
                f"SELECT FROM {race.driver.schema}.ready WHERE id = '{ids[7]}' FOR UPDATE"
            )
        async with asyncio.timeout(PATIENCE_SECONDS):
            claim = await claiming
    assert [job.id for job in claim.jobs] == [*ids[:7], *ids[8:]]
    assert await race.state(ids[7]) is State.READY


# -- before the look -------------------------------------------------------------------------------


@race
async def test_claim_of_many_passes_over_a_row_that_is_held(race: Race) -> None:
    """It sees that before it deletes anything, and waits for nobody."""
    ids = await stored(race)
    await change(race, FOREVER)
    async with race.transaction() as holder:
        await operate.operate(holder, Update(payload='{"new":1}'), [ids[7]])
        async with race.transaction() as session, asyncio.timeout(PATIENCE_SECONDS):
            claim = await claim_many(session, "worker/many")
    assert [job.id for job in claim.jobs] == [*ids[:7], *ids[8:]]
    _, rest = await race.claim()
    assert [(job.id, job.payload) for job in rest.jobs] == [(ids[7], '{"new":1}')]


@race
async def test_claim_of_many_takes_rows_that_a_claim_has_given_back(race: Race) -> None:
    """Its transaction was rolled back; the rows bear a mark of it that means nothing any more."""
    ids = await stored(race)
    with pytest.raises(ZeroDivisionError):
        async with race.transaction() as session:
            assert len((await claim_many(session, "worker/1")).jobs) == JOBS
            raise ZeroDivisionError
    async with race.transaction() as session:
        assert [job.id for job in (await claim_many(session, "worker/2")).jobs] == ids


@race
async def test_claims_of_many_at_once_share_the_jobs_and_do_not_wait_for_each_other(race: Race) -> None:
    """Neither commits before the other has its jobs."""
    ids = await stored(race)
    async with race.transaction() as first, race.transaction() as second, asyncio.timeout(PATIENCE_SECONDS):
        one = await claim_many(first, "worker/1", 60)
        other = await claim_many(second, "worker/2", 60)
    assert [job.id for job in one.jobs] == ids[:60]
    assert [job.id for job in other.jobs] == ids[60:]


@race
async def test_claim_of_many_waits_for_its_turn_and_goes_on_behind_the_one_before(race: Race) -> None:
    ids = await stored(race)
    await change(race, FOREVER)

    async def claim() -> Claim:
        async with race.transaction() as session:
            return await claim_many(session, "worker/2", 60)

    async with race.transaction() as session:
        one = await claim_many(session, "worker/1", 60)
        claiming = asyncio.ensure_future(claim())
        await race.until_somebody_waits()
    assert [job.id for job in one.jobs] == ids[:60]
    assert [job.id for job in (await claiming).jobs] == ids[60:]


@race
async def test_operator_who_meets_a_claim_of_many_finds_the_job_running(race: Race) -> None:
    ids = await stored(race)
    async with race.transaction() as session:
        await claim_many(session, "worker/1")
        changing = asyncio.ensure_future(race.operate(Update(priority=5), ids[7]))
        await race.until_somebody_waits()
    assert await changing == [OperationVerdict.CONFLICT]
    assert await race.state(ids[7]) is State.RUNNING
