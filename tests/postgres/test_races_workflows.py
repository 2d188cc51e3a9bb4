"""Races of releases, failures, retries and workflows that are stored at the same time."""

from __future__ import annotations

import pytest

from taskharbor.drivers.base import Claimed, OperationVerdict, Requeue, SettleAnswer, Transition
from taskharbor.drivers.postgres import operate, settle, workflows
from taskharbor.records import AttemptStatus, NewWorkflow, Reason, State
from tests.postgres.races import NOW, Race, begun, race, success


@race
async def test_last_members_that_wait_for_one_lock_release_once(race: Race) -> None:
    """Both are past their own successes and neither has looked for who is missing: one after the other they do."""
    held = [await race.running(), await race.running()]
    waiting = await race.ready(depends_on=tuple(job.id for _, job in held))
    async with race.transaction() as session:
        await session.rows("lock_jobs", [waiting])
        settling = [await begun(race.driver.settle([success(*one)], now=NOW), race) for one in held]
        await race.until_somebody_waits(2)
    released = sorted([settled.released for task in settling for settled in await task])
    assert released == [(), (waiting,)]
    assert await race.state(waiting) is State.READY


@race
async def test_slow_and_quick_settle_of_the_last_members_release_once(race: Race) -> None:
    """The one that settles by itself and the one that settles in bulk follow the same order of lock and look."""
    held = [await race.running(), await race.running()]
    waiting = await race.ready(depends_on=tuple(job.id for _, job in held))
    async with race.transaction() as session:
        await session.rows("lock_jobs", [waiting])
        quick = await begun(race.driver.settle([success(*held[0])], now=NOW), race)
        slow = await begun(race.driver.settle([success(*held[1], inserts=(race.new(),))], now=NOW), race)
        await race.until_somebody_waits(2)
    released = sorted([settled.released for task in (quick, slow) for settled in await task])
    assert released == [(), (waiting,)]


# -- dependants that end with others -------------------------------------------------------------


def burial(token: str, job: Claimed) -> Transition:
    return Transition(
        token, job.id, job.number, AttemptStatus.FAILED, State.DEAD, 1, NOW, reason=Reason.EXHAUSTED
    )


@race
async def test_failure_that_meets_a_restoring_retry_cancels_again(race: Race) -> None:
    """The retry restores the dependant, which cannot be seen waiting yet: the failure waits for it, and then does."""
    first, second = await race.running(), await race.running()
    ids = (first[1].id, second[1].id)
    dependant = await race.ready(depends_on=ids, ends_with_members=True)
    await race.settle(burial(*first))
    assert await race.state(dependant) is State.CANCELLED
    async with race.transaction() as session:
        await operate.operate(session, Requeue(), [ids[0]])
        burying = await begun(race.settle(burial(*second)), race)
    assert await burying == [SettleAnswer.DONE]
    assert (await race.record(dependant)).reason is Reason.DEPENDENCY


@race
async def test_restoring_retry_that_meets_a_failure_restores_nobody(race: Race) -> None:
    """The other way round."""
    first, second = await race.running(), await race.running()
    dependant = await race.ready(depends_on=(first[1].id, second[1].id), ends_with_members=True)
    await race.settle(burial(*first))
    async with race.transaction() as session:
        await settle.settle(session, [burial(*second)])
        requeueing = await begun(race.operate(Requeue(), first[1].id), race)
    assert await requeueing == [OperationVerdict.DONE]
    assert (await race.record(dependant)).reason is Reason.DEPENDENCY


@race
async def test_release_that_meets_a_failure_leaves_one_ending(race: Race) -> None:
    """One member succeeds while another one dies: the dependant is cancelled, not made ready."""
    first, second = await race.running(), await race.running()
    dependant = await race.ready(depends_on=(first[1].id, second[1].id), ends_with_members=True)
    async with race.transaction() as session:
        await settle.settle(session, [success(*first)])
        burying = await begun(race.settle(burial(*second)), race)
    assert await burying == [SettleAnswer.DONE]
    assert await race.state(dependant) is State.CANCELLED


# -- workflows -----------------------------------------------------------------------------------


@race
async def test_workflow_whose_key_is_being_stored_is_that_one(race: Race) -> None:
    """The second one waits for the first, and then stands for nothing of its own."""
    first, second = (NewWorkflow(race.new().id, "{}", "k") for _ in range(2))
    jobs = [race.new() for _ in range(2)]
    async with race.transaction() as session:
        await workflows.enqueue_workflow(session, first, [jobs[0]])
        storing = await begun(race.driver.enqueue_workflow(second, [jobs[1]], now=NOW), race)
    answer = await storing
    assert (answer.id, answer.existed) == (first.id, True)
    assert await race.driver.get([jobs[1].id], now=NOW) == [None]


@race
async def test_workflow_whose_key_was_rolled_back_is_stored(race: Race) -> None:
    """Nobody has the key after all."""
    first, second = (NewWorkflow(race.new().id, "{}", "k") for _ in range(2))
    job = race.new()
    with pytest.raises(ZeroDivisionError):
        async with race.transaction() as session:
            await workflows.enqueue_workflow(session, first, [])
            storing = await begun(race.driver.enqueue_workflow(second, [job], now=NOW), race)
            raise ZeroDivisionError
    assert (await storing).existed is False
    assert await race.state(job.id) is State.READY
