"""What the state machine's stories are made of: few different values, so that they meet each other often.

A job or an outcome is a plain one with some features added, none to three of them: that takes few choices, so that
stories can be long, and leaves the plain one when a story is shrunk to what matters. Instants are written as
distances from the moment they are used.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from taskharbor.conformance.store import HOUR, LEASE, MINUTE, SECOND
from taskharbor.drivers.base import (
    Cancel,
    DeadLetter,
    Delete,
    Discard,
    Occurrence,
    Operation,
    Requeue,
    RunNow,
    Update,
)
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.records import AttemptStatus, Delivery, NewJob, Options, Reason, Recurrence, State
from taskharbor.rules.aside import hold_label, task_label
from taskharbor.rules.lifecycle import SETTLES

Features = dict[str, Any]
Outcome = tuple[tuple[AttemptStatus, State], list[Features]]

QUEUES = ("a", "b")
TASKS = ("task:one", "task.two")
TAGS = ("x", "y%", "y")
HOLDS = ((HoldKind.TASK, TASKS[0]), (HoldKind.TAG, TAGS[1]))
ASIDE = (task_label(TASKS[0]), *(hold_label(kind, name) for kind, name in HOLDS))

JOB_FEATURES: tuple[Features, ...] = (
    {"queue": "b"},
    {"priority": 1},
    {"priority": -1},
    {"task": "task.two"},
    {"delay": 1},
    {"delay": SECOND},
    {"run_at": HOUR},
    {"run_at": -MINUTE},
    {"expires_at": 0},
    {"expires_at": SECOND},
    {"expires_at": HOUR},
    {"idempotency_key": "k"},
    {"idempotency_key": "k"},
    {"idempotency_key": "'; --"},
    {"ends_with_members": True},
    {"ends_with_members": True},
    {"delivery": Delivery.AT_MOST_ONCE},
    {"delivery": Delivery.AT_LEAST_ONCE},
    {"options": Options(tags=("x", "y%"), timeout=1.5)},
    {"options": Options(tags=("y%",), retry=None, max_attempts=3, correlation_id="c")},
    {"due_at": SECOND, "delay": SECOND},
    {"meta": '{"tenant":"acme"}'},
)

OUTCOME_FEATURES: tuple[Features, ...] = (
    {"started_at": -1},
    {"delay": 0},
    {"delay": SECOND},
    {"delay": HOUR},
    {"suspect": True},
    {"attempts": 0},
    {"attempts": 3},
    {"error": 'it\'s "bad" 😀', "traceback": "Traceback …"},
    {"detail": "why"},
    {"worker": "another"},
    {"worker_survived": True},
    {"result": '"text"'},
    {"occurrence": (0, 0)},
    {"occurrence": (MINUTE, 0)},
    {"occurrence": (MINUTE, 1)},
    {"occurrence": (MINUTE, 0, HOUR)},
    {"occurrence": (MINUTE, 0), "dead_letter": {}},
    {"aside": ASIDE[0]},
    {"aside": ASIDE[1]},
    {"aside": ASIDE[2]},
    {"aside": ASIDE[0], "delay": SECOND},
    {"inserts": ({},)},
    {"inserts": ({"idempotency_key": "k"}, {"queue": "b", "delay": SECOND})},
)

SUCCESS = (AttemptStatus.SUCCEEDED, State.SUCCEEDED)
RETRY = (AttemptStatus.FAILED, State.READY)
HAND_BACK = (AttemptStatus.RELEASED, State.READY)
ENDINGS = (
    SUCCESS,
    SUCCESS,
    RETRY,
    RETRY,
    *((status, to) for status, targets in SETTLES.items() for to in sorted(targets)),
)
REASONS = {State.DEAD: Reason.EXHAUSTED, State.CANCELLED: Reason.CANCELLED}

OPERATIONS: tuple[Operation, ...] = (
    Cancel(),
    Delete(),
    Delete(),
    DeadLetter(),
    Discard(),
    RunNow(),
    Requeue(),
    Requeue(reset_attempts=False),
    Requeue(run_at=MINUTE),
    Update(priority=5),
    Update(run_at=-SECOND),
    Update(run_at=MINUTE, payload='{"changed":1}'),
    Update(expires_at=SECOND),
    Update(expires_at=None),
    Update(tags=("y%",), max_attempts=7),
    Update(tags=(), timeout=None, max_attempts=None),
    Update(meta='{"changed":"1"}'),
    Update(meta=None),
    Update(options=Options(tags=("x",), recurrence=Recurrence("@daily", "n")), while_running=True),
    Update(due_at=MINUTE, at_due=True),
    Update(at_due=True, task="task.two", delivery=Delivery.AT_LEAST_ONCE, version=1),
    Update(queue="b", version=2),
    Update(priority=3, payload="{}", run_at=HOUR, due_at=HOUR, while_running=True),
    Cancel(Occurrence(MINUTE, 1)),
    Cancel(Occurrence(MINUTE, 2, HOUR)),
)

features_of_jobs = st.lists(st.sampled_from(JOB_FEATURES), max_size=3)
batches = st.lists(features_of_jobs, min_size=1, max_size=3)
# Of a member of a workflow: the indexes of those it depends on, as far as they are before it, and its features.
dependencies = st.tuples(st.sampled_from(((), (0,), (1,), (0, 1), (2, 0))), features_of_jobs)
outcomes = st.tuples(st.sampled_from(ENDINGS), st.lists(st.sampled_from(OUTCOME_FEATURES), max_size=3))
operations = st.sampled_from(OPERATIONS)
operations_on_all: st.SearchStrategy[Operation] = st.sampled_from(
    (Requeue(), Cancel(), RunNow(), Update(priority=2))
)
lease_times = st.sampled_from((LEASE, SECOND, HOUR))
queue_names = st.sampled_from(QUEUES)
# A moment, the last one and the first one without a lease of the usual length, and longer than anything lasts.
passing_times = st.sampled_from((SECOND, LEASE, LEASE - 1, 1, MINUTE, 2 * HOUR))
holds = st.sampled_from(HOLDS)
rarely = st.sampled_from((False, False, False, True))

claim_requests = st.fixed_dictionaries(
    {
        "lease": lease_times,
        "limit": st.sampled_from((10, 2, 1)),
        "queues": st.sampled_from((None, ("a",), ("b", "a"), ())),
        "once_limit": st.sampled_from((10, 1, 0)),
        "suspects": rarely,
        "supervised": st.booleans(),
        "max_losses": st.sampled_from((5, 1)),
        "aside": st.sampled_from(((), (), ASIDE, ASIDE[:1], ASIDE[1:])),
        "recall": st.sampled_from(((), (), ASIDE[:1])),
    }
)
filters = st.fixed_dictionaries(
    {
        "state": st.sampled_from((None, *State)),
        "queue": st.sampled_from((None, None, *QUEUES)),
        "task": st.sampled_from((None, None, *TASKS)),
        "tag": st.sampled_from((None, None, *TAGS)),
        "reason": st.sampled_from((None, None, None, *Reason)),
        "error": st.sampled_from((None, None, None, "bad", "😀")),
        "correlation_id": st.sampled_from((None, None, None, "c")),
    }
)


def merged(features: list[Features]) -> Features:
    """Later ones win."""
    return {name: value for each in features for name, value in each.items()}


def new_job(job_id: str, features: Features, now: int) -> NewJob:
    fields = {
        "id": job_id,
        "task": TASKS[0],
        "queue": QUEUES[0],
        "payload": f'{{"of":"{job_id}"}}',
        **features,
    }
    if "run_at" in fields:
        fields.pop("delay", None)  # one or the other
        fields["run_at"] += now
    for name in ("expires_at", "due_at"):
        if name in fields:
            fields[name] += now
    return NewJob(**fields)


def outcome(to: State, features: Features, version: int, now: int) -> Features:
    """The fields of a transition; its `inserts` are still features."""
    fields = {"reason": REASONS.get(to), **features}
    if "started_at" in fields:
        fields["started_at"] += now
    if "occurrence" in fields:
        distance, off, *place = fields["occurrence"]
        fields["occurrence"] = Occurrence(now + distance, version + off, *(now + ahead for ahead in place))
    return fields


def operation_at(operation: Operation, now: int) -> Operation:
    if isinstance(operation, Requeue) and operation.run_at is not None:
        return replace(operation, run_at=now + operation.run_at)
    if isinstance(operation, Cancel) and operation.occurrence is not None:
        due_at, run_at = operation.occurrence.due_at, operation.occurrence.run_at
        place = None if run_at is None else now + run_at
        return Cancel(replace(operation.occurrence, due_at=now + due_at, run_at=place))
    if isinstance(operation, Update):
        if operation.due_at is not UNSET:
            operation = replace(operation, due_at=now + operation.due_at)
        if operation.run_at is not UNSET:
            operation = replace(operation, run_at=now + operation.run_at)
        if operation.expires_at is not UNSET and operation.expires_at is not None:
            operation = replace(operation, expires_at=now + operation.expires_at)
    return operation
