"""Operating: what an operator's verb makes of a job that is not running."""

from __future__ import annotations

from msgspec import UNSET, Struct
from msgspec.structs import replace

from taskharbor.drivers.contract.operating import (
    DECLARED,
    Cancel,
    DeadLetter,
    Discard,
    Operation,
    OperationVerdict,
    Requeue,
    RunNow,
    Seen,
    Update,
)
from taskharbor.records import Delivery, JobRecord, Reason, State
from taskharbor.rules.lifecycle import allows
from taskharbor.rules.settling import finished, rearmed
from taskharbor.rules.standing import Standing, StoredJob, runnable_state


class Change(Struct, frozen=True):
    """What an operation makes of a job: its row, and where it stands."""

    job: StoredJob
    to: Standing
    is_new_run: bool = False  # its progress goes
    is_rearmed: bool = False  # so do its steps, and the occurrence that was cancelled leaves a row of history


def change(
    operation: Operation,
    job: StoredJob,
    at: Standing,
    now: int,
    *,
    has_begun: bool = False,
    waits: bool = False,
) -> Change | OperationVerdict:
    """What the operation makes of the job, or why it makes nothing of it.

    `has_begun` says of an update that an attempt of the run has begun, `waits` of a requeue that a job which this one
    depends on has not succeeded. `Delete` changes nothing: a store erases what no unfinished job needs.
    """
    if not allows(at.state, operation):
        return OperationVerdict.CONFLICT
    match operation:
        case Cancel():
            return _cancelled(operation, job, at, now)
        case Discard():
            return Change(job, finished(at, State.CANCELLED, Reason.DISCARDED, now))
        case DeadLetter():
            return Change(job, finished(at, State.DEAD, Reason.OPERATOR, now))
        case RunNow():
            return Change(replace(job, run_at=now), replace(at, state=State.READY, run_at=now, aside=None))
        case Requeue():
            run_at = now if operation.run_at is None else operation.run_at
            return new_run(job, at, run_at, now, waits=waits, keep_attempts=not operation.reset_attempts)
        case Update():
            return _updated(operation, job, at, now, has_begun=has_begun)
        case _:
            return OperationVerdict.DONE


def ends_dependants(operation: Operation) -> bool:
    """Whether dependants that end with a job end when this is done to it."""
    return isinstance(operation, DeadLetter) or (
        isinstance(operation, Cancel) and operation.occurrence is None
    )


def has_moved_on(at: Standing, seen: Seen | None) -> bool:
    """Whether the job stands elsewhere than the operator saw it."""
    return seen is not None and seen != Seen(at.number, at.state is State.RUNNING)


def needs_force(job: JobRecord) -> bool:
    """Tell whether a new run of this dead or cancelled job may execute an at_most_once job a second time.

    A stored row that cannot be read proves nothing: its number may be a stand-in.
    """
    may_have_begun = job.number > 0 or job.unreadable is not None
    return job.delivery is Delivery.AT_MOST_ONCE and may_have_begun


def _cancelled(cancel: Cancel, job: StoredJob, at: Standing, now: int) -> Change | OperationVerdict:
    if at.state is State.RUNNING:
        return OperationVerdict.REQUESTED
    if cancel.occurrence is None:
        return Change(job, finished(at, State.CANCELLED, Reason.CANCELLED, now))
    if at.state is State.WAITING:
        return OperationVerdict.CONFLICT
    if cancel.occurrence.version != job.version or has_moved_on(at, cancel.seen):
        return OperationVerdict.CHANGED
    return Change(job, rearmed(at.number + 1, cancel.occurrence, job.delivery, now), is_rearmed=True)


def new_run(
    job: StoredJob, at: Standing, run_at: int, now: int, *, waits: bool, keep_attempts: bool = False
) -> Change:
    """Begin a new run. History, steps and the attempt number go on; everything else of the old run is over."""
    expires_at = None if job.expires_at is not None and job.expires_at <= now else job.expires_at
    to = Standing(
        State.WAITING if waits else runnable_state(run_at, now),
        run_at,
        at.number,
        at.attempts if keep_attempts else 0,
        at.number + 1,
        begin_by=expires_at,
        delivery=at.delivery,
    )
    return Change(replace(job, run_at=run_at, expires_at=expires_at), to, is_new_run=True)


_COLUMNS = ("queue", "task", "delivery", "priority", "run_at", "payload", "expires_at", "meta")
_OPTIONS = ("max_attempts", "timeout", "tags")


def _updated(
    update: Update, job: StoredJob, at: Standing, now: int, *, has_begun: bool
) -> Change | OperationVerdict:
    if update.version not in (None, job.version) or has_moved_on(at, update.seen):
        return OperationVerdict.CHANGED
    if update.queue not in (UNSET, job.queue) and job.idempotency_key is not None:
        return OperationVerdict.CONFLICT
    if at.state is State.RUNNING:  # its place and due time are the settle's to set
        update = replace(update, run_at=UNSET, due_at=UNSET, expires_at=UNSET, at_due=False)
        return Change(_updated_job(update, job), at)
    due_at = at.due_at
    if update.due_at is not UNSET and at.state is not State.WAITING:
        due_at = update.due_at
    if update.at_due and due_at is not None:
        update = replace(update, run_at=due_at)
    run_at = at.run_at if update.run_at is UNSET else update.run_at
    to = replace(
        at,
        state=at.state if at.state is State.WAITING else runnable_state(run_at, now),
        run_at=run_at,
        due_at=due_at,
        delivery=at.delivery if update.delivery is UNSET else update.delivery,
        # An expiry concerns only the first begin of a run.
        begin_by=at.begin_by if update.expires_at is UNSET or has_begun else update.expires_at,
        aside=None,  # what it was put aside for may hold no longer: the next worker that meets it looks again
    )
    return Change(_updated_job(update, job), to)


def _updated_job(update: Update, job: StoredJob) -> StoredJob:
    changed_options = _given(update, _OPTIONS)
    if update.retry is not UNSET:
        changed_options["retry"] = UNSET if update.retry == DECLARED else update.retry
    options = job.options if update.options is UNSET else update.options
    # Options that cannot be read stay as they are, unless the update says what shall stand there.
    says_options = changed_options or update.options is not UNSET
    return replace(
        job,
        **_given(update, _COLUMNS),
        options=replace(options, **changed_options),
        unreadable_options=None if says_options else job.unreadable_options,
        version=job.version + 1,
    )


def _given(update: Update, names: tuple[str, ...]) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(update, name)) is not UNSET}
