"""Races about leases: tokens, time, progress, outcomes, and the order of locks. See `tests/postgres/races.py`."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor.drivers.base import (
    ClaimRequest,
    Extension,
    ProgressNote,
    SettleAnswer,
)
from taskharbor.drivers.postgres import leases, settle
from taskharbor.drivers.postgres.claim_hints import SearchPlan
from taskharbor.drivers.postgres.connections import Connections, Lane, Session
from taskharbor.records import AttemptStatus, Progress, State
from tests.postgres import store
from tests.postgres.races import (
    LEASE,
    NOW,
    SECOND,
    Race,
    begun,
    failure,
    race,
    success,
)

# -- tokens --------------------------------------------------------------------------------------


@race
async def test_claim_repeated_while_the_first_one_commits_gives_the_same_jobs(race: Race) -> None:
    """The token is the caller's: of two claims that bear it, one is made and both are answered with it."""
    first, second = await race.ready(), await race.ready()
    request = ClaimRequest("worker/1", LEASE, 1, once_limit=1)
    async with race.transaction() as session:
        claim, _ = await leases.claim(session, request, SearchPlan())
        repeated = await begun(race.driver.claim(request, now=NOW), race)
    assert [job.id for job in claim.jobs] == [first]
    assert (await repeated).jobs == claim.jobs
    assert await race.state(second) is State.READY


@race
async def test_lease_collected_twice_at_once_goes_to_one_token(race: Race) -> None:
    """Two collections that bear one token are one collection."""
    token, job = await race.running()
    later = NOW + LEASE
    async with race.transaction(later) as session:
        first, _ = await leases.take_expired(session, "collector/1", LEASE)
        # Another collector does not wait for it.
        assert await race.driver.take_expired("collector/2", LEASE, now=later) is None
    assert first is not None
    again = await race.driver.take_expired("collector/1", LEASE, now=later)
    assert again is not None
    assert (again.jobs, again.expired_at) == (first.jobs, first.expired_at)
    assert await race.settle(success(token, job)) == [SettleAnswer.LEASE_MISMATCH]


# -- notes ---------------------------------------------------------------------------------------


@race
async def test_progress_that_meets_a_settle_is_refused(race: Race) -> None:
    """Notes hold the lease's row too: none is stored for an attempt that is over."""
    token, job = await race.running()
    note = ProgressNote(token, job.id, job.number, Progress(0.5))
    async with race.transaction() as session:
        await settle.settle(session, [success(token, job)])
        noting = await begun(race.driver.note([note], now=NOW), race)
    assert await noting == [SettleAnswer.NOT_RUNNING]
    assert (await race.record(job.id)).progress is None


@race
async def test_settle_waits_for_progress_that_is_being_stored(race: Race) -> None:
    """And the other way round: a note that was admitted is stored before the attempt ends."""
    token, job = await race.running()
    async with race.transaction() as session:
        note = ProgressNote(token, job.id, job.number, Progress(0.5))
        assert await settle.note(session, [note]) == [SettleAnswer.DONE]
        settling = await begun(race.settle(success(token, job)), race)
    assert await settling == [SettleAnswer.DONE]
    assert (await race.record(job.id)).progress == Progress(0.5)


# -- leases and time -----------------------------------------------------------------------------


@race
async def test_settle_that_meets_a_collector_is_refused(race: Race) -> None:
    """Once the lease has another token, the old one proves nothing, whenever its settle began."""
    token, job = await race.running()
    async with race.transaction(NOW + LEASE) as session:
        assert (await leases.take_expired(session, "collector/1", LEASE))[0] is not None
        settling = await begun(race.settle(success(token, job), now=NOW + LEASE - 1), race)
    assert await settling == [SettleAnswer.LEASE_MISMATCH]
    assert await race.driver.history(job.id) == []


@race
async def test_collector_passes_over_a_lease_that_is_being_settled_or_extended(race: Race) -> None:
    """Its worker is alive."""
    token, job = await race.running()
    later = NOW + LEASE
    async with race.transaction() as session:
        await leases.extend(session, [Extension(token, 2 * LEASE)])
        assert await race.driver.take_expired("collector/1", LEASE, now=later) is None
    assert await race.driver.take_expired("collector/1", LEASE, now=later) is None
    async with race.transaction() as session:
        await settle.settle(session, [success(token, job)])
        assert await race.driver.take_expired("collector/1", LEASE, now=later + LEASE) is None
    assert await race.state(job.id) is State.SUCCEEDED


