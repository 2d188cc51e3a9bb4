"""Successes that share a row: what a settle writes, what readers see of it, and who may collide with it.

The rules that every store follows hold here too: the state machine runs with successes that share from the very first
one on. The long form (`make faults`) runs the whole contract in this way: see faults/test_sharing.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from taskharbor import conformance
from taskharbor.clock import Clock
from taskharbor.drivers.base import (
    Claimed,
    ClaimRequest,
    Delete,
    OperationVerdict,
    Requeue,
    SettleAnswer,
    Transition,
)
from taskharbor.drivers.postgres import PostgresDriver, leases, operate, settle
from taskharbor.drivers.postgres.settle import SHARED_FROM, Covered, are_apart, plain_successes
from taskharbor.records import AttemptRecord, AttemptStatus, NewJob, State
from tests.postgres.races import LEASE, NOW, PATIENCE_SECONDS, SECOND, Race, begun, failure, race, success
from tests.postgres.store import another, fresh

MANY = 2 * SHARED_FROM
OLD = {State.SUCCEEDED: NOW + 1}
DAY = 86_400 * SECOND


@contextmanager
def sharing(clock: Clock | None = None) -> Iterator[PostgresDriver]:
    """A driver whose successes share a row even when they are alone."""
    with fresh(clock) as driver:
        driver.shared_from = 1
        yield driver


def another_sharing(first: PostgresDriver, clock: Clock | None = None) -> PostgresDriver:
    driver = another(first, clock)
    driver.shared_from = 1
    return driver


# A few stories: the same machine tells many to the usual driver, and `make faults` tells many to this one too.
STORIES = int(os.environ.get("TASKHARBOR_CONFORMANCE_EXAMPLES", "10"))
TestSharingMachine = pytest.mark.timeout(1_800)(conformance.state_machine(sharing, examples=STORIES))


# -- telling -------------------------------------------------------------------------------------


async def _claimed(race: Race, count: int = MANY, **fields: Any) -> tuple[str, list[Claimed]]:
    await race.driver.enqueue([race.new(**fields) for _ in range(count)], now=NOW)
    token, claim = await race.claim(limit=count)
    assert len(claim.jobs) == count
    return token, claim.jobs


async def _finished(race: Race, count: int = MANY, now: int = NOW) -> list[str]:
    token, jobs = await _claimed(race, count)
    assert set(await race.settle(*[success(token, job) for job in jobs], now=now)) == {SettleAnswer.DONE}
    return [job.id for job in jobs]


async def _stored(race: Race) -> tuple[int, int, int]:
    """How many settles, narrow rows and whole rows the store holds."""
    schema = race.driver.schema
    async with race.transaction() as session:
        [row] = await session.connection.fetch(
            f'SELECT (SELECT count(*) FROM "{schema}".settles), count(settle_id), count(*) - count(settle_id) '
            f'FROM "{schema}".attempts'
        )
    return tuple(row)


async def _history(race: Race, job_id: str) -> AttemptRecord:
    [attempt] = await race.driver.history(job_id)
    return attempt


async def _settled_plainly(session: Any, race: Race, transitions: Sequence[Transition]) -> list[Any] | None:
    """Settle by the fast path on this session, as the driver does."""
    plain = plain_successes(race.driver._settler.covered, transitions)
    assert plain is not None
    return await settle.settle_plainly(session, transitions, plain)


# -- what is stored, and what is read ------------------------------------------------------------


@race
async def test_successes_of_one_settle_share_a_row(race: Race) -> None:
    await _finished(race)
    assert await _stored(race) == (1, MANY, 0)


@race
async def test_few_successes_have_rows_of_their_own(race: Race) -> None:
    await _finished(race, SHARED_FROM - 1)
    assert await _stored(race) == (0, 0, SHARED_FROM - 1)


@race
async def test_everything_but_a_plain_success_has_a_row_of_its_own(race: Race) -> None:
    token, jobs = await _claimed(race)
    await race.settle(*[success(token, job) for job in jobs[1:]], failure(token, jobs[0]))
    assert await _stored(race) == (0, 0, MANY)


@race
async def test_narrow_row_holds_the_id_four_numbers_and_a_header(race: Race) -> None:
    """32 bytes of header with the map of what is NULL; then no padding. A column that is added shows here."""
    await _finished(race)
    async with race.transaction() as session:
        size = await session.connection.fetchval(
            f'SELECT max(pg_column_size(a.*)) FROM "{race.driver.schema}".attempts AS a'
        )
    assert size <= 32 + 16 + 8 + 4 + 4


@race
async def test_shared_success_reads_as_any_other(race: Race) -> None:
    token, jobs = await _claimed(race)
    settled = [success(token, job, result=f"{n}") for n, job in enumerate(jobs)]
    assert set(await race.settle(*settled, now=NOW + SECOND)) == {SettleAnswer.DONE}
    for n, job in enumerate(jobs):
        assert await _history(race, job.id) == AttemptRecord(
            job_id=job.id, number=1, status=AttemptStatus.SUCCEEDED, retry_count=0, worker="worker", started_at=NOW,
            finished_at=NOW + SECOND,
        )  # fmt: skip
        record = await race.record(job.id)
        assert (record.state, record.finished_at, record.result) == (State.SUCCEEDED, NOW + SECOND, f"{n}")


def test_settle_that_names_wrong_positions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow row names its job by a position only: the rule above fails if two of them are exchanged."""
    take = Covered.take

    def mistaken(covered: Covered, token: str, ids: Sequence[str]) -> list[int]:
        places = take(covered, token, ids)
        one, other = sorted(range(len(ids)), key=ids.__getitem__)[
            1:3
        ]  # the store checks the first and the last
        places[one], places[other] = places[other], places[one]
        return places

    monkeypatch.setattr(Covered, "take", mistaken)
    with pytest.raises(AssertionError):
        test_shared_success_reads_as_any_other()


