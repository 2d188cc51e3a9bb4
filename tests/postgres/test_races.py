"""Races, each with two connections and a barrier: one side stops between two of its statements, or before its
commit, and the other one runs into it. A state machine, which does one thing after the other, sees none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import pytest

from taskharbor.drivers.base import (
    Answer,
    Cancel,
    Claim,
    Claimed,
    ClaimRequest,
    Delete,
    Extension,
    Operated,
    Operation,
    ProgressNote,
    Requeue,
    Settled,
    Transition,
    Update,
    Verdict,
)
from taskharbor.drivers.postgres import PostgresDriver, enqueue, leases, operate, settle
from taskharbor.drivers.postgres.connections import Connections, Lane, Session
from taskharbor.job import AttemptStatus, JobRecord, NewJob, Progress, Reason, State
from tests.postgres import store

T = TypeVar("T")

SECOND = 1_000_000
LEASE = 30 * SECOND
NOW = 1_767_225_600 * SECOND + 123_457
PATIENCE_SECONDS = 20.0


class PausingSession(Session):
    """Stops before the statement of that name until it is told to go on."""

    def __init__(self, connection: asyncpg.Connection, sql: dict[str, str], now: int | None) -> None:
        super().__init__(connection, sql, now)
        self.stop_before = ""
        self.stopped = asyncio.Event()
        self.go_on = asyncio.Event()

    async def _pass(self, name: str) -> None:
        if name == self.stop_before:
            self.stopped.set()
            await self.go_on.wait()

    async def rows(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
        await self._pass(name)
        return await super().rows(name, *arguments)

    async def value(self, name: str, *arguments: Any) -> Any:
        await self._pass(name)
        return await super().value(name, *arguments)

    async def do(self, name: str, *arguments: Any) -> None:
        await self._pass(name)
        await super().do(name, *arguments)


class Race:
    """A store with its driver, and connections of ours beside the driver's."""

    def __init__(self, driver: PostgresDriver) -> None:
        self.driver = driver
        self._jobs = 0
        self._tokens = 0

    # -- what happens before the race --

    def new(self, **fields: Any) -> NewJob:
        self._jobs += 1
        return NewJob(**{"id": f"019b76da-a800-7000-8000-{self._jobs:012x}", "task": "race", **fields})

    async def ready(self, **fields: Any) -> str:
        [answer] = await self.driver.enqueue([self.new(**fields)], now=NOW)
        return answer.id

    async def claim(self, limit: int = 10, token: str | None = None) -> tuple[str, Claim]:
        self._tokens += 1
        token = token or f"worker/{self._tokens}"
        return token, await self.driver.claim(ClaimRequest(token, LEASE, limit, once_limit=limit), now=NOW)

    async def running(self, **fields: Any) -> tuple[str, Claimed]:
        await self.ready(**fields)
        token, claim = await self.claim()
        [job] = claim.jobs
        return token, job

    async def record(self, job_id: str) -> JobRecord:
        [record] = await self.driver.get([job_id], now=NOW)
        assert record is not None
        return record

    async def state(self, job_id: str) -> State:
        return (await self.record(job_id)).state

    async def settle(self, *transitions: Transition, now: int | None = NOW) -> list[Answer]:
        return [settled.answer for settled in await self.driver.settle(transitions, now=now)]

    async def operate(self, operation: Operation, *ids: str) -> list[Verdict]:
        return [answer.verdict for answer in await self.driver.operate(operation, ids, now=NOW)]

    # -- the other side --

    @asynccontextmanager
    async def transaction(self, now: int | None = NOW) -> AsyncIterator[PausingSession]:
        """A transaction on a connection of its own, committed at the end of the block."""
        connection = await self.driver._connections.connect()
        try:
            async with connection.transaction():
                yield PausingSession(connection, self.driver._sql, now)
        finally:
            await connection.close()

    async def until_somebody_waits(self) -> None:
        """Until a connection of the store's database waits for a lock: so the barrier is seen, not hoped for."""
        connection = await asyncpg.connect(self.driver.dsn)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await connection.fetchval(  # noqa: ASYNC110 - another process has no event of ours
                    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
                    "WHERE NOT granted AND datname = current_database()"
                ):
                    await asyncio.sleep(0.01)
        finally:
            await connection.close()


