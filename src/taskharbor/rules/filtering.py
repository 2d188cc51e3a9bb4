"""Filtering: which jobs a `JobFilter` selects. Each store searches in its own way; this is what it must find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskharbor.codec import decode_payload
from taskharbor.errors import PayloadError
from taskharbor.records import JobFilter, JobRecord, Reason, State
from taskharbor.rules.display import shown_payload
from taskharbor.rules.fingerprint import ERROR_SHOWN
from taskharbor.rules.lifecycle import TERMINAL

CANCELLED_FOR = frozenset({Reason.CANCELLED, Reason.EXPIRED, Reason.DISCARDED, Reason.DEPENDENCY})


def matches(job: JobRecord, where: JobFilter) -> bool:
    """Whether the filter selects this job. The workflow is the store's to check: a record does not name it."""
    options = job.options
    return (
        (where.ids is None or job.id in where.ids)
        and where.state in (None, job.state)
        and where.queue in (None, job.queue)
        and where.task in (None, job.task)
        and (where.tag is None or where.tag in options.tags)
        and where.reason in (None, job.reason)
        and (where.error is None or (job.error is not None and where.error in job.error[:ERROR_SHOWN]))
        and (where.fingerprint is None or (job.state is State.DEAD and where.fingerprint == job.fingerprint))
        and where.correlation_id in (None, options.correlation_id)
        and is_within(job.enqueued_at, where.enqueued_after, where.enqueued_before)
        and is_within(job.finished_at, where.finished_after, where.finished_before)
        and (where.payload is None or payload_matches(job.task, job.payload, where.payload))
    )


def payload_matches(task: str, payload: str, wanted: Mapping[str, Any]) -> bool:
    """Whether a stored payload has these values at these paths, as a reader would see it.

    A secret of an HTTP job is `***` here as well: a search must not answer whether a guess is right. Of a payload that
    cannot be read, or that a codec has sealed, nothing matches.
    """
    try:
        shown = shown_payload(task, decode_payload(payload))
    except PayloadError:
        return False
    return all(_has(shown, path, value) for path, value in wanted.items())


def _has(values: Any, path: str, wanted: Any) -> bool:
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    is_bool = isinstance(wanted, bool)  # which Python takes for 0 or 1
    return isinstance(values, bool) == is_bool and values == wanted


def is_within(instant: int | None, after: int | None, before: int | None) -> bool:
    """Whether it lies from `after` on and before `before`. What has not happened lies in no range."""
    if after is None and before is None:
        return True
    return (
        instant is not None and (after is None or instant >= after) and (before is None or instant < before)
    )


def possible_states(where: JobFilter) -> frozenset[State]:
    """The states that a job must be in to match."""
    states = frozenset(State) if where.state is None else frozenset({where.state})
    if where.reason is not None:
        states &= {State.CANCELLED if where.reason in CANCELLED_FOR else State.DEAD}
    if where.fingerprint is not None:
        states &= {State.DEAD}
    if where.finished_after is not None or where.finished_before is not None:
        states &= TERMINAL
    return states
