"""Races about what a new job depends on, and about keys. See `tests/postgres/races.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from taskharbor.drivers.base import (
    Cancel,
    Delete,
    Enqueued,
    OperationResult,
    OperationVerdict,
    Requeue,
    SettleAnswer,
    Transition,
)
from taskharbor.drivers.postgres import enqueue, operate, settle
from taskharbor.drivers.postgres.connections import Session
from taskharbor.errors import StoreUnavailable
from taskharbor.records import AttemptStatus, NewJob, Options, Reason, State
from tests.postgres.races import (
    NOW,
    PausingCallerSession,
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
async def test_delete_of_a_job_that_somebody_is_about_to_depend_on_is_a_conflict(race: Race) -> None:
    """The dependant holds the job's row: whoever deletes it looks for dependants after the wait."""
    token, job = await race.running()
    await race.settle(
        Transition(token, job.id, 1, AttemptStatus.FAILED, State.DEAD, 1, NOW, reason=Reason.EXHAUSTED)
    )
    async with race.transaction() as session:
        waiting = await _depending(race, session, job.id)
        deleting = await begun(race.operate(Delete(), job.id), race)
    assert await deleting == [OperationVerdict.CONFLICT]
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
    assert await requeueing == [OperationVerdict.DONE]
    assert await race.state(dependant) is State.READY


@race
async def test_last_members_settle_that_meets_a_requeue_releases_the_dependant(race: Race) -> None:
    """The other way round."""
    token, member = await race.running()
    dependant = await race.ready(depends_on=(member.id,))
    await race.operate(Cancel(), dependant)
    async with race.transaction() as session:
        answers: dict[str, OperationResult] = await operate.operate(session, Requeue(), [dependant])
        assert answers[dependant].verdict is OperationVerdict.DONE
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


# -- jobs that are pruned meanwhile ----------------------------------------------------------------
#
# The barrier stands between two looks: the first one finds the job that exists, the second one finds it gone.


async def _enqueued_around_a_prune(race: Race, *jobs: NewJob, before: str = "places") -> list[Enqueued]:
    async with race.transaction() as session:
        session.stop_before = before
        enqueueing = asyncio.ensure_future(enqueue.enqueue(session, jobs))
        await session.stopped.wait()
        await race.prune()
        session.go_on.set()
        return await enqueueing


@race
async def test_key_whose_job_is_pruned_at_that_moment_is_free(race: Race) -> None:
    """The look is repeated, and the new job is stored."""
    await race.done(idempotency_key="k")
    again = race.new(idempotency_key="k")
    [answer] = await _enqueued_around_a_prune(race, again)
    assert (answer.id, answer.existed) == (again.id, False)
    assert await race.state(again.id) is State.READY


@race
async def test_id_whose_job_is_pruned_at_that_moment_is_free(race: Race) -> None:
    """An enqueue that is repeated so late is a new one."""
    again = race.new(id=await race.done())
    [answer] = await _enqueued_around_a_prune(race, again)
    assert (answer.id, answer.existed) == (again.id, False)
    assert await race.state(again.id) is State.READY


@race
async def test_others_of_a_batch_are_stored_once_when_a_key_of_it_is_pruned(race: Race) -> None:
    """What the first round had stored is undone with it."""
    await race.done(idempotency_key="k")
    jobs = [race.new(options=Options(tags=("t",))), race.new(idempotency_key="k"), race.new()]
    answers = await _enqueued_around_a_prune(race, *jobs)
    assert [(answer.id, answer.existed) for answer in answers] == [(job.id, False) for job in jobs]
    assert (await race.driver.counts(now=NOW))[State.READY] == 3


@race
async def test_dependant_of_a_key_that_is_pruned_at_that_moment_waits_for_the_new_job(race: Race) -> None:
    """Both are enqueued in one call, so the one that it depends on is not unknown."""
    await race.done(idempotency_key="k")
    first = race.new(idempotency_key="k")
    second = race.new(depends_on=(first.id,))
    answers = await _enqueued_around_a_prune(race, first, second, before="hold_members")
    assert [answer.existed for answer in answers] == [False, False]
    assert (await race.state(first.id), await race.state(second.id)) == (State.READY, State.WAITING)


@race
async def test_child_whose_key_is_pruned_at_that_moment_is_stored_and_the_settle_succeeds(race: Race) -> None:
    """The parent has succeeded: nothing about the key of a child makes it fail."""
    token, parent = await race.running()
    await race.done(idempotency_key="k")
    child = race.new(idempotency_key="k")
    async with race.transaction() as session:
        session.stop_before = "places"
        settling = asyncio.ensure_future(settle.settle(session, [success(token, parent, inserts=(child,))]))
        await session.stopped.wait()
        await race.prune()
        session.go_on.set()
        assert [settled.answer for settled in await settling] == [SettleAnswer.DONE]
    assert (await race.state(parent.id), await race.state(child.id)) == (State.SUCCEEDED, State.READY)


@pytest.mark.parametrize("dependant", [False, True], ids=["one function", "one by one"])
def test_key_that_is_pruned_during_a_callers_transaction_is_free(dependant: bool) -> None:
    """The function and the statements that enqueue on a caller's connection look again as well."""

    async def story(race: Race) -> None:
        await race.done(idempotency_key="k")
        jobs = [race.new(idempotency_key="k")]
        if dependant:
            jobs.append(race.new(depends_on=(jobs[0].id,)))
        connection = await asyncpg.connect(race.driver.dsn)
        async with connection.transaction():
            session = PausingCallerSession(connection, race.driver)
            identity = await race.driver._own_identity()
            enqueueing = asyncio.ensure_future(session.enqueue(jobs, identity, NOW))
            await session.stopped.wait()
            await race.prune()
            session.go_on.set()
            answers = await enqueueing
        await connection.close()
        assert [(answer.id, answer.existed) for answer in answers] == [(job.id, False) for job in jobs]

    race(story)()


@race
async def test_enqueue_that_is_outrun_every_time_says_so(race: Race) -> None:
    """However unlikely, it ends with an error that a caller can act on."""
    key = "k"

    class Outrun(Session):
        async def rows(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
            if name == "places":
                await race.prune()
                await race.done(idempotency_key=key)
            return await super().rows(name, *arguments)

    await race.done(idempotency_key=key)
    async with race.transaction() as session:
        outrun = Outrun(session.connection, session.sql, NOW)
        with pytest.raises(StoreUnavailable, match="try again"):
            await enqueue.enqueue(outrun, [race.new(idempotency_key=key)])