def success(token: str, job: Claimed, **fields: Any) -> Transition:
    return Transition(
        token, job.id, job.number, AttemptStatus.SUCCEEDED, State.SUCCEEDED, started_at=NOW, **fields
    )


def failure(token: str, job: Claimed) -> Transition:
    return Transition(token, job.id, job.number, AttemptStatus.FAILED, State.READY, 1, NOW, delay=0)


def race(story: Callable[[Race], Awaitable[None]]) -> Callable[[], None]:
    """Run a story on a fresh store, in a database of its own: what waits there waits because of the story."""

    def test() -> None:
        async def run(dsn: str) -> None:
            driver = PostgresDriver(dsn)
            try:
                await driver.migrate()
                async with asyncio.timeout(60):
                    await story(Race(driver))
            finally:
                await driver.close()

        with store.database() as dsn:
            asyncio.run(run(dsn))

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    return test


async def begun(coroutine: Coroutine[Any, Any, T], race: Race) -> asyncio.Task[T]:
    """Start it, and return when it waits for a lock."""
    task = asyncio.ensure_future(coroutine)
    await race.until_somebody_waits()
    assert not task.done()
    return task


# -- tokens --------------------------------------------------------------------------------------


@race
async def test_claim_repeated_while_the_first_one_commits_gives_the_same_jobs(race: Race) -> None:
    """The token is the caller's: of two claims that bear it, one is made and both are answered with it."""
    first, second = await race.ready(), await race.ready()
    request = ClaimRequest("worker/1", LEASE, 1, once_limit=1)
    async with race.transaction() as session:
        claim = await leases.claim(session, request)
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
        first = await leases.take_expired(session, "collector/1", LEASE)
        # Another collector does not wait for it.
        assert await race.driver.take_expired("collector/2", LEASE, now=later) is None
    assert first is not None
    again = await race.driver.take_expired("collector/1", LEASE, now=later)
    assert again is not None
    assert (again.jobs, again.expired_at) == (first.jobs, first.expired_at)
    assert await race.settle(success(token, job)) == [Answer.LEASE_MISMATCH]


# -- cancel and settle ---------------------------------------------------------------------------


@race
async def test_request_to_cancel_that_meets_a_settle_finds_the_job_where_it_went(race: Race) -> None:
    """The settle holds the lease; the request waits for it, and then sees the attempt's row."""
    token, job = await race.running()
    async with race.transaction() as session:
        await settle.settle(session, [success(token, job)])
        cancelling = await begun(race.operate(Cancel(), job.id), race)
    assert await cancelling == [Verdict.CONFLICT]
    assert await race.state(job.id) is State.SUCCEEDED


@race
async def test_request_to_cancel_that_meets_a_retry_cancels_the_job(race: Race) -> None:
    """The retry put it back into its place: there the operator finds it in a new snapshot."""
    token, job = await race.running()
    async with race.transaction() as session:
        await settle.settle(session, [failure(token, job)])
        cancelling = await begun(race.operate(Cancel(), job.id), race)
    assert await cancelling == [Verdict.DONE]
    assert await race.state(job.id) is State.CANCELLED


@race
async def test_settle_that_meets_a_request_to_cancel_obeys_it(race: Race) -> None:
    """The request is in the lease's row: whoever settles next reads the row as it is when the lock is his."""
    token, job = await race.running()
    async with race.transaction() as session:
        answers = await operate.operate(session, Cancel(), [job.id])
        settling = await begun(race.settle(failure(token, job)), race)
    assert answers[job.id].verdict is Verdict.REQUESTED
    assert await settling == [Answer.DONE]
    assert await race.state(job.id) is State.CANCELLED


@race
async def test_success_that_meets_a_request_to_cancel_wins(race: Race) -> None:
    """The quick way of settling waits for the request as well, and does not lose its lease over it."""
    token, job = await race.running()
    async with race.transaction() as session:
        await operate.operate(session, Cancel(), [job.id])
        settling = await begun(race.settle(success(token, job)), race)
    assert await settling == [Answer.DONE]
    assert await race.state(job.id) is State.SUCCEEDED
    assert await race.driver.leases(now=NOW) == []