@race
async def test_success_after_failures_keeps_their_number(race: Race) -> None:
    token, jobs = await _claimed(race)
    await race.settle(
        *[failure(token, job) for job in jobs[::2]], *[success(token, job) for job in jobs[1::2]]
    )
    token, claim = await race.claim(limit=MANY)
    assert [job.attempts for job in claim.jobs] == [1] * SHARED_FROM
    await race.settle(*[success(token, job, attempts=1) for job in claim.jobs])
    assert await _stored(race) == (1, SHARED_FROM, MANY)
    for job in claim.jobs:
        assert [(a.number, a.status, a.retry_count) for a in await race.driver.history(job.id)] == [
            (2, AttemptStatus.SUCCEEDED, 1), (1, AttemptStatus.FAILED, 0),
        ]  # fmt: skip
        assert (await race.record(job.id)).attempts == 1


@race
async def test_start_is_kept_exactly_however_long_ago(race: Race) -> None:
    """Also where the worker's clock is ahead of the server's, and of an attempt that never started."""
    starts = [
        NOW,
        NOW - 1,
        NOW + 17,
        NOW - 2_000_000_000,
        NOW - 2_000_000_001,
        NOW - 30 * DAY,
        None,
        NOW + DAY,
    ]
    token, jobs = await _claimed(race, len(starts))
    await race.settle(
        *[
            Transition(token, job.id, 1, AttemptStatus.SUCCEEDED, State.SUCCEEDED, started_at=start)
            for job, start in zip(jobs, starts, strict=True)
        ]
    )
    assert await _stored(race) == (1, len(starts), 0)
    assert [(await _history(race, job.id)).started_at for job in jobs] == starts


@race
async def test_each_lease_of_a_settle_has_its_own_row(race: Race) -> None:
    """The worker of an attempt is that of its token, and members of several leases may come in any order."""
    await race.driver.enqueue([race.new() for _ in range(MANY)], now=NOW)
    first, claim = await race.claim(limit=SHARED_FROM, token="one/1")
    second, other = await race.claim(limit=SHARED_FROM, token="two/1")
    mixed = (
        [success(first, job) for job in claim.jobs],
        [success(second, job) for job in reversed(other.jobs)],
    )
    await race.settle(*[t for pair in zip(*mixed, strict=True) for t in pair])
    assert await _stored(race) == (2, MANY, 0)
    assert {(await _history(race, job.id)).worker for job in claim.jobs} == {"one"}
    assert {(await _history(race, job.id)).worker for job in other.jobs} == {"two"}


