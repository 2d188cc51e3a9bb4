"""`dlq add`: an operator dead-letters a job that has not finished, on every surface."""

from __future__ import annotations

import pytest

from taskharbor import Harbor, chain
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import ClaimRequest
from tests.filters.stage import Number, OverRest, Refused, Stage, Surface

STRANGER = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"


def job_in(stage: Stage, state: str) -> str:
    if state == "waiting":
        return chained(stage)[1]
    job_id = stage.enqueue("disk" if state == "dead" else "", delay=60 if state == "scheduled" else None)
    if state == "running":
        request = ClaimRequest("w", 30 * MICROS_PER_SECOND, 1)
        stage.run(lambda harbor: harbor.driver.claim(request))
    elif state == "cancelled":
        stage.run(lambda harbor: harbor.jobs.acancel(job_id))
    elif state in ("succeeded", "dead"):
        stage.drain()
    assert stage.states(job_id) == [state]
    stage.events()
    return job_id


def chained(stage: Stage, on_failure: str = "wait") -> list[str]:
    """The members of a workflow of three, each of which waits for the one before."""

    async def act(harbor: Harbor) -> list[str]:
        step = harbor.tasks["t"]
        steps = chain(step.si(), step.si(), step.si())
        workflow = await (steps.using(on_failure="cancel") if on_failure == "cancel" else steps).aenqueue()
        return sorted([job.id for job in await harbor.jobs.alist(workflow=workflow.id)])

    return list(stage.run(act))


@pytest.mark.parametrize("state", ["waiting", "scheduled", "ready"])
def test_a_job_that_has_not_begun_becomes_dead_with_that_reason(stage: Stage, surface: Surface, state: str):
    job_id = job_in(stage, state)
    assert surface.add(job_id) == ("dead", "operator")
    assert surface.ids(dead=True, reason="operator") == [job_id]
    assert stage.events() == [("dead", job_id)]
    stage.clock.advance(60)
    stage.drain()
    assert stage.states(job_id) == ["dead"]
    assert surface.bulk("requeue-all", reason="operator") == Number(1)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("running", "; let its attempt end, or cancel it"),
        ("succeeded", "; enqueue another one"),
        ("cancelled", "; requeue it first"),
        ("dead", "only one that has not finished, and is not running, can"),
    ],
)
def test_any_other_state_is_a_conflict_that_says_what_to_do(
    stage: Stage, surface: Surface, state: str, told: str
):
    job_id = job_in(stage, state)
    before = stage.everything()
    with pytest.raises(Refused) as refusal:
        surface.add(job_id)
    assert str(refusal.value).startswith(f"job {job_id} is {state}, so it cannot be dead-lettered")
    assert str(refusal.value).endswith(told)
    assert stage.everything() == before
    assert stage.events() == []
    if isinstance(surface, OverRest):
        assert refusal.value.status == 409


def test_a_schedule_is_refused_and_goes_on(stage: Stage, surface: Surface):
    stage.run(lambda harbor: harbor.schedules.aadd("nightly", "t", schedule="* * * * *"))
    [job_id] = surface.ids()
    before = stage.everything()
    with pytest.raises(Refused, match=r"is the schedule 'nightly'; pause it with .*'nightly'") as refusal:
        surface.add(job_id)
    assert "or cancel this occurrence" in str(refusal.value)
    assert stage.everything() == before
    if isinstance(surface, OverRest):
        assert refusal.value.status == 409


def test_a_job_that_is_not_there_is_not_found(surface: Surface):
    with pytest.raises(Refused, match=f"no job has the id {STRANGER}") as refusal:
        surface.add(STRANGER)
    if isinstance(surface, OverRest):
        assert refusal.value.status == 404


def test_dependants_that_end_with_it_are_cancelled(stage: Stage, surface: Surface):
    first, second, third = chained(stage, on_failure="cancel")
    assert surface.add(first) == ("dead", "operator")
    assert stage.states(second, third) == ["cancelled", "cancelled"]
    assert surface.ids(reason="dependency") == [third, second]
    died, *cancelled = stage.events()
    assert died == ("dead", first)
    assert sorted(cancelled) == [("cancelled", second), ("cancelled", third)]


def test_dependants_that_wait_go_on_waiting(stage: Stage, surface: Surface):
    first, second, third = chained(stage)
    surface.add(first)
    assert stage.states(second, third) == ["waiting", "waiting"]
    assert stage.events() == [("dead", first)]


def test_an_expired_lease_is_collected_first(stage: Stage, surface: Surface):
    """A job whose worker is gone only looks running."""
    job_id = stage.enqueue(max_attempts=3)
    request = ClaimRequest("w", 30 * MICROS_PER_SECOND, 1)
    stage.run(lambda harbor: harbor.driver.claim(request))
    stage.clock.advance(31)
    assert surface.add(job_id) == ("dead", "operator")