# -- notes ---------------------------------------------------------------------------------------


@race
async def test_progress_that_meets_a_settle_is_refused(race: Race) -> None:
    """Notes hold the lease's row too: none is stored for an attempt that is over."""
    token, job = await race.running()
    note = ProgressNote(token, job.id, job.number, Progress(0.5))
    async with race.transaction() as session:
        await settle.settle(session, [success(token, job)])
        noting = await begun(race.driver.note([note], now=NOW), race)
    assert await noting == [Answer.NOT_RUNNING]
    assert (await race.record(job.id)).progress is None


@race
async def test_settle_waits_for_progress_that_is_being_stored(race: Race) -> None:
    """And the other way round: a note that was admitted is stored before the attempt ends."""
    token, job = await race.running()
    async with race.transaction() as session:
        note = ProgressNote(token, job.id, job.number, Progress(0.5))
        assert await settle.note(session, [note]) == [Answer.DONE]
        settling = await begun(race.settle(success(token, job)), race)
    assert await settling == [Answer.DONE]
    assert (await race.record(job.id)).progress == Progress(0.5)


# -- operators and claims ------------------------------------------------------------------------


@race
async def test_change_that_meets_a_claim_is_a_conflict(race: Race) -> None:
    """The claim has taken the row: the operator, who would rewrite it, looks again and finds the job running."""
    job_id = await race.ready()
    async with race.transaction() as session:
        await leases.claim(session, ClaimRequest("worker/1", LEASE, 1))
        changing = await begun(race.operate(Update(priority=5), job_id), race)
    assert await changing == [Verdict.CONFLICT]
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
    assert await race.operate(Update(priority=5), job_id) == [Verdict.CONFLICT]


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
        first = await leases.claim(session, ClaimRequest("worker/a", LEASE, 2))
        _, second = await race.claim(2)
    assert [job.priority for job in first.jobs] == [1, 1]
    assert [job.priority for job in second.jobs] == [0, 0]
    assert sorted(job.id for job in first.jobs + second.jobs) == sorted(ids)


@race
async def test_expiry_and_claim_meet_on_one_job(race: Race) -> None:
    """Either it begins or it is cancelled, never both."""
    job_id = await race.ready(expires_at=NOW)
    async with race.transaction() as session:
        await leases.claim(session, ClaimRequest("worker/1", LEASE, 1))
        assert await race.driver.expire(10, now=NOW) == []
    assert await race.state(job_id) is State.RUNNING


# -- leases and time -----------------------------------------------------------------------------


@race
async def test_settle_that_meets_a_collector_is_refused(race: Race) -> None:
    """Once the lease has another token, the old one proves nothing, whenever its settle began."""
    token, job = await race.running()
    async with race.transaction(NOW + LEASE) as session:
        assert await leases.take_expired(session, "collector/1", LEASE) is not None
        settling = await begun(race.settle(success(token, job), now=NOW + LEASE - 1), race)
    assert await settling == [Answer.LEASE_MISMATCH]
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
        assert await settling == [Answer.LEASE_EXPIRED]
    assert await race.driver.history(job.id) == []


@race
async def test_heartbeat_that_waited_too_long_does_not_revive_a_lease(race: Race) -> None:
    """Expiry is judged by the row and the time after the wait."""
    token, _job = await race.running()
    async with race.transaction(NOW + LEASE) as session:
        await leases.take_expired(session, "collector/1", LEASE)
        beating = await begun(race.driver.extend([Extension(token, LEASE)], now=NOW), race)
    assert [lease.answer for lease in (await beating).leases] == [Answer.NOT_RUNNING]


@race
async def test_two_outcomes_of_one_attempt_commit_one(race: Race) -> None:
    """The second settle waits for the first one and learns what it recorded."""
    token, job = await race.running()
    async with race.transaction() as session:
        await settle.settle(session, [failure(token, job)])
        settling = await begun(race.driver.settle([success(token, job)], now=NOW), race)
    [settled] = await settling
    assert (settled.answer, settled.recorded) == (Answer.NOT_RUNNING, AttemptStatus.FAILED)


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
        assert [settled.answer for settled in await first] == [Answer.DONE] * 2
    assert await second == [Answer.DONE] * 2


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
    assert await deleting == [Verdict.DONE]
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
        Answer.NOT_RUNNING,
        Answer.DONE,
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
    assert await settling == [Answer.DONE]
    assert await race.driver.leases(now=NOW) == []
    assert (await race.driver.counts(now=NOW))[State.SUCCEEDED] == 1