@race
async def test_time_is_read_when_the_lock_is_held(race: Race) -> None:
    """A settle that waits for the lease's lock until the lease is over is too late, though it began in time."""
    await race.driver.enqueue([race.new()])
    claim = await race.driver.claim(ClaimRequest("worker/1", SECOND // 2, 1))
    [job] = claim.jobs
    for transition in (success("worker/1", job), failure("worker/1", job)):
        async with race.transaction(None) as session:
            await session.rows("lock_leases", ["worker/1"])
            settling = await begun(race.settle(transition, now=None), race)
            while await session.now() < claim.expires_at:  # noqa: ASYNC110 - it is the server's time
                await asyncio.sleep(0.05)
        assert await settling == [SettleAnswer.LEASE_EXPIRED]
    assert await race.driver.history(job.id) == []


@race
async def test_heartbeat_that_waited_too_long_does_not_revive_a_lease(race: Race) -> None:
    """Expiry is judged by the row and the time after the wait."""
    token, _job = await race.running()
    async with race.transaction(NOW + LEASE) as session:
        await leases.take_expired(session, "collector/1", LEASE)
        beating = await begun(race.driver.extend([Extension(token, LEASE)], now=NOW), race)
    assert [lease.answer for lease in (await beating).leases] == [SettleAnswer.NOT_RUNNING]


@race
async def test_two_outcomes_of_one_attempt_commit_one(race: Race) -> None:
    """The second settle waits for the first one and learns what it recorded."""
    token, job = await race.running()
    async with race.transaction() as session:
        await settle.settle(session, [failure(token, job)])
        settling = await begun(race.driver.settle([success(token, job)], now=NOW), race)
    [settled] = await settling
    assert (settled.answer, settled.recorded) == (SettleAnswer.NOT_RUNNING, AttemptStatus.FAILED)


# -- lock order ----------------------------------------------------------------------------------


@race
async def test_settles_over_the_same_leases_do_not_deadlock(race: Race) -> None:
    """Leases are locked by token, whatever the order of the transitions."""
    await race.ready()
    await race.ready()
    held = [(token, claim.jobs[0]) for token, claim in [await race.claim(1), await race.claim(1)]]
    async with race.transaction() as session:
        session.stop_before = "insert_attempts"
        first = asyncio.ensure_future(settle.settle(session, [failure(*one) for one in held]))
        await session.stopped.wait()
        second = await begun(race.settle(*[failure(*one) for one in reversed(held)]), race)
        session.go_on.set()
        assert [settled.answer for settled in await first] == [SettleAnswer.DONE] * 2
    assert await second == [SettleAnswer.DONE] * 2


@race
async def test_batches_with_the_same_keys_do_not_deadlock(race: Race) -> None:
    """Jobs are inserted by queue and key, whatever the order they were given in."""
    batches = [[race.new(idempotency_key=f"k{n}") for n in range(50)] for _ in range(6)]
    answers = await asyncio.gather(
        *[race.driver.enqueue(batch[:: (-1) ** index], now=NOW) for index, batch in enumerate(batches)]
    )
    stored = {answer.id for batch in answers for answer in batch}
    assert len(stored) == 50
    assert sum(not answer.existed for batch in answers for answer in batch) == 50


@race
async def test_deadlock_is_repeated(race: Race) -> None:
    """Whoever the server picks as the victim begins anew; its caller does not notice."""
    first, second = await race.ready(), await race.ready()
    async with race.transaction() as session:
        await session.rows("lock_jobs", [second])
        met = asyncio.Event()

        async def crosswise(mine: Session) -> int:
            await mine.rows("lock_jobs", [first])
            met.set()
            await mine.rows("lock_jobs", [second])
            return 1

        task = asyncio.ensure_future(race.driver._connections.transact(Lane.REST, crosswise))
        await met.wait()
        await race.until_somebody_waits()
        await session.connection.execute("SET LOCAL deadlock_timeout = '60s'")  # the other one is the victim
        await session.rows("lock_jobs", [first])
        assert not task.done()
    assert await task == 1


def test_unexpected_errors_are_not_repeated() -> None:
    """Only what collided with somebody is."""
    calls = 0

    async def work(session: Session) -> None:
        nonlocal calls
        calls += 1
        await session.connection.execute("SELECT 1 / 0")

    dsn = store.shared_database()

    async def run() -> None:
        connections = Connections(dsn, "none", {}, pooler=False)
        try:
            with pytest.raises(Exception, match="division by zero"):
                await connections.transact(Lane.REST, work)
        finally:
            await connections.close()

    asyncio.run(run())
    assert calls == 1
