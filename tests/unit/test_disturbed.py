"""A job whose handler is cancelled by other code in its worker: released, then executed alone, and alone it counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers.base import Transition
from taskharbor.records import AttemptRecord, AttemptStatus, Delivery, Reason, State
from taskharbor.rules.outcome import Disturbed
from taskharbor.rules.policy import DISTURBED, LOST_ALONE, LOST_TOGETHER, settle_disturbed
from tests.unit.test_policy import STARTED, TOKEN, claimed, lost, newest_first


def disturbed(
    number: int,
    history: Sequence[AttemptRecord] = (),
    *,
    alone: bool = False,
    last_step: int = 0,
    **more: Any,
) -> Transition:
    return settle_disturbed(
        TOKEN, claimed(number, **more), Disturbed(), history,
        started_at=STARTED, alone=alone, last_step=last_step, max_losses=3,
    )  # fmt: skip


def row(number: int) -> AttemptRecord:
    return replace(
        lost(number, DISTURBED), status=AttemptStatus.RELEASED, started_at=STARTED, detail=DISTURBED
    )


def test_the_first_time_it_is_released_and_nothing_is_counted():
    transition = disturbed(1, attempts=2)
    assert (transition.status, transition.to) == (AttemptStatus.RELEASED, State.READY)
    assert (transition.attempts, transition.started_at, transition.delay) == (2, STARTED, None)
    assert (transition.suspect, transition.detail) == (False, DISTURBED)
    assert transition.error == "cancelled by neither its own handler nor the worker"


@pytest.mark.parametrize("before", [row(1), lost(1, LOST_TOGETHER)], ids=["disturbed", "lost together"])
def test_the_second_time_in_a_row_it_is_a_suspect(before):
    assert disturbed(2, [before]).suspect


def test_a_failure_between_two_times_makes_no_suspect():
    failed = replace(row(2), status=AttemptStatus.FAILED, detail=None)
    assert not disturbed(3, newest_first(row(1), failed)).suspect


def test_a_step_that_was_stored_since_makes_no_suspect():
    assert not disturbed(3, newest_first(row(1), row(2)), last_step=3).suspect


def test_alone_it_is_a_loss_and_the_last_permitted_is_poison():
    history = newest_first(row(1), row(2))
    for number in (3, 4):
        transition = disturbed(number, history, alone=True)
        assert (transition.status, transition.detail) == (AttemptStatus.LOST, LOST_ALONE)
        assert (transition.to, transition.suspect) == (State.READY, True)
        history.insert(0, lost(number, LOST_ALONE))
    transition = disturbed(5, history, alone=True)
    assert (transition.to, transition.reason, transition.suspect) == (State.DEAD, Reason.POISON, False)


def test_an_at_most_once_job_is_not_executed_again():
    transition = disturbed(1, delivery=Delivery.AT_MOST_ONCE)
    assert (transition.status, transition.to) == (AttemptStatus.CANCELLED, State.DEAD)
    assert transition.reason is Reason.INTERRUPTED