@race
async def test_part_of_a_lease_settles_the_jobs_that_are_meant(race: Race) -> None:
    """By their positions in the lease, in any order."""
    token, jobs = await _claimed(race, 3 * SHARED_FROM)
    part = jobs[::-3] + jobs[::3]
    part = list({job.id: job for job in part}.values())
    assert set(await race.settle(*[success(token, job) for job in part])) == {SettleAnswer.DONE}
    done = {job.id for job in part}
    for job in jobs:
        assert await race.state(job.id) is (State.SUCCEEDED if job.id in done else State.RUNNING)
    await race.settle(*[success(token, job) for job in jobs if job.id not in done])
    assert {await race.state(job.id) for job in jobs} == {State.SUCCEEDED}


# -- positions that no longer hold ---------------------------------------------------------------


@race
async def test_lease_that_lost_a_job_counts_its_positions_anew(race: Race) -> None:
    """A settled member that an operator deletes leaves the lease, and all after it move up."""
    token, jobs = await _claimed(race)
    await race.settle(*[success(token, job) for job in jobs[:SHARED_FROM]])
    assert await race.operate(Delete(), jobs[0].id) == [OperationVerdict.DONE]
    left = jobs[SHARED_FROM:]
    assert set(await race.settle(*[success(token, job) for job in left[:-1]])) == {SettleAnswer.DONE}
    assert await race.state(left[-1].id) is State.RUNNING
    assert {await race.state(job.id) for job in left[:-1]} == {State.SUCCEEDED}


@race
async def test_claim_that_is_answered_again_settles_the_jobs_that_are_meant(race: Race) -> None:
    """It names what is unsettled, and the lease still covers what came before."""
    token, jobs = await _claimed(race)
    await race.settle(*[success(token, job) for job in jobs[:3]])
    _, again = await race.claim(limit=MANY, token=token)
    assert [job.id for job in again.jobs] == [job.id for job in jobs[3:]]
    assert set(await race.settle(*[success(token, job) for job in again.jobs[:-1]])) == {SettleAnswer.DONE}
    assert await race.state(jobs[-1].id) is State.RUNNING


@race
async def test_lease_that_holds_other_jobs_than_the_caller_thinks_is_looked_at_closely(race: Race) -> None:
    """The smallest and the largest id prove that both count alike: else the slow way decides."""
    token, jobs = await _claimed(race)
    async with race.transaction() as session:
        schema = race.driver.schema
        await session.connection.execute(
            f'UPDATE "{schema}".claims SET ids = ids[2:] || ids[1], numbers = numbers[2:] || numbers[1]'
        )
    assert set(await race.settle(*[success(token, job) for job in jobs[:-1]])) == {SettleAnswer.DONE}
    assert await race.state(jobs[-1].id) is State.RUNNING
    assert await _stored(race) == (0, 0, MANY - 1)


# -- the fence -----------------------------------------------------------------------------------


@race
async def test_late_finisher_waits_for_the_collector_and_is_refused(race: Race) -> None:
    token, jobs = await _claimed(race)
    late = [success(token, job) for job in jobs]
    async with race.transaction(NOW + LEASE) as session:
        expired, _ = await leases.take_expired(session, "collector/1", LEASE)
        assert expired is not None
        finishing = await begun(race.driver.settle(late, now=NOW), race)
    assert {settled.answer for settled in await finishing} == {SettleAnswer.LEASE_MISMATCH}
    assert await _stored(race) == (0, 0, 0)


@race
async def test_collector_passes_over_successes_that_are_being_stored(race: Race) -> None:
    token, jobs = await _claimed(race)
    async with race.transaction() as session:
        assert await _settled_plainly(session, race, [success(token, job) for job in jobs]) is not None
        assert await race.driver.take_expired("collector/1", LEASE, now=NOW + LEASE) is None
    assert await race.driver.take_expired("collector/1", LEASE, now=NOW + LEASE) is None
    assert {await race.state(job.id) for job in jobs} == {State.SUCCEEDED}


