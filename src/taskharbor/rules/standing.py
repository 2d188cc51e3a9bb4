"""Where a job stands: what every store knows of it, and how a reader sees it."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct

from taskharbor.clock import to_micros
from taskharbor.records import (
    NO_OPTIONS,
    AttemptStatus,
    Delivery,
    JobRecord,
    NewJob,
    Options,
    Progress,
    Reason,
    State,
    encode_options,
)
from taskharbor.rules.fingerprint import of_kind
from taskharbor.rules.lifecycle import TERMINAL

# The place of a paused schedule: no worker claims it there.
PARKED_AT = to_micros(datetime(9999, 1, 1, tzinfo=UTC))


class StoredJob(Struct, frozen=True, gc=False):
    """A job as it was enqueued, with the changes that operators made to it since."""

    id: str
    queue: str
    task: str
    payload: str
    priority: int
    run_at: int
    enqueued_at: int
    expires_at: int | None = None
    idempotency_key: str | None = None
    delivery: Delivery | None = None
    options: Options = NO_OPTIONS
    version: int = 1
    unreadable_options: str | None = None  # the stored text; `options` then says nothing
    meta: str | None = None  # the stored text, which may be unreadable
    action_id: str | None = None  # of the latest action that changed it; no change of its row changes this

    @property
    def options_text(self) -> str | None:
        """The options as a store keeps them. A text that cannot be read stays as it is."""
        return self.unreadable_options or encode_options(self.options)


class Standing(Struct, frozen=True, gc=False):
    """Where a job stands in its current run, and all that its place knows of it."""

    state: State
    run_at: int  # its place in the order; of a finished job, when it was to run
    number: int = 0  # of the latest attempt
    attempts: int = 0  # failures in the run
    first_number: int = 1  # of the run
    due_at: int | None = None
    begin_by: int | None = None  # its expires_at, for as long as the run has not begun
    delivery: Delivery | None = None
    suspect: bool = False
    reason: Reason | None = None
    finished_at: int | None = None
    aside: str | None = None  # the label of its place, if that is not the ordinary one

    @property
    def is_finished(self) -> bool:
        return self.state in TERMINAL

    @property
    def next_at(self) -> int | None:
        """Where the job goes on; None if it does not."""
        return None if self.is_finished else self.run_at


class LatestAttempt(Struct, frozen=True, gc=False):
    """What a reader sees of a job's latest attempt."""

    status: AttemptStatus | None  # None: the store holds a word that is none
    finished_at: int
    error: str | None = None
    result: str | None = None
    fingerprint: str | None = None
    code_version: str | None = None


class Holder(Struct, frozen=True, gc=False):
    """The lease over a running job."""

    worker: str
    expires_at: int
    expired: bool
    cancel_requested: bool


def runnable_state(run_at: int, now: int) -> State:
    """A job that waits for no other is scheduled until its time comes, and ready from then on."""
    return State.READY if run_at <= now else State.SCHEDULED


def claimed(at: Standing) -> Standing:
    """The next attempt of the same run. A suspect that is claimed stands among the running like any other."""
    return Standing(
        State.RUNNING,
        at.run_at,
        at.number + 1,
        at.attempts,
        at.first_number,
        at.due_at,
        at.begin_by,
        at.delivery,
    )


def first_run_at(job: NewJob, now: int) -> int:
    """When a new job may first be claimed: after its delay, at its run_at, or at once."""
    if job.delay is not None:
        return now + job.delay
    return now if job.run_at is None else job.run_at


def stored_job(job: NewJob, now: int) -> StoredJob:
    return StoredJob(
        job.id, job.queue, job.task, job.payload, job.priority, first_run_at(job, now), now, job.expires_at,
        job.idempotency_key, job.delivery, job.options, meta=job.meta,
    )  # fmt: skip


def job_record(
    job: StoredJob,
    at: Standing,
    *,
    latest: LatestAttempt | None,
    holder: Holder | None,
    depends_on: tuple[str, ...],
    progress: Progress | None,
    unreadable: str | None = None,
) -> JobRecord:
    """Everything that a reader may see of a job."""
    return JobRecord(
        id=job.id,
        task=job.task,
        payload=job.payload,
        queue=job.queue,
        priority=job.priority,
        state=at.state,
        enqueued_at=job.enqueued_at,
        run_at=job.run_at if at.is_finished else at.run_at,
        attempts=at.attempts,
        number=at.number,
        due_at=at.due_at,
        expires_at=job.expires_at,
        idempotency_key=job.idempotency_key,
        delivery=at.delivery,
        options=job.options,
        depends_on=depends_on,
        version=job.version,
        suspect=at.suspect,
        worker=holder.worker if holder else None,
        lease_expires_at=holder.expires_at if holder else None,
        lease_expired=holder is not None and holder.expired,
        cancel_requested=holder is not None and holder.cancel_requested,
        reason=at.reason,
        finished_at=at.finished_at,
        error=latest.error if latest else None,
        last_status=latest.status if latest else None,
        last_finished_at=latest.finished_at if latest else None,
        result=latest.result if latest and at.state is State.SUCCEEDED else None,
        progress=progress,
        unreadable_options=job.unreadable_options,
        unreadable=unreadable,
        meta=job.meta,
        fingerprint=shown_fingerprint(job.task, at, latest.fingerprint if latest else None),
        aside=at.aside,
        action_id=job.action_id,
        code_version=latest.code_version if latest else None,
    )


def shown_fingerprint(task: str, at: Standing, latest: str | None) -> str | None:
    """Return what a reader sees: the latest attempt's; of a dead job without one, that of its task and reason."""
    return of_kind(task, at.reason) if latest is None and at.state is State.DEAD else latest
