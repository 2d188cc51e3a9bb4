"""The life of a job: the states it may move between, and which operation is allowed in which state."""

from __future__ import annotations

from taskharbor.drivers.base import Cancel, DeadLetter, Delete, Discard, Operation, Requeue, RunNow, Update
from taskharbor.errors import ConfigurationError
from taskharbor.records import AttemptStatus, State

TERMINAL = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})
UNFINISHED = frozenset(State) - TERMINAL

# Everything that may happen to a job. A re-armed (recurring) job goes from running to scheduled.
LEGAL: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.READY, State.SCHEDULED, State.DEAD, State.CANCELLED}),
    State.SCHEDULED: frozenset({State.READY, State.SCHEDULED, State.RUNNING, State.DEAD, State.CANCELLED}),
    State.READY: frozenset({State.SCHEDULED, State.RUNNING, State.DEAD, State.CANCELLED}),
    State.RUNNING: frozenset({State.READY, State.SCHEDULED, State.SUCCEEDED, State.DEAD, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.DEAD: frozenset({State.READY, State.SCHEDULED, State.WAITING, State.CANCELLED}),
    State.CANCELLED: frozenset({State.READY, State.SCHEDULED, State.WAITING}),
}

# Which state a running job may be settled into, by how its attempt ended.
SETTLES: dict[AttemptStatus, frozenset[State]] = {
    AttemptStatus.SUCCEEDED: frozenset({State.SUCCEEDED}),
    AttemptStatus.FAILED: frozenset({State.READY, State.DEAD}),
    AttemptStatus.TIMED_OUT: frozenset({State.READY, State.DEAD}),
    AttemptStatus.LOST: frozenset({State.READY, State.DEAD}),
    AttemptStatus.RELEASED: frozenset({State.READY, State.DEAD}),
    AttemptStatus.SLEPT: frozenset({State.READY}),
    AttemptStatus.CANCELLED: frozenset({State.CANCELLED, State.DEAD}),
}

# Which states each operator verb accepts; any other is a conflict.
CANCELLABLE = frozenset({State.WAITING, State.SCHEDULED, State.READY, State.RUNNING})
DELETABLE = frozenset(State) - {State.RUNNING}  # and no unfinished job depends on it
CHANGEABLE = frozenset({State.WAITING, State.SCHEDULED, State.READY})
DEADLETTERABLE = frozenset({State.WAITING, State.SCHEDULED, State.READY})
REQUEUEABLE = frozenset({State.DEAD, State.CANCELLED})
DISCARDABLE = frozenset({State.DEAD})
RUNNABLE_NOW = frozenset({State.SCHEDULED})

_ALLOWED_IN: dict[type[Operation], frozenset[State]] = {
    Cancel: CANCELLABLE,
    DeadLetter: DEADLETTERABLE,
    Delete: DELETABLE,
    Discard: DISCARDABLE,
    Requeue: REQUEUEABLE,
    RunNow: RUNNABLE_NOW,
    Update: CHANGEABLE,
}


def allows(state: State, operation: Operation) -> bool:
    """Whether an operator may do this to a job in that state; every driver asks here."""
    if state is State.RUNNING and isinstance(operation, Update):
        return operation.while_running
    if isinstance(operation, Requeue) and operation.only_dead:
        return state is State.DEAD
    return state in _ALLOWED_IN[type(operation)]


def check_prunable(before: dict[State, int]) -> None:
    """Pruning never touches what is not terminal; every driver asks here."""
    if unfinished := before.keys() - TERMINAL:
        raise ConfigurationError(
            f"only succeeded, dead and cancelled jobs can be pruned, not {', '.join(sorted(unfinished))}"
        )