@race
async def test_attempt_that_has_its_row_already_stops_the_whole_settle(race: Race) -> None:
    """The key is over all of history: whoever else stores the end of one member, the batch waits for it, and then
    decides about each one."""
    token, jobs = await _claimed(race)
    schema = race.driver.schema
    async with race.transaction() as session:
        await session.connection.execute(
            f'INSERT INTO "{schema}".attempts (job_id, number, retry_count, attempts, finished_at, status, token) '
            "VALUES ($1::text::uuid, 1, 0, 0, now(), 'lost', 'collector/1')", jobs[5].id,
        )  # fmt: skip
        finishing = await begun(race.driver.settle([success(token, job) for job in jobs], now=NOW), race)
    answers = [settled.answer for settled in await finishing]
    assert answers.pop(5) is not SettleAnswer.DONE
    assert set(answers) == {SettleAnswer.DONE}
    assert await _stored(race) == (0, 0, MANY)
    assert (await _history(race, jobs[5].id)).status is AttemptStatus.LOST


@race
async def test_settle_repeated_after_a_lost_answer_stores_nothing_more(race: Race) -> None:
    token, jobs = await _claimed(race)
    settled = [success(token, job) for job in jobs]
    assert set(await race.settle(*settled)) == {SettleAnswer.DONE}
    again = await race.driver.settle(settled, now=NOW + SECOND)
    assert {(each.answer, each.recorded) for each in again} == {(SettleAnswer.DONE, AttemptStatus.SUCCEEDED)}
    assert await _stored(race) == (1, MANY, 0)
    assert (await _history(race, jobs[0].id)).finished_at == NOW


@race
async def test_settle_repeated_while_the_first_one_commits_stores_nothing_more(race: Race) -> None:
    token, jobs = await _claimed(race)
    settled = [success(token, job) for job in jobs]
    async with race.transaction() as session:
        assert await _settled_plainly(session, race, settled) is not None
        repeating = await begun(race.driver.settle(settled, now=NOW), race)
    assert {each.answer for each in await repeating} == {SettleAnswer.DONE}
    assert await _stored(race) == (1, MANY, 0)


@race
async def test_settle_that_is_rolled_back_leaves_nothing(race: Race) -> None:
    token, jobs = await _claimed(race)
    settled = [success(token, job) for job in jobs]
    with pytest.raises(ZeroDivisionError):
        async with race.transaction() as session:
            assert await _settled_plainly(session, race, settled) is not None
            raise ZeroDivisionError
    assert await _stored(race) == (0, 0, 0)
    assert set(await race.settle(*settled)) == {SettleAnswer.DONE}


# -- operators and pruning -----------------------------------------------------------------------


@race
async def test_member_is_deleted_without_the_others(race: Race) -> None:
    ids = await _finished(race)
    assert await race.operate(Delete(), ids[3]) == [OperationVerdict.DONE]
    assert await race.driver.get([ids[3]], now=NOW) == [None]
    for job_id in ids[:3] + ids[4:]:
        assert (await _history(race, job_id)).finished_at == NOW
    assert await _stored(race) == (1, MANY - 1, 0)


@race
async def test_member_that_has_succeeded_is_not_requeued(race: Race) -> None:
    ids = await _finished(race)
    assert await race.operate(Requeue(), ids[0]) == [OperationVerdict.CONFLICT]
    assert await race.state(ids[0]) is State.SUCCEEDED


@race
async def test_members_deleted_from_both_ends_at_once_are_gone(race: Race) -> None:
    """Two operators and no wait: they share a settle, and lock only their own jobs."""
    ids = await _finished(race)
    async with race.transaction() as session:
        await operate.operate(session, Delete(), [ids[0]])
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await race.operate(Delete(), ids[1]) == [OperationVerdict.DONE]
    assert await race.driver.get(ids[:2], now=NOW) == [None, None]
    assert await _stored(race) == (1, MANY - 2, 0)


@race
async def test_oldest_endings_are_pruned_first_whoever_shares_a_row(race: Race) -> None:
    ends = {}
    for age, count in enumerate([MANY, 2, SHARED_FROM, 3, MANY]):
        for job_id in await _finished(race, count, NOW + age):
            ends[job_id] = age
    order = sorted(ends, key=lambda job_id: (ends[job_id], job_id))
    before = {State.SUCCEEDED: NOW + 4}
    for start in range(0, 2 * MANY, 5):
        limit = min(5, MANY + 2 + SHARED_FROM + 3 - start)
        if limit <= 0:
            break
        assert await race.driver.prune(before, 5, now=NOW + DAY) == limit
        left = [record is not None for record in await race.driver.get(order, now=NOW)]
        assert left == [False] * (start + limit) + [True] * (len(order) - start - limit)
    assert await race.driver.prune(before, 5, now=NOW + DAY) == 0
    assert await _stored(race) == (1, MANY, 0)


