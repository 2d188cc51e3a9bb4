"""The policy of recurring jobs is pure: how a run ended goes in, its next occurrence comes out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Claimed, Occurrence, SettleAnswer, SettleResult, Transition
from taskharbor.records import (
    NO_OPTIONS,
    SCHEDULE_TAG,
    AttemptRecord,
    AttemptStatus,
    JobRecord,
    Misfire,
    Options,
    Reason,
    Recurrence,
    State,
)
from taskharbor.rules.recurrence import (
    LATER,
    RUN_NOW,
    Run,
    after_cancelling,
    armed,
    armed_blindly,
    decoded_options,
    has_begun,
    is_missed,
    next_due,
    was_rearmed,
)
from taskharbor.rules.standing import PARKED_AT
from taskharbor.schedule import parse

SECOND = MICROS_PER_SECOND
MINUTE = 60 * SECOND
T0 = 1_767_225_600 * SECOND  # a midnight
MINUTELY = Recurrence("* * * * *", "tick")
SKIPPING = replace(MINUTELY, misfire=Misfire.SKIP)


def job(**more: Any) -> Claimed:
    fields: dict[str, Any] = {
        "first_number": 1,
        "run_at": T0,
        "enqueued_at": 0,
        "due_at": T0,
        "version": 3,
    } | more
    return Claimed(
        "job", "t", "{}", "default", 0, fields.pop("number", 1), fields.pop("attempts", 0), **fields
    )


def ended(
    to: State = State.SUCCEEDED, status: AttemptStatus = AttemptStatus.SUCCEEDED, **more: Any
) -> Transition:
    return Transition("w/1", "job", 1, status, to, **({"started_at": T0} | more))


def row(number: int = 1, status: AttemptStatus = AttemptStatus.FAILED, **more: Any) -> AttemptRecord:
    fields: dict[str, Any] = {"retry_count": 0, "worker": "w", "started_at": T0, "finished_at": T0} | more
    return AttemptRecord("job", number, status, **fields)


def arm(
    transition: Transition, recurrence: Recurrence = MINUTELY, *, now: int = T0 + SECOND, **more: Any
) -> Transition:
    claimed = more.pop("claimed", job())
    options = Options(recurrence=recurrence, tags=(SCHEDULE_TAG, "mine"), timeout=5)
    return armed(transition, claimed, options, claimed.version, now=now, **more)


expressions = st.sampled_from(
    ["* * * * *", "*/7 * * * * *", "@every 45s", "30 2 * * *", "0 0 1 * *", "@hourly"]
)
zones = st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe"])


@given(
    expression=expressions,
    zone=zones,
    misfire=st.sampled_from(Misfire),
    late=st.integers(0, 40 * 86_400 * SECOND),
    took=st.integers(0, 40 * 86_400 * SECOND),
)
def test_the_next_due_time_is_an_occurrence_after_this_one_and_misses_are_made_up_once(
    expression, zone, misfire, late, took
):
    recurrence = Recurrence(expression, "tick", timezone=zone, misfire=misfire)
    schedule = parse(expression, zone)
    due_at = schedule.next_micros(T0, T0)
    began_at = due_at + late
    now = began_at + took
    following = next_due(recurrence, Run(due_at, began_at), now)
    assert following > due_at
    assert schedule.next_micros(following - 1, due_at) == following, "it is an occurrence"
    if misfire is Misfire.SKIP:
        assert following == schedule.next_micros(now, due_at), "the first one after both"
    elif (
        following <= now
    ):  # the latest that came due during the run: not one before it, and no later one is left
        assert following > began_at
        assert schedule.next_micros(following, due_at) > now
    else:
        assert following == schedule.next_micros(now, due_at)
        assert schedule.latest_micros(max(due_at, began_at), now, due_at) is None


@given(expression=expressions, misfire=st.sampled_from(Misfire), ahead=st.integers(1, 3600 * SECOND))
def test_an_extra_run_consumes_no_occurrence(expression, misfire, ahead):
    recurrence = Recurrence(expression, "tick", misfire=misfire)
    assert next_due(recurrence, Run(T0 + ahead, T0 - SECOND, is_extra=True), T0) == T0 + ahead


def test_an_extra_run_that_overran_leaves_the_occurrence_to_be_made_up():
    assert next_due(MINUTELY, Run(T0, T0 - SECOND, is_extra=True), T0 + 5 * SECOND) == T0
    assert next_due(MINUTELY, Run(T0, T0 - SECOND, is_extra=True), T0 + 3 * MINUTE) == T0 + 3 * MINUTE


@given(late=st.integers(0, 3 * 86_400 * SECOND))
def test_an_extra_run_leaves_it_to_the_claim_whether_the_occurrence_is_too_late(late):
    assert next_due(SKIPPING, Run(T0, T0 - SECOND, is_extra=True), T0 + late) == T0


def test_what_cannot_be_computed_here_comes_later():
    strange = replace(MINUTELY, schedule="@fullmoon")
    assert next_due(strange, Run(T0), T0 + SECOND) == T0 + SECOND + LATER


@pytest.mark.parametrize("to", [State.SUCCEEDED, State.DEAD, State.CANCELLED, State.READY])
def test_every_transition_carries_the_next_occurrence_and_the_version(to: State):
    assert arm(ended(to)).occurrence == Occurrence(T0 + MINUTE, 3)


def test_a_job_that_recurs_no_longer_ends_if_nobody_has_made_it_a_schedule_again():
    transition = ended()
    assert armed(transition, job(), NO_OPTIONS, 1, now=T0) == replace(transition, version=1)


def test_a_paused_schedule_is_parked_however_its_run_ends():
    paused = replace(MINUTELY, paused=True)
    assert arm(ended(), paused).occurrence == Occurrence(T0 + MINUTE, 3, PARKED_AT)
    put_back = arm(ended(State.READY, AttemptStatus.RELEASED), paused, now=T0)
    assert put_back.delay == PARKED_AT - T0


def test_a_run_that_was_asked_for_meanwhile_comes_right_after_and_only_once():
    again = replace(MINUTELY, again_after=4)
    now = T0 + SECOND
    armed_again = arm(ended(), again, now=now, claimed=job(number=4, first_number=4))
    assert armed_again.occurrence == Occurrence(T0 + MINUTE, 3, now)
    assert arm(ended(), again, claimed=job(number=5, first_number=5)).occurrence == Occurrence(T0 + MINUTE, 3)


def test_a_copy_goes_to_the_dlq_only_from_a_failed_occurrence_of_who_wants_it():
    wanting = replace(MINUTELY, dead_letter=True)
    dead = ended(State.DEAD, AttemptStatus.FAILED, reason=Reason.EXHAUSTED)
    copy = arm(dead, wanting, copy_id="copy").dead_letter
    assert copy is not None
    assert (copy.id, copy.task, copy.options) == ("copy", "t", Options(tags=("mine",), timeout=5))
    assert arm(dead, copy_id="copy").dead_letter is None
    assert arm(ended(), wanting, copy_id="copy").dead_letter is None
    assert arm(ended(State.READY, AttemptStatus.FAILED), wanting, copy_id="copy").dead_letter is None


def test_an_extra_run_is_known_by_its_place_and_afterwards_by_its_history():
    early = job(run_at=T0 - SECOND)
    assert Run.of(early, T0, []).is_extra
    retry = arm(ended(State.READY, AttemptStatus.FAILED, delay=5), now=T0 - SECOND, claimed=early)
    assert retry.detail == RUN_NOW
    late = job(run_at=T0 + SECOND, number=2)
    assert Run.of(late, T0 + SECOND, [row(detail=RUN_NOW)]).is_extra
    assert Run.of(late, T0 + SECOND, [row(finished_at=T0 - 1)]).is_extra
    assert not Run.of(late, T0 + SECOND, [row(finished_at=T0 + 1)]).is_extra
    # of an earlier run it says nothing
    assert not Run.of(job(number=2, first_number=2), T0, [row(detail=RUN_NOW)]).is_extra


def test_a_run_began_when_its_first_attempt_did():
    run = Run.of(
        job(number=3, run_at=T0 + 9), T0 + 9 * SECOND, [row(2, started_at=T0 + 5), row(1, started_at=T0 + 1)]
    )
    assert run.began_at == T0 + 1
    assert Run.of(job(), None, []).began_at is None


@pytest.mark.parametrize(
    ("late", "misfire", "claimed", "missed"),
    [
        (61 * SECOND, Misfire.SKIP, {}, True),
        (60 * SECOND, Misfire.SKIP, {}, False),
        (61 * SECOND, Misfire.RUN_ONCE, {}, False),
        (61 * SECOND, Misfire.SKIP, {"attempts": 1}, False),
        (61 * SECOND, Misfire.SKIP, {"run_at": T0 - 1}, False),
        (61 * SECOND, Misfire.SKIP, {"due_at": None}, False),
    ],
)
def test_only_a_late_occurrence_that_is_to_be_skipped_is_missed(late, misfire, claimed, missed):
    assert is_missed(job(**claimed), replace(MINUTELY, misfire=misfire), T0 + late) is missed


def test_a_run_has_begun_if_an_attempt_of_it_did_or_may_have():
    claimed = job(number=4, first_number=3)
    assert has_begun(claimed, [row(3)])
    assert has_begun(claimed, [row(3, AttemptStatus.LOST, started_at=None)])
    assert not has_begun(claimed, [row(3, AttemptStatus.RELEASED, started_at=None), row(2)])


def test_cancelling_goes_on_to_the_first_occurrence_after_now():
    record = JobRecord(
        "job",
        "t",
        "{}",
        "default",
        0,
        State.READY,
        0,
        T0,
        due_at=T0,
        version=7,
        options=Options(recurrence=MINUTELY),
    )
    assert after_cancelling(record, T0 + 10 * MINUTE) == Occurrence(T0 + 11 * MINUTE, 7)
    extra = replace(record, run_at=T0 - SECOND)
    assert after_cancelling(extra, T0 - SECOND) == Occurrence(T0, 7)
    paused = replace(record, run_at=PARKED_AT, options=Options(recurrence=replace(MINUTELY, paused=True)))
    assert after_cancelling(paused, T0) == Occurrence(T0 + MINUTE, 7, PARKED_AT)


def test_options_are_read_as_they_were_stored():
    options = Options(
        recurrence=Recurrence("@daily", "tick", "app", "Europe/Berlin", Misfire.SKIP, 5, True, True)
    )
    stored = job(options=msgspec.json.encode(options).decode())
    assert decoded_options(stored) == options
    assert decoded_options(job()) == NO_OPTIONS
    assert decoded_options(job(options='{"recurrence":{"schedule":5}}')) is None


def test_what_only_a_newer_version_can_read_is_armed_blindly():
    lost = ended(State.DEAD, AttemptStatus.LOST, reason=Reason.LOST)
    assert armed_blindly(lost, job(), 3, T0 + SECOND).occurrence == Occurrence(T0 + SECOND + LATER, 3)


def test_a_run_that_was_put_back_has_ended_only_by_request():
    transition = arm(ended(State.READY, AttemptStatus.FAILED, delay=SECOND))
    assert transition.occurrence is not None
    assert not was_rearmed(transition, SettleResult(SettleAnswer.DONE, State.SCHEDULED, T0 + 2 * SECOND))
    assert was_rearmed(
        transition, SettleResult(SettleAnswer.DONE, State.SCHEDULED, transition.occurrence.due_at)
    )
    assert was_rearmed(arm(ended(State.DEAD)), SettleResult(SettleAnswer.DONE, State.SCHEDULED, T0 + MINUTE))
    assert not was_rearmed(ended(), SettleResult(SettleAnswer.DONE, State.SUCCEEDED))
