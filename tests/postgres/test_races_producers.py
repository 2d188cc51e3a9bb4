"""A producer keeps its transaction open: its own new dependants may wait for its commit, and nothing else does.

What a verb would wait for stays locked until the end of the block that it is called in, so a verb that waits never
returns there. See `tests/postgres/races.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import asyncpg
import pytest
import uuid_utils
from msgspec import Struct

from taskharbor import Context, Harbor, Worker
from taskharbor.drivers.base import (
    Cancel,
    Claimed,
    Delete,
    Extension,
    Operation,
    OperationVerdict,
    ProgressNote,
    Requeue,
    RunNow,
    SettleAnswer,
    Transition,
    Update,
)
from taskharbor.drivers.postgres import PostgresDriver, enqueue, operate, settle
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.settle import KEY_WAIT, KEY_WAIT_ALONE
from taskharbor.records import AttemptStatus, NewJob, Progress, Reason, State
from tests.postgres.races import LEASE, NOW, SECOND, Race, begun, failure, race, success


def burial(token: str, job: Claimed) -> Transition:
    return Transition(
        token, job.id, job.number, AttemptStatus.FAILED, State.DEAD, 1, NOW, reason=Reason.EXHAUSTED
    )


class Members(Struct):
    """One job in every place, all of which a producer is about to depend on."""

    token: str
    running: Claimed
    other_token: str
    other: Claimed
    ready: str
    scheduled: str
    waiting: str
    dead: str


@asynccontextmanager
async def depended_on(race: Race) -> AsyncIterator[Members]:
    """While a producer's transaction is open that has made a new job depend on each of these."""
    token, running = await race.running()
    other_token, other = await race.running()
    dead_token, dead = await race.running()
    await race.settle(burial(dead_token, dead))
    waiting = await race.ready(depends_on=(running.id,))
    scheduled = await race.ready(delay=3600 * SECOND)
    ready = await race.ready()
    members = Members(token, running, other_token, other, ready, scheduled, waiting, dead.id)
    async with race.transaction() as session:
        ids = (running.id, other.id, ready, scheduled, waiting, dead.id)
        await enqueue.enqueue(session, [race.new(depends_on=ids)])
        yield members


@race
async def test_open_producer_delays_no_worker(race: Race) -> None:
    """Heartbeats, marks, notes, settles, claims, collecting: each of them about what the producer depends on."""
    driver = race.driver
    async with depended_on(race) as m:
        beat = await driver.extend([Extension(m.token, LEASE, at_most_once=(m.running.id,))], now=NOW)
        assert [lease.answer for lease in beat.leases] == [SettleAnswer.DONE]
        note = ProgressNote(m.token, m.running.id, m.running.number, Progress(0.5))
        assert await driver.note([note], now=NOW) == [SettleAnswer.DONE]
        [settled] = await driver.settle([success(m.token, m.running)], now=NOW)
        assert (settled.answer, settled.released) == (SettleAnswer.DONE, (m.waiting,))
        token, claim = await race.claim()
        assert {job.id for job in claim.jobs} == {m.ready, m.waiting}
        assert await race.settle(*(failure(token, job) for job in claim.jobs)) == [SettleAnswer.DONE] * 2
        expired = await driver.take_expired("collector/1", LEASE, now=NOW + 2 * LEASE)
        assert expired is not None
        assert [job.id for job in expired.jobs] == [m.other.id]
        lost = Transition("collector/1", m.other.id, m.other.number, AttemptStatus.LOST, State.READY)
        assert await race.settle(lost, now=NOW + 2 * LEASE) == [SettleAnswer.DONE]
        assert await driver.catch_up(100, now=NOW) == []


@race
async def test_open_producer_delays_no_operator_who_does_not_delete(race: Race) -> None:
    """Nor what age does: pruning leaves out what new jobs are about to depend on."""
    async with depended_on(race) as m:
        asked: list[tuple[Operation, str, OperationVerdict]] = [
            (Requeue(), m.dead, OperationVerdict.DONE),
            (Cancel(), m.dead, OperationVerdict.DONE),
            (RunNow(), m.scheduled, OperationVerdict.DONE),
            (Update(priority=9, expires_at=NOW + 1), m.scheduled, OperationVerdict.DONE),
            (Cancel(), m.waiting, OperationVerdict.DONE),
            (Cancel(), m.running.id, OperationVerdict.REQUESTED),
        ]
        for operation, job_id, verdict in asked:
            assert await race.operate(operation, job_id) == [verdict], operation
        assert await race.driver.expire(10, now=NOW + 1) == [m.scheduled]
        assert await race.driver.prune({State.CANCELLED: NOW + 2}, 10, now=NOW + 2) == 0


