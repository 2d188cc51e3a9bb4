"""Races between operators, claims and settles. See `tests/postgres/races.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from msgspec import structs

from taskharbor.drivers.base import (
    Cancel,
    ClaimRequest,
    Delete,
    OperationVerdict,
    SettleAnswer,
    Update,
)
from taskharbor.drivers.postgres import leases, operate, settle
from taskharbor.drivers.postgres.claim_hints import SearchPlan
from taskharbor.drivers.postgres.connections import Session
from taskharbor.records import State
from tests.postgres import store
from tests.postgres.races import (
    LEASE,
    NOW,
    Race,
    begun,
    failure,
    race,
    success,
)

# -- many at once ------------------------------------------------------------------------------------


class Counting(Session):
    """Counts what is sent to the server."""

    sent = 0

    async def rows(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
        self.sent += 1
        return await super().rows(name, *arguments)

    async def row(self, name: str, *arguments: Any) -> asyncpg.Record | None:
        self.sent += 1
        return await super().row(name, *arguments)

    async def value(self, name: str, *arguments: Any) -> Any:
        self.sent += 1
        return await super().value(name, *arguments)

    async def do(self, name: str, *arguments: Any) -> None:
        self.sent += 1
        await super().do(name, *arguments)


@race
async def test_deleting_many_ended_jobs_takes_no_more_statements_than_deleting_one(race: Race) -> None:
    ids = [await race.ready() for _ in range(60)]
    await race.operate(Cancel(), *ids)
    sent = []
    for some in (ids[:1], ids[1:]):
        async with race.transaction() as session:
            counting = Counting(session.connection, session.sql, NOW)
            answers = await operate.operate(counting, Delete(), some)
            sent.append(counting.sent)
        assert [answers[job_id].verdict for job_id in some] == [OperationVerdict.DONE] * len(some)
    assert sent[0] == sent[1]
    assert sum((await race.driver.counts(now=NOW)).values()) == 0


@race
async def test_ended_jobs_deleted_together_are_struck_out_of_the_lease_that_lives_on(race: Race) -> None:
    """Otherwise its collector would raise them from the dead."""
    for _ in range(3):
        await race.ready()
    token, claim = await race.claim(limit=3)
    first, second, left = claim.jobs
    await race.settle(success(token, first), success(token, second))
    assert await race.operate(Delete(), first.id, second.id, left.id) == [
        OperationVerdict.DONE,
        OperationVerdict.DONE,
        OperationVerdict.CONFLICT,
    ]
    expired = await race.driver.take_expired("collector/1", LEASE, now=NOW + 2 * LEASE)
    assert expired is not None
    assert [job.id for job in expired.jobs] == [left.id]


@race
async def test_job_is_deleted_after_those_that_depend_on_it_and_not_before(race: Race) -> None:
    """All of them have ended, so that they are erased together, but for the order."""
    member, dependant = race.new(), race.new()
    dependant = structs.replace(dependant, depends_on=(member.id,))
    await race.driver.enqueue([member, dependant], now=NOW)
    other = await race.ready()
    assert await race.operate(Cancel(), member.id, other) == [OperationVerdict.DONE] * 2
    assert await race.operate(Delete(), other, member.id) == [
        OperationVerdict.DONE,
        OperationVerdict.CONFLICT,
    ]
    assert await race.operate(Cancel(), dependant.id) == [OperationVerdict.DONE]
    assert await race.operate(Delete(), dependant.id, member.id) == [OperationVerdict.DONE] * 2


# -- cancel and settle ---------------------------------------------------------------------------


@race
async def test_request_to_cancel_that_meets_a_settle_finds_the_job_where_it_went(race: Race) -> None:
    """The settle holds the lease; the request waits for it, and then sees the attempt's row."""
    token, job = await race.running()
    async with race.transaction() as session:
        await settle.settle(session, [success(token, job)])
        cancelling = await begun(race.operate(Cancel(), job.id), race)
    assert await cancelling == [OperationVerdict.CONFLICT]
    assert await race.state(job.id) is State.SUCCEEDED


@race
async def test_request_to_cancel_that_meets_a_retry_cancels_the_job(race: Race) -> None:
    """The retry put it back into its place: there the operator finds it in a new snapshot."""
    token, job = await race.running()
    async with race.transaction() as session:
        await settle.settle(session, [failure(token, job)])
        cancelling = await begun(race.operate(Cancel(), job.id), race)
    assert await cancelling == [OperationVerdict.DONE]
    assert await race.state(job.id) is State.CANCELLED


@race
async def test_settle_that_meets_a_request_to_cancel_obeys_it(race: Race) -> None:
    """The request is in the lease's row: whoever settles next reads the row as it is when the lock is his."""
    token, job = await race.running()
    async with race.transaction() as session:
        answers = await operate.operate(session, Cancel(), [job.id])
        settling = await begun(race.settle(failure(token, job)), race)
    assert answers[job.id].verdict is OperationVerdict.REQUESTED
    assert await settling == [SettleAnswer.DONE]
    assert await race.state(job.id) is State.CANCELLED


@race
async def test_success_that_meets_a_request_to_cancel_wins(race: Race) -> None:
    """The quick way of settling waits for the request as well, and does not lose its lease over it."""
    token, job = await race.running()
    async with race.transaction() as session:
        await operate.operate(session, Cancel(), [job.id])
        settling = await begun(race.settle(success(token, job)), race)
    assert await settling == [SettleAnswer.DONE]
    assert await race.state(job.id) is State.SUCCEEDED
    assert await race.driver.leases(now=NOW) == []


