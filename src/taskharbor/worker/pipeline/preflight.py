"""The checks that a claimed job passes before its handler begins.

Each check is a function of an execution and an instant. It returns None, or the outcome of a job that must not begin.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from taskharbor.builtin_tasks import why_unknown
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.codec import SEALED_PREFIX
from taskharbor.errors import PayloadError
from taskharbor.records import Reason
from taskharbor.rules.aside import held_by
from taskharbor.rules.outcome import (
    CancelledOnRequest,
    Expired,
    HandedBack,
    Held,
    Missed,
    Outcome,
    Unrunnable,
)
from taskharbor.rules.recurrence import is_missed
from taskharbor.worker.handlers.outcomes import outcome_of_unrunnable
from taskharbor.worker.pipeline.execution import Execution


class NotOurs(Struct, frozen=True):
    """The lease is lost: another worker may have the job, so there is nothing to settle."""


Objection = Outcome | NotOurs
Check = Callable[[Execution, int], Objection | None]


def lease_is_lost(execution: Execution, now: int) -> NotOurs | None:
    return NotOurs() if execution.lease.lost else None


def worker_is_closing(execution: Execution, now: int) -> HandedBack | None:
    """Hand back a job whose claim was under way when the worker began to stop."""
    return HandedBack() if execution.pipeline.is_closing else None


def lease_is_over(execution: Execution, now: int) -> HandedBack | None:
    """Hand back a job whose lease is over as far as the worker knows. The store learns that this worker is alive."""
    return HandedBack() if execution.lease.is_over(now) else None


def is_held(execution: Execution, now: int) -> Held | None:
    """Put a job aside that a hold keeps back, whether this worker knows its task or not."""
    holds, claimed = execution.pipeline.holds, execution.claimed
    label = held_by(holds, claimed.task, execution.options.tags) if holds else None
    return None if label is None else Held(label)


def task_is_unknown(execution: Execution, now: int) -> Unrunnable | None:
    return unknown_task(execution) if execution.task is None else None


def unknown_task(execution: Execution) -> Unrunnable:
    return outcome_of_unrunnable(Reason.UNKNOWN_TASK, why_unknown(execution.claimed.task))


def has_expired(execution: Execution, now: int) -> Expired | None:
    expires_at = execution.claimed.expires_at
    return Expired() if expires_at is not None and now >= expires_at else None


def options_are_unreadable(execution: Execution, now: int) -> Unrunnable | None:
    if execution.unreadable is None:
        return None
    return outcome_of_unrunnable(Reason.INVALID_PAYLOAD, execution.unreadable)


def payload_does_not_fit(execution: Execution, now: int) -> Unrunnable | None:
    """Decode the payload, once. If the job takes results of other jobs, this waits until they are read."""
    if execution.arguments is not None:
        return None
    payload = execution.payload
    if payload is None:
        if execution.options.takes is not None:
            return None
        payload = execution.claimed.payload
    assert execution.task is not None, "an unknown task is refused first"
    try:
        if payload.startswith(SEALED_PREFIX):
            payload = execution.harbor.sealing.open(payload)
        execution.arguments = execution.task.plan.decode(payload)
    except PayloadError as error:
        return outcome_of_unrunnable(Reason.INVALID_PAYLOAD, str(error))
    return None


def occurrence_is_missed(execution: Execution, now: int) -> Missed | None:
    """Drop an occurrence that is too late, unless its run has begun or may have begun."""
    recurrence, due_at = execution.options.recurrence, execution.claimed.due_at
    if recurrence is None or due_at is None or not is_missed(execution.claimed, recurrence, now):
        return None
    if execution.run_may_have_begun:
        return None
    return Missed((now - due_at) / MICROS_PER_SECOND, recurrence.misfire_grace)


def was_cancelled(execution: Execution, now: int) -> CancelledOnRequest | None:
    """Cancel a job for which a request came while it waited in this worker."""
    return CancelledOnRequest() if execution.is_to_stop("cancel") else None


# In this order: the first check that objects decides.
PREFLIGHT: tuple[Check, ...] = (
    lease_is_lost,
    worker_is_closing,
    lease_is_over,
    is_held,
    task_is_unknown,
    has_expired,
    options_are_unreadable,
    payload_does_not_fit,
    occurrence_is_missed,
    was_cancelled,
)


def preflight(execution: Execution, now: int) -> Objection | None:
    """Return the first objection to the job, or None if it may begin."""
    for check in PREFLIGHT:
        if (objection := check(execution, now)) is not None:
            return objection
    return None


def is_routine(execution: Execution, now: int) -> bool:
    """Whether only the payload needs a check, and the job needs no preparation.

    Nearly every job is routine, and this one test is cheaper than all the checks.
    """
    task, options, lease = execution.task, execution.options, execution.lease
    return (
        now < lease.expires_at
        and not lease.lost
        and not execution.asked_to_stop
        and not execution.pipeline.is_closing
        and not execution.pipeline.holds
        and task is not None
        and not task.is_isolated
        and not task.is_at_most_once
        and execution.claimed.expires_at is None
        and execution.unreadable is None
        and options.takes is None
        and options.recurrence is None
    )
