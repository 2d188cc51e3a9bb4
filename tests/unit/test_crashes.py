"""A job that ends the process which executed it, and nothing else, is lost while alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskharbor.drivers.base import Transition
from taskharbor.records import AttemptRecord, AttemptStatus, Delivery, Reason, State
from taskharbor.rules.outcome import Crashed
from taskharbor.rules.policy import LOST_ALONE, LOST_TOGETHER, settle_crash
from tests.unit.test_policy import STARTED, TOKEN, claimed, lost, newest_first

CRASHED = Crashed("lost: its process was killed by SIGSEGV (signal 11)")


def crash(number: int, history: Sequence[AttemptRecord] = (), **more: Any) -> Transition:
    return settle_crash(TOKEN, claimed(number, **more), CRASHED, history, started_at=STARTED, max_losses=3)


def test_a_crash_is_a_loss_and_no_failure():
    transition = crash(1, attempts=2)
    assert (transition.status, transition.to) == (AttemptStatus.LOST, State.READY)
    assert (transition.attempts, transition.started_at) == (2, STARTED)
    assert (transition.error, transition.detail) == (CRASHED.error, LOST_ALONE)
    assert transition.token == TOKEN
    assert transition.worker is None  # its own lease settles it


def test_a_crash_counts_like_any_loss_while_alone():
    history: list[AttemptRecord] = []
    for number in (1, 2):
        transition = crash(number, history)
        assert transition.to is State.READY
        assert not transition.suspect  # it is alone in its process every time
        history.insert(0, lost(number, LOST_ALONE))
    assert crash(3, history).reason is Reason.POISON


def test_what_was_lost_with_others_does_not_count_against_a_crash():
    history = newest_first(*(lost(number, LOST_TOGETHER) for number in range(1, 10)))
    assert crash(10, history).to is State.READY


def test_a_crash_ends_an_at_most_once_job():
    transition = crash(1, delivery=Delivery.AT_MOST_ONCE)
    assert (transition.to, transition.reason) == (State.DEAD, Reason.LOST)