@race
async def test_delete_that_waits_for_a_producer_holds_nobody_up(race: Race) -> None:
    """Its job's lease covers another job as well, which goes on."""
    await race.ready()
    await race.ready()
    token, claim = await race.claim()
    first, second = claim.jobs
    await race.settle(burial(token, first))
    async with race.transaction() as session:
        await enqueue.enqueue(session, [race.new(depends_on=(first.id,))])
        deleting = await begun(race.operate(Delete(), first.id), race)
        beat = await race.driver.extend([Extension(token, LEASE)], now=NOW)
        assert [lease.answer for lease in beat.leases] == [SettleAnswer.DONE]
        assert await race.settle(success(token, second)) == [SettleAnswer.DONE]
    assert await deleting == [OperationVerdict.CONFLICT]


# -- children whose keys a producer is storing -----------------------------------------------------


@race
async def test_settle_whose_child_has_a_key_that_a_producer_is_storing_is_put_off_alone(race: Race) -> None:
    """Whether the child exists is decided with the producer's transaction. The rest of the batch goes on."""
    for _ in range(3):
        await race.ready()
    token, claim = await race.claim()
    first, second, third = claim.jobs
    other, child = race.new(idempotency_key="k"), race.new(idempotency_key="k")
    mine = success(token, second, inserts=(child,))
    async with race.transaction() as session:
        await enqueue.enqueue(session, [other])
        batch = [
            success(token, first),
            mine,
            success(token, third, inserts=(race.new(idempotency_key="free"),)),
        ]
        assert await race.settle(*batch) == [SettleAnswer.DONE, SettleAnswer.LATER, SettleAnswer.DONE]
        beat = await race.driver.extend([Extension(token, LEASE)], now=NOW)
        assert [lease.answer for lease in beat.leases] == [SettleAnswer.DONE]
        assert await race.state(second.id) is State.RUNNING
    assert await race.settle(mine) == [SettleAnswer.DONE]
    assert await race.driver.get([child.id], now=NOW) == [None]  # the producer's job stands for it


@race
async def test_many_contended_keys_cost_a_settle_one_long_wait(race: Race) -> None:
    """A batch waits once; then each parent of a keyed child is tried alone, and the others are settled together."""
    tried: list[tuple[int, str]] = []
    together = race.driver._settler.settle_together

    async def counted(transitions: Any, now: int | None, key_wait: str) -> Any:
        tried.append((len(transitions), key_wait))
        return await together(transitions, now, key_wait)

    for _ in range(6):
        await race.ready()
    token, claim = await race.claim()
    keys = [f"k{n}" for n in range(4)]
    async with race.transaction() as session:
        await enqueue.enqueue(session, [race.new(idempotency_key=key) for key in keys])
        batch = [success(token, job) for job in claim.jobs[:2]] + [
            success(token, job, inserts=(race.new(idempotency_key=key),))
            for job, key in zip(claim.jobs[2:], keys, strict=True)
        ]
        with mock.patch.object(race.driver._settler, "settle_together", counted):
            assert await race.settle(*batch) == [SettleAnswer.DONE] * 2 + [SettleAnswer.LATER] * 4
    assert tried == [(6, KEY_WAIT), (2, KEY_WAIT), *[(1, KEY_WAIT_ALONE)] * 4]


async def test_worker_settles_again_what_was_put_off(dsn: str) -> None:
    """Its neighbours succeed meanwhile; it succeeds after the producer's rollback, with its child, executed once."""
    driver = PostgresDriver(dsn)
    harbor = Harbor(driver=driver)
    await harbor.amigrate()
    begins: list[str] = []

    @harbor.task(name="child")
    async def child() -> None:
        begins.append("child")

    @harbor.task
    async def parent(ctx: Context) -> None:
        begins.append("parent")
        ctx.enqueue(child.using(idempotency_key="k").s())

    connection = await asyncpg.connect(dsn)
    held = connection.transaction()
    await held.start()
    with harbor.transaction(connection):
        await harbor.aenqueue("child", idempotency_key="k")
    job = await parent.aenqueue()
    async with Worker(harbor):
        await until_true(lambda: begins == ["parent"])
        neighbour = await child.aenqueue()
        await neighbour.aresult(60)
        assert (await job.arefresh()).state == "running"
        await held.rollback()
        await job.aresult(60)
        await until_true(lambda: begins.count("child") == 2)
    assert begins.count("parent") == 1
    await connection.close()
    await harbor.aclose()


