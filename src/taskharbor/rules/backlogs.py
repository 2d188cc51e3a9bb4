"""Backlogs: jobs of one key that execute one after the other, in the order of their places."""

from __future__ import annotations

from enum import Enum, auto

from taskharbor.records import State


class Step(Enum):
    """What to do about the first job of a backlog."""

    STAY = auto()  # it is under way, or holds the others
    RELEASE = auto()  # it waits, and its turn has come
    PASS = auto()  # it has ended or is gone: the next one is the first


def step(state: State | None, *, holds: bool) -> Step:
    """Decide by the state of the first job; None: it was deleted."""
    if state is State.WAITING:
        return Step.RELEASE
    if state is State.DEAD:
        return Step.STAY if holds else Step.PASS
    return Step.PASS if state in (None, State.SUCCEEDED, State.CANCELLED) else Step.STAY