# -- dependants ----------------------------------------------------------------------------------


@race
async def test_two_last_members_release_their_dependant_once(race: Race) -> None:
    """Neither sees the other's success in its own snapshot; the second waits, and looks again after the wait."""
    held = [await race.running(), await race.running()]
    waiting = await race.ready(depends_on=tuple(job.id for _, job in held))
    async with race.transaction() as session:
        [first] = await settle.settle(session, [success(*held[0])])
        settling = await begun(race.driver.settle([success(*held[1])], now=NOW), race)
    [second] = await settling
    assert (first.released, second.released) == ((), (waiting,))
    assert await race.state(waiting) is State.READY


@race
async def test_last_members_that_stop_between_lock_and_look_release_once(race: Race) -> None:
    """The barrier is where the lock is held and nobody has been looked for yet."""
    held = [await race.running(), await race.running()]
    waiting = await race.ready(depends_on=tuple(job.id for _, job in held))
    async with race.transaction() as session:
        session.stop_before = "release"
        first = asyncio.ensure_future(settle.settle(session, [success(*held[0])]))
        await session.stopped.wait()
        second = await begun(race.driver.settle([success(*held[1])], now=NOW), race)
        session.go_on.set()
        released = [settled.released for settled in await first]
    released += [settled.released for settled in await second]
    assert released == [(), (waiting,)]


async def _depending(race: Race, session: Session, member: str) -> str:
    job = race.new(depends_on=(member,))
    await enqueue.enqueue(session, [job])
    return job.id


@race
async def test_dependant_of_a_job_that_is_being_settled_sees_the_success(race: Race) -> None:
    """It waits for the settle, and need not wait for the job."""
    token, job = await race.running()
    dependant = race.new(depends_on=(job.id,))
    async with race.transaction() as session:
        await settle.settle(session, [success(token, job)])
        enqueueing = await begun(race.driver.enqueue([dependant], now=NOW), race)
    assert [answer.state for answer in await enqueueing] == [State.READY]


@race
async def test_settle_of_a_job_that_somebody_is_about_to_depend_on_releases_it(race: Race) -> None:
    """The dependant is not to be seen before its commit: the settle waits for that."""
    token, job = await race.running()
    async with race.transaction() as session:
        waiting = await _depending(race, session, job.id)
        settling = await begun(race.driver.settle([success(token, job)], now=NOW), race)
    [settled] = await settling
    assert (settled.answer, settled.released) == (Answer.DONE, (waiting,))
    assert await race.state(waiting) is State.READY


@race
async def test_job_that_somebody_is_about_to_depend_on_is_not_claimed_meanwhile(race: Race) -> None:
    """Or it might be claimed and settled before its dependant can be seen."""
    member = await race.ready()
    async with race.transaction() as session:
        waiting = await _depending(race, session, member)
        assert (await race.claim())[1].jobs == []
    token, claim = await race.claim()
    [settled] = await race.driver.settle([success(token, claim.jobs[0])], now=NOW)
    assert settled.released == (waiting,)


@race
async def test_member_claimed_between_looking_and_locking_is_looked_for_again(race: Race) -> None:
    """The barrier stands after the look: the lock finds nothing, and the new place is locked instead."""
    member = await race.ready()
    async with race.transaction() as session:
        session.stop_before = "hold_members"
        enqueueing = asyncio.ensure_future(_depending(race, session, member))
        await session.stopped.wait()
        token, claim = await race.claim()
        session.go_on.set()
        waiting = await enqueueing
        settling = await begun(race.driver.settle([success(token, claim.jobs[0])], now=NOW), race)
    assert (await settling)[0].released == (waiting,)


