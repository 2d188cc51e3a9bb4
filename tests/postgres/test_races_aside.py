"""Races about places aside: claims, recalls, holds and operators at the same moment. See `tests/postgres/races.py`."""

from __future__ import annotations

import asyncio

from taskharbor.drivers.base import (
    Cancel,
    Claim,
    ClaimRequest,
    OperationVerdict,
    SettleAnswer,
    Transition,
    Update,
)
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.drivers.postgres import aside, leases, operate
from taskharbor.drivers.postgres.claim_hints import SearchPlan
from taskharbor.drivers.postgres.connections import Session
from taskharbor.records import AttemptStatus, Delivery, State
from taskharbor.rules.aside import hold_label, task_label
from tests.postgres.races import LEASE, NOW, SECOND, Race, begun, race

LABEL = task_label("race")
HELD = hold_label(HoldKind.TASK, "race")


async def put_aside(race: Race, label: str = LABEL, delay: int | None = None, **fields: object) -> str:
    token, job = await race.running(**fields)
    back = Transition(
        token, job.id, job.number, AttemptStatus.RELEASED, State.READY, delay=delay, aside=label
    )
    assert await race.settle(back) == [SettleAnswer.DONE]
    return job.id


def request(token: str, label: str = LABEL, *, recall: bool = False) -> ClaimRequest:
    return ClaimRequest(token, LEASE, 10, aside=(label,), recall=(label,) if recall else ())


async def claim(session: Session, request: ClaimRequest) -> Claim:
    answer, _ = await leases.claim(session, request, SearchPlan())
    return answer


@race
async def test_claims_of_a_place_aside_skip_what_another_has_locked(race: Race) -> None:
    """Two workers that know a task claim at the same moment: neither waits, and each job goes to one of them."""
    first, second = await put_aside(race), await put_aside(race)
    async with race.transaction() as session:
        mine = await claim(session, ClaimRequest("worker/a", LEASE, 1, aside=(LABEL,)))
        theirs = await race.driver.claim(request("worker/b"), now=NOW)
        assert [job.id for job in mine.jobs] == [first]
        assert [job.id for job in theirs.jobs] == [second]
        assert {job.queue for job in (*mine.jobs, *theirs.jobs)} == {"default"}


@race
async def test_recalls_of_the_same_jobs_do_not_wait_for_each_other(race: Race) -> None:
    """What another recall has locked is left to it."""
    job_id = await put_aside(race, delay=SECOND)
    async with race.transaction() as session:
        assert [job.id for job in (await claim(session, request("worker/a", recall=True))).jobs] == [job_id]
        theirs = await race.driver.claim(request("worker/b", recall=True), now=NOW)
        assert theirs.jobs == []
    assert await race.state(job_id) is State.RUNNING


@race
async def test_operator_beside_a_recall_finds_the_job_where_it_went(race: Race) -> None:
    """A change that waited for the row of a recalled job looks again, and so does a cancel."""
    for operation in (Update(priority=5), Cancel()):
        job_id = await put_aside(race, delay=SECOND, delivery=Delivery.AT_MOST_ONCE)
        async with race.transaction() as session:
            # It makes the job due, and has no room for it.
            recalled = await claim(session, request("worker/a", recall=True))
            assert recalled.jobs == []
            changing = await begun(race.driver.operate(operation, [job_id], now=NOW), race)
        [answer] = await changing
        assert answer.verdict is OperationVerdict.DONE
        record = await race.record(job_id)
        assert record.aside is None
        if isinstance(operation, Update):
            assert (record.state, record.priority) == (State.READY, 5)
            await race.operate(Cancel(), job_id)
        assert await race.state(job_id) is State.CANCELLED


@race
async def test_claim_beside_an_operator_leaves_the_job_to_it(race: Race) -> None:
    """A change that is not committed holds the row; the claim goes on without it, and finds it afterwards."""
    job_id = await put_aside(race)
    async with race.transaction() as session:
        await operate.operate(session, Update(priority=5), [job_id])
        assert (await race.driver.claim(request("worker/a"), now=NOW)).jobs == []
    claimed = await race.driver.claim(request("worker/b"), now=NOW)
    assert [job.id for job in claimed.jobs] == [job_id]


@race
async def test_release_beside_a_settle_that_puts_aside_loses_no_job(race: Race) -> None:
    """Whichever commits first: the job stands in a place that is named, and every worker may take it."""
    for settle_first in (True, False):
        await race.driver.hold(HoldKind.TASK, "race", now=NOW)
        token, job = await race.running()
        back = Transition(token, job.id, job.number, AttemptStatus.RELEASED, State.READY, aside=HELD)
        async with race.transaction() as session:
            if settle_first:
                assert await aside.release(session, HoldKind.TASK, "race", None)
                await race.settle(back)  # while the release is not committed
            else:
                await race.driver.release(HoldKind.TASK, "race", now=NOW)
                await race.settle(back)
        found = await race.driver.claim(ClaimRequest(f"worker/look-{settle_first}", LEASE, 10), now=NOW)
        assert (found.jobs, found.aside, found.holds) == ([], (HELD,), frozenset())
        again = await race.driver.claim(request(f"worker/take-{settle_first}", HELD), now=NOW)
        assert [each.id for each in again.jobs] == [job.id]
        await race.operate(Cancel(), job.id)
        done = Transition(
            f"worker/take-{settle_first}", job.id, job.number + 1, AttemptStatus.RELEASED, State.READY
        )
        await race.settle(done)


@race
async def test_hold_that_is_not_committed_keeps_no_claim_waiting(race: Race) -> None:
    """A claim sees the holds that are in force when it begins, and waits for none."""
    job_id = await put_aside(race, HELD)
    async with race.transaction() as session:
        assert await aside.hold(session, HoldKind.TASK, "race", None)
        async with asyncio.timeout(30):
            claimed = await race.driver.claim(request("worker/a", HELD), now=NOW)
        assert [job.id for job in claimed.jobs] == [job_id]
