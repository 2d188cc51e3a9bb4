"""Races about what a new job depends on, and about keys. See `tests/postgres/races.py`."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor.drivers.base import (
    Answer,
    Cancel,
    Delete,
    Operated,
    Requeue,
    Settled,
    Transition,
    Verdict,
)
from taskharbor.drivers.postgres import enqueue, operate, settle
from taskharbor.drivers.postgres.connections import Session
from taskharbor.job import AttemptStatus, Reason, State
from tests.postgres.races import (
    NOW,
    Race,
    begun,
    race,
    success,
)

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