@race
async def test_delete_of_a_job_that_somebody_is_about_to_depend_on_is_a_conflict(race: Race) -> None:
    """The dependant holds the job's row: whoever deletes it looks for dependants after the wait."""
    token, job = await race.running()
    await race.settle(
        Transition(token, job.id, 1, AttemptStatus.FAILED, State.DEAD, 1, NOW, reason=Reason.EXHAUSTED)
    )
    async with race.transaction() as session:
        waiting = await _depending(race, session, job.id)
        deleting = await begun(race.operate(Delete(), job.id), race)
    assert await deleting == [Verdict.CONFLICT]
    assert await race.state(waiting) is State.WAITING


@race
async def test_requeue_that_meets_the_last_members_settle_does_not_wait_for_ever(race: Race) -> None:
    """Both hold the dependant's row while they look: the second one sees what the first one did."""
    token, member = await race.running()
    dependant = await race.ready(depends_on=(member.id,))
    await race.operate(Cancel(), dependant)
    async with race.transaction() as session:
        await settle.settle(session, [success(token, member)])
        requeueing = await begun(race.operate(Requeue(), dependant), race)
    assert await requeueing == [Verdict.DONE]
    assert await race.state(dependant) is State.READY


@race
async def test_last_members_settle_that_meets_a_requeue_releases_the_dependant(race: Race) -> None:
    """The other way round."""
    token, member = await race.running()
    dependant = await race.ready(depends_on=(member.id,))
    await race.operate(Cancel(), dependant)
    async with race.transaction() as session:
        answers: dict[str, Operated] = await operate.operate(session, Requeue(), [dependant])
        assert answers[dependant].verdict is Verdict.DONE
        settling = await begun(race.driver.settle([success(token, member)], now=NOW), race)
    [settled] = await settling
    assert settled.released == (dependant,)


# -- keys ----------------------------------------------------------------------------------------


@race
async def test_key_that_is_being_stored_is_waited_for(race: Race) -> None:
    """The second enqueue is answered with the first one's job."""
    first, second = race.new(idempotency_key="k"), race.new(idempotency_key="k")
    async with race.transaction() as session:
        await enqueue.enqueue(session, [first])
        enqueueing = await begun(race.driver.enqueue([second], now=NOW), race)
    assert [(answer.id, answer.existed) for answer in await enqueueing] == [(first.id, True)]


@race
async def test_key_whose_first_enqueue_is_rolled_back_is_free(race: Race) -> None:
    """Nothing was stored, so nothing existed."""
    first, second = race.new(idempotency_key="k"), race.new(idempotency_key="k")
    with pytest.raises(RuntimeError, match="never mind"):
        async with race.transaction() as session:
            await enqueue.enqueue(session, [first])
            enqueueing = await begun(race.driver.enqueue([second], now=NOW), race)
            raise RuntimeError("never mind")
    assert [(answer.id, answer.existed) for answer in await enqueueing] == [(second.id, False)]


@race
async def test_key_stored_between_looking_and_storing_is_found(race: Race) -> None:
    """The barrier stands after the look: the insert meets the other one's row, and looks again."""
    first, second = race.new(idempotency_key="k"), race.new(idempotency_key="k")
    async with race.transaction() as session:
        session.stop_before = "insert_jobs"
        enqueueing = asyncio.ensure_future(enqueue.enqueue(session, [second]))
        await session.stopped.wait()
        await race.driver.enqueue([first], now=NOW)
        session.go_on.set()
        answers = await enqueueing
    assert [(answer.id, answer.existed) for answer in answers] == [(first.id, True)]


@race
async def test_child_whose_key_is_being_stored_is_that_job_and_the_settle_succeeds(race: Race) -> None:
    """Children are inserted after the leases are locked; a key of somebody else's is waited for."""
    token, job = await race.running()
    other, child = race.new(idempotency_key="k"), race.new(idempotency_key="k")
    async with race.transaction() as session:
        await enqueue.enqueue(session, [other])
        settling: asyncio.Task[list[Settled]] = await begun(
            race.driver.settle([success(token, job, inserts=(child,))], now=NOW), race
        )
    assert [settled.answer for settled in await settling] == [Answer.DONE]
    assert await race.driver.get([child.id], now=NOW) == [None]