# -- operators and claims ------------------------------------------------------------------------


@race
async def test_change_that_meets_a_claim_is_a_conflict(race: Race) -> None:
    """The claim has taken the row: the operator, who would rewrite it, looks again and finds the job running."""
    job_id = await race.ready()
    async with race.transaction() as session:
        await leases.claim(session, ClaimRequest("worker/1", LEASE, 1), SearchPlan())
        changing = await begun(race.operate(Update(priority=5), job_id), race)
    assert await changing == [OperationVerdict.CONFLICT]
    record = await race.record(job_id)
    assert (record.state, record.priority, record.version) == (State.RUNNING, 0, 1)


@race
async def test_operator_between_looking_and_rewriting_loses_to_a_claim(race: Race) -> None:
    """The barrier stands after the look: the place is found empty, and the whole thing begins anew."""
    job_id = await race.ready()
    async with race.transaction() as session:
        session.stop_before = "take_ready"
        changing = asyncio.ensure_future(operate.operate(session, Update(priority=5), [job_id]))
        await session.stopped.wait()
        _, claim = await race.claim()
        session.go_on.set()
        assert await changing == {}  # no answer: to be looked for again
    assert [job.id for job in claim.jobs] == [job_id]
    assert await race.operate(Update(priority=5), job_id) == [OperationVerdict.CONFLICT]


@race
async def test_claim_passes_over_a_job_that_is_being_changed(race: Race) -> None:
    """It neither waits for the operator nor hands out what the job was before."""
    job_id = await race.ready()
    async with race.transaction() as session:
        await operate.operate(session, Update(priority=5, payload='{"new":1}'), [job_id])
        assert (await race.claim())[1].jobs == []
    _, claim = await race.claim()
    assert [(job.priority, job.payload) for job in claim.jobs] == [(5, '{"new":1}')]


@race
async def test_two_claims_at_once_never_wait_for_each_other(race: Race) -> None:
    """What one is about to take, the other passes over, also across queues and priorities."""
    ids = [await race.ready(queue=queue, priority=priority) for queue in "ab" for priority in (0, 1)]
    async with race.transaction() as session:
        first, _ = await leases.claim(session, ClaimRequest("worker/a", LEASE, 2), SearchPlan())
        _, second = await race.claim(2)
    assert [job.priority for job in first.jobs] == [1, 1]
    assert [job.priority for job in second.jobs] == [0, 0]
    assert sorted(job.id for job in first.jobs + second.jobs) == sorted(ids)


@race
async def test_expiry_and_claim_meet_on_one_job(race: Race) -> None:
    """Either it begins or it is cancelled, never both."""
    job_id = await race.ready(expires_at=NOW)
    async with race.transaction() as session:
        await leases.claim(session, ClaimRequest("worker/1", LEASE, 1), SearchPlan())
        assert await race.driver.expire(10, now=NOW) == []
    assert await race.state(job_id) is State.RUNNING


# -- deleting what a lease still names -----------------------------------------------------------


@race
async def test_deleted_job_is_struck_out_of_the_lease_that_still_names_it(race: Race) -> None:
    """Without its attempt row it would look unsettled, and a collector would raise it from the dead."""
    await race.ready()
    await race.ready()
    token, claim = await race.claim()
    first, second = claim.jobs
    await race.settle(success(token, first))
    async with race.transaction() as session:
        await session.rows("hold_leases", [token])
        deleting = await begun(race.operate(Delete(), first.id), race)  # it waits for the lease
    assert await deleting == [OperationVerdict.DONE]
    expired = await race.driver.take_expired("collector/1", LEASE, now=NOW + LEASE)
    assert expired is not None
    assert [job.id for job in expired.jobs] == [second.id]


@race
async def test_settle_of_a_job_that_was_deleted_meanwhile_leaves_no_row(race: Race) -> None:
    """The quick way trusts what it claimed itself, but not a lease that something was struck out of."""
    await race.ready()
    await race.ready()
    token, claim = await race.claim()
    first, second = claim.jobs
    other = store.another(race.driver)
    await other.settle([failure(token, first)], now=NOW)
    await other.operate(Cancel(), [first.id], now=NOW)
    await other.operate(Delete(), [first.id], now=NOW)
    await other.close()
    assert await race.settle(success(token, first), success(token, second)) == [
        SettleAnswer.NOT_RUNNING,
        SettleAnswer.DONE,
    ]
    assert await race.driver.history(first.id) == []
    assert await race.driver.leases(now=NOW) == []


@race
async def test_pruning_and_settling_under_one_lease(race: Race) -> None:
    """Pruning holds the leases that name what it deletes: a settle waits, and closes its lease rightly."""
    await race.ready()
    await race.ready()
    token, claim = await race.claim()
    first, second = claim.jobs
    await race.settle(success(token, first))
    async with race.transaction() as session:
        assert await operate.prune(session, {State.SUCCEEDED: NOW + 1}, 10) == 1
        settling = await begun(race.settle(success(token, second)), race)
    assert await settling == [SettleAnswer.DONE]
    assert await race.driver.leases(now=NOW) == []
    assert (await race.driver.counts(now=NOW))[State.SUCCEEDED] == 1
