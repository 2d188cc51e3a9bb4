"""Operations: what an operator asks for, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from taskharbor.drivers.contract.settling import Occurrence
from taskharbor.records import Delivery, Options, State


class Seen(Struct, frozen=True):
    """Where a job stood when a caller looked: its latest attempt, and whether that was under way.

    A recurring job goes from run to run without a change of its version; what was worked out from an earlier run
    must not be done to a later one.
    """

    number: int
    running: bool


class Cancel(Struct, frozen=True):
    """End what has not begun; ask a running one to end.

    With `occurrence`, what has not begun is not ended but re-armed; a row of history says what became of the
    occurrence that was cancelled. A job that waits for others has no occurrences: that is a conflict.
    """

    occurrence: Occurrence | None = None
    seen: Seen | None = None  # re-armed only if the job still stands there


class Discard(Struct, frozen=True):
    """Take a dead job out of the dead-letter queue for good."""


class DeadLetter(Struct, frozen=True):
    """Put a job that has not begun, or backs off, into the dead-letter queue. A running one is a conflict."""


class Delete(Struct, frozen=True):
    """Remove the job and its history."""


class RunNow(Struct, frozen=True):
    """Make a scheduled job ready."""


class Requeue(Struct, frozen=True):
    """Begin a new run of a dead or cancelled job.

    Then those that were cancelled because of it, and that nothing else stands against, wait again, and so on.
    """

    run_at: int | None = None
    reset_attempts: bool = True
    only_dead: bool = False  # one that was discarded meanwhile, for example, stays cancelled


DECLARED: Literal["declared"] = "declared"


class Update(Struct, frozen=True):
    """Change what is set here, and nothing else.

    A job with an idempotency key stays in its queue. `while_running` changes a running job as well, from its
    next run on: its place and due time are then the settle's to set, which learns that it changed.
    """

    priority: int | UnsetType = UNSET
    run_at: int | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    max_attempts: int | None | UnsetType = UNSET
    timeout: float | None | UnsetType = UNSET
    # A policy of its own as JSON, None for no retries, or DECLARED for that of the code.
    retry: dict[str, Any] | None | Literal["declared"] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    expires_at: int | None | UnsetType = UNSET
    task: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    delivery: Delivery | None | UnsetType = UNSET
    options: Options | UnsetType = UNSET  # all of them
    meta: str | None | UnsetType = UNSET  # all of it
    due_at: int | UnsetType = UNSET  # of one that waits for others: nothing
    at_due: bool = False  # its place is its due time, if it has one
    while_running: bool = False
    version: int | None = None  # only if this is still the job's version
    seen: Seen | None = None  # only if the job still stands there


Operation = Cancel | Discard | DeadLetter | Delete | RunNow | Requeue | Update


class OperationVerdict(StrEnum):
    DONE = "done"
    REQUESTED = "requested"  # a running job has been asked to end
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    CHANGED = "changed"  # the job's version, or where it stands, is another than the operation relies on


class OperationResult(Struct, frozen=True):
    job_id: str
    verdict: OperationVerdict
    state: State | None = None  # before the operation; what a conflict is about
    cancelled: tuple[str, ...] = ()  # dependants that ended with it, by id


def with_dependants(
    answers: Iterable[OperationResult], cancelled: Mapping[str, tuple[str, ...]]
) -> list[OperationResult]:
    """The answers, each with the dependants that ended with its job."""
    return [
        replace(answer, cancelled=ids)
        if answer.verdict is OperationVerdict.DONE and (ids := cancelled.get(answer.job_id))
        else answer
        for answer in answers
    ]


# The row of history that a cancelled occurrence leaves if no worker had claimed it.
OPERATOR = "operator/cancel"  # as a token
NOT_BEGUN = "cancelled before it began"