async def until_true(holds: Callable[[], bool]) -> None:
    async def look() -> bool:
        return holds()

    await until(look)


# -- no dependant is missed, and none is released twice --------------------------------------------


@race
async def test_member_that_succeeds_before_the_producer_commits_is_caught_up_with(race: Race) -> None:
    """The settle cannot see the dependant; the sweep after the commit does, once."""
    token, job = await race.running()
    async with race.transaction() as session:
        dependant = race.new(depends_on=(job.id,))
        await enqueue.enqueue(session, [dependant])
        [settled] = await race.driver.settle([success(token, job)], now=NOW)
        assert (settled.answer, settled.released) == (SettleAnswer.DONE, ())
        assert await race.driver.catch_up(100, now=NOW) == []
    assert await race.state(dependant.id) is State.WAITING
    swept = await asyncio.gather(*(race.driver.catch_up(100, now=NOW) for _ in range(5)))
    assert sorted(swept) == [[], [], [], [], [dependant.id]]
    assert [job.id for job in (await race.claim())[1].jobs] == [dependant.id]
    assert await race.driver.catch_up(100, now=NOW) == []
    assert await race.state(dependant.id) is State.RUNNING


@race
async def test_member_that_succeeds_after_the_producer_commits_releases_by_itself(race: Race) -> None:
    """The sweep, before or after it, has nothing to add."""
    for swept_before in (True, False):
        token, job = await race.running()
        async with race.transaction() as session:
            dependant = race.new(depends_on=(job.id,))
            await enqueue.enqueue(session, [dependant])
        if swept_before:
            assert await race.driver.catch_up(100, now=NOW) == []
        [settled] = await race.driver.settle([success(token, job)], now=NOW)
        assert settled.released == (dependant.id,)
        assert await race.driver.catch_up(100, now=NOW) == []
        assert await race.state(dependant.id) is State.READY
        await race.operate(Delete(), dependant.id)


@race
async def test_member_that_is_claimed_and_succeeds_meanwhile_is_caught_up_with(race: Race) -> None:
    """It was not running when the producer looked, and is over when it commits."""
    member = await race.ready()
    async with race.transaction() as session:
        dependant = race.new(depends_on=(member,))
        await enqueue.enqueue(session, [dependant])
        token, claim = await race.claim()
        assert await race.settle(success(token, claim.jobs[0])) == [SettleAnswer.DONE]
    assert await race.driver.catch_up(100, now=NOW) == [dependant.id]


@race
async def test_sweep_beside_a_settle_that_has_not_committed_looks_again(race: Race) -> None:
    """The settle looked before the dependant could be seen: a sweep that counted it as seen would lose it."""
    token, job = await race.running()
    dependant = race.new(depends_on=(job.id,))
    async with race.transaction() as session:
        [settled] = await settle.settle(session, [success(token, job)])
        assert settled.released == ()
        [answer] = await race.driver.enqueue([dependant], now=NOW)
        assert answer.state is State.WAITING
        assert await race.driver.catch_up(100, now=NOW) == []
    assert await race.driver.catch_up(100, now=NOW) == [dependant.id]
    assert await race.state(dependant.id) is State.READY


Ending = Callable[[Race, Session, str, Claimed], Awaitable[object]]

