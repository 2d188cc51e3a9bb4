"""What becomes of a job that a bug of ours keeps from being settled."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Transition
from taskharbor.records import AttemptRecord, AttemptStatus, Delivery, Reason, State
from taskharbor.rules.policy import UNSETTLED_DELAY_MAX_SECONDS, UNSETTLED_MAX, settle_unsettled
from tests.unit.test_policy import NOW, STARTED, TOKEN, claimed


def unsettled(number: int = 1, history: list[AttemptRecord] | None = None, **more: Any) -> Transition:
    options = {"started_at": more.pop("started_at", STARTED), "suspect": more.pop("suspect", False)}
    return settle_unsettled(TOKEN, claimed(number, **more), "KeyError: 'k'", history or [], **options)


def row(number: int, detail: str | None = str(Reason.UNSETTLEABLE)) -> AttemptRecord:
    return AttemptRecord(
        "job", number, AttemptStatus.RELEASED, 0, "worker", STARTED, NOW, error=None, detail=detail
    )


def test_it_is_released_uncounted_and_says_why():
    transition = unsettled(3, attempts=2, suspect=True)
    assert (transition.status, transition.to) == (AttemptStatus.RELEASED, State.READY)
    assert (transition.attempts, transition.suspect, transition.started_at) == (2, True, STARTED)
    assert "bug in TaskHarbor" in (transition.error or "")
    assert "KeyError: 'k'" in (transition.error or "")


def test_the_delay_doubles_up_to_five_minutes_and_the_twentieth_time_is_the_end():
    history: list[AttemptRecord] = []
    for number in range(1, UNSETTLED_MAX):
        transition = unsettled(number, history)
        assert transition.to is State.READY
        assert transition.delay == min(2 ** (number - 1), UNSETTLED_DELAY_MAX_SECONDS) * MICROS_PER_SECOND
        history.insert(0, row(number))
    transition = unsettled(UNSETTLED_MAX, history, attempts=1)
    assert (transition.to, transition.reason) == (State.DEAD, Reason.UNSETTLEABLE)
    assert (transition.status, transition.attempts) == (AttemptStatus.FAILED, 1)


def test_other_attempts_between_and_earlier_runs_do_not_count():
    history = [row(number, None if number % 2 else str(Reason.UNSETTLEABLE)) for number in range(40, 0, -1)]
    assert unsettled(41, history).to is State.DEAD
    assert unsettled(41, history, first_number=5).to is State.READY


@pytest.mark.parametrize("begun", [False, True])
def test_an_at_most_once_job_that_has_begun_is_dead_at_once(begun: bool):
    transition = unsettled(started_at=STARTED if begun else None, delivery=Delivery.AT_MOST_ONCE)
    assert transition.to is (State.DEAD if begun else State.READY)
    assert transition.reason is (Reason.UNSETTLEABLE if begun else None)