@race
async def test_settle_goes_when_its_last_member_is_pruned_or_deleted(race: Race) -> None:
    pruned, deleted = await _finished(race), await _finished(race)
    await race.driver.operate(Delete(), deleted, now=NOW)
    assert await race.driver.prune(OLD, MANY, now=NOW) == len(pruned)
    assert await race.driver.prune(OLD, MANY, now=NOW) == 0
    assert await _stored(race) == (0, 0, 0)


@race
async def test_ids_far_apart_are_kept_for_pruning(race: Race) -> None:
    """Where others lie between them, only the members go."""
    between = [NewJob(f"019b76da-a800-7000-9000-{n:012x}", "task", queue="other") for n in range(5)]
    apart = [NewJob(f"019b76d{n:x}-a800-7000-8000-{n:012x}", "task") for n in range(MANY)]
    await race.driver.enqueue([*apart, *between], now=NOW)
    claim = await race.driver.claim(ClaimRequest("worker/1", LEASE, MANY, ("default",)), now=NOW)
    await race.settle(*[success("worker/1", job) for job in claim.jobs])
    async with race.transaction() as session:
        [ids] = await session.connection.fetch(f'SELECT ids::text[] FROM "{race.driver.schema}".settles')
    assert ids[0] == [job.id for job in apart]
    assert await race.driver.prune(OLD, 3, now=NOW) == 3
    assert await race.driver.prune(OLD, 100, now=NOW) == MANY - 3
    assert await race.driver.prune(OLD, 100, now=NOW) == 0
    assert await _stored(race) == (0, 0, 0)
    assert len([job for job in await race.driver.get([job.id for job in between], now=NOW) if job]) == 5


@race
async def test_two_prunes_of_one_settle_wait_for_nobody(race: Race) -> None:
    """The second one passes over what the first one holds: the jobs, and the row that they shared."""
    await _finished(race)
    async with race.transaction() as session:
        assert await operate.prune(session, OLD, 100) == MANY
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await race.driver.prune(OLD, 100, now=NOW) == 0
    async with race.transaction() as session:
        assert await operate.prune(session, OLD, 100) == 0  # the row goes
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await race.driver.prune(OLD, 100, now=NOW) == 0
    assert await _stored(race) == (0, 0, 0)


@race
async def test_prune_that_is_rolled_back_leaves_the_settle(race: Race) -> None:
    ids = await _finished(race)
    with pytest.raises(ZeroDivisionError):
        async with race.transaction() as session:
            assert await operate.prune(session, OLD, 100) == MANY
            assert await operate.prune(session, OLD, 100) == 0
            raise ZeroDivisionError
    assert await _stored(race) == (1, MANY, 0)
    assert (await _history(race, ids[0])).finished_at == NOW


@race
async def test_member_whose_settle_is_missing_is_shown_as_unreadable(race: Race) -> None:
    """A hand has deleted the row: the job stays visible, and can be deleted."""
    ids = await _finished(race)
    async with race.transaction() as session:
        await session.connection.execute(f'DELETE FROM "{race.driver.schema}".settles')
    record = await race.record(ids[0])
    assert (record.state, "finished_at" in (record.unreadable or "")) == (State.SUCCEEDED, True)
    assert (await _history(race, ids[0])).detail is not None
    assert await race.operate(Delete(), ids[0]) == [OperationVerdict.DONE]


# -- without a server ----------------------------------------------------------------------------


def test_ids_of_one_bulk_are_not_far_apart() -> None:
    first = "019b76da-a800-7000-8000-000000000000"
    assert not are_apart(first, "019b76da-a800-7fff-bfff-ffffffffffff", 1)
    assert not are_apart(first, "019b76da-a80a-7000-8000-000000000000", 10)
    assert are_apart(first, "019b76da-a80b-7000-8000-000000000000", 10)


def test_batch_with_an_attempt_that_was_not_claimed_here_is_not_plain() -> None:
    covered = Covered()
    t = Transition(
        "worker/1", "019b76da-a800-7000-8000-000000000000", 1, AttemptStatus.SUCCEEDED, State.SUCCEEDED
    )
    assert plain_successes(covered, [t]) is None