ENDINGS: dict[str, Ending] = {
    "its death": lambda race, session, token, job: settle.settle(session, [burial(token, job)]),
    "a cancel": lambda race, session, token, job: operate.operate(session, Cancel(), [job.id]),
    "its age": lambda race, session, token, job: operate.expire(session, [job.id], NOW + 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("committed_first", ["the ending", "the producer"])
def test_member_that_ends_unseen_takes_its_dependants_along(ending: str, committed_first: str) -> None:
    """As it would have done, had it seen them; also those that depend on them."""

    async def story(race: Race) -> None:
        member = await race.ready(expires_at=NOW + 1)
        job = Claimed(member, "", "", "", 0, 1, 0, 1, NOW, NOW)
        token = "worker/1"
        if ending == "its death":
            token, claim = await race.claim()
            [job] = claim.jobs
        first = race.new(depends_on=(member,), ends_with_members=True)
        second = race.new(depends_on=(first.id,), ends_with_members=True)
        stays = race.new(depends_on=(member,))
        jobs = [first, second, stays]
        if committed_first == "the ending":
            async with race.transaction() as session:
                await enqueue.enqueue(session, jobs)
                async with race.transaction(NOW + 1) as other:
                    await ENDINGS[ending](race, other, token, job)
        else:
            async with race.transaction(NOW + 1) as session:
                await ENDINGS[ending](race, session, token, job)
                await race.driver.enqueue(jobs, now=NOW)
                assert await race.driver.catch_up(100, now=NOW) == []
        assert await race.state(first.id) is State.WAITING
        assert await race.driver.catch_up(100, now=NOW) == [first.id, second.id]
        assert (await race.record(second.id)).reason is Reason.DEPENDENCY
        assert await race.state(stays.id) is State.WAITING
        assert (await race.driver.counts(now=NOW))[State.CANCELLED] == (3 if ending != "its death" else 2)

    race(story)()


@race
async def test_dependant_of_a_dead_job_waits_for_its_retry(race: Race) -> None:
    """The sweep cancels no dependant whose member had ended before; a retry that succeeds meanwhile releases them."""
    token, job = await race.running()
    await race.settle(burial(token, job))
    waits = race.new(depends_on=(job.id,), ends_with_members=True)
    await race.driver.enqueue([waits], now=NOW)
    assert await race.driver.catch_up(100, now=NOW) == []
    assert await race.state(waits.id) is State.WAITING
    async with race.transaction() as session:
        dependant = race.new(depends_on=(job.id,), ends_with_members=True)
        await enqueue.enqueue(session, [dependant])
        await race.operate(Requeue(), job.id)
        token, claim = await race.claim()
        [settled] = await race.driver.settle([success(token, claim.jobs[0])], now=NOW)
        assert settled.released == (waits.id,)
    assert await race.driver.catch_up(100, now=NOW) == [dependant.id]


@race
async def test_requeued_dependant_is_not_cancelled_by_a_late_sweep(race: Race) -> None:
    """Its member's death was seen and its own end undone before the sweep came by."""
    token, job = await race.running()
    dependant = race.new(depends_on=(job.id,), ends_with_members=True)
    await race.driver.enqueue([dependant], now=NOW)
    await race.settle(burial(token, job))
    assert await race.state(dependant.id) is State.CANCELLED
    await race.operate(Requeue(), dependant.id)
    assert await race.driver.catch_up(100, now=NOW) == []
    assert await race.state(dependant.id) is State.WAITING


@race
async def test_sweep_does_as_many_at_once_as_it_is_asked_to(race: Race) -> None:
    """Rows about jobs that do not exist, written by hand, do not stand before the others."""
    missing = [race.new().id for _ in range(3)]
    token, job = await race.running()
    dependants = [race.new(depends_on=(job.id,)) for _ in range(5)]
    async with race.transaction() as session:
        await enqueue.enqueue(session, dependants)
        await race.settle(success(token, job))
        planted = [(each, 0, job.id, False, False, True, False) for each in missing]
        await session.do("insert_dependencies", *enqueue.columns(planted))
    swept = [await race.driver.catch_up(2, now=NOW) for _ in range(6)]
    assert sorted(each for some in swept for each in some) == [job.id for job in dependants]
    assert max(map(len, swept)) == 2


# -- with a worker -------------------------------------------------------------------------------


LEASE_SECONDS = 6.0  # the producer holds its transaction for longer, and a busy machine extends it in time


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - the store has no notification of what a worker does
            await asyncio.sleep(0.02)


async def test_job_that_a_producer_depends_on_runs_once_and_its_dependant_after_the_commit(dsn: str) -> None:
    """The transaction stays open for longer than the lease, and until the job has ended."""
    driver = PostgresDriver(dsn)
    harbor = Harbor(driver=driver)
    await harbor.amigrate()
    begins: list[str] = []
    begun_once, end = asyncio.Event(), asyncio.Event()

    @harbor.task
    async def member() -> None:
        begins.append("member")
        begun_once.set()
        await end.wait()

    @harbor.task
    async def dependant() -> None:
        begins.append("dependant")

    job = await member.aenqueue()
    new = NewJob(str(uuid_utils.uuid7()), dependant.name, depends_on=(job.id,))
    connection = await asyncpg.connect(dsn)
    async with Worker(harbor, lease_seconds=LEASE_SECONDS):
        await begun_once.wait()
        [lease] = await driver.leases()
        async with connection.transaction():
            with harbor.transaction(connection):
                await driver.enqueue([new])
            later = lease.expires_at + int(LEASE_SECONDS * SECOND)

            async def is_extended() -> bool:
                return [each.expires_at > later for each in await driver.leases()] == [True]

            async def has_succeeded() -> bool:
                return (await job.arefresh()).state == "succeeded"

            await until(is_extended)
            end.set()
            await until(has_succeeded)
        assert await (await harbor.jobs.aget(new.id)).aresult(60) is None
    assert begins == ["member", "dependant"]
    await connection.close()
    await harbor.aclose()
