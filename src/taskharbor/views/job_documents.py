"""The documents of jobs: their state, their attempts and their events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskharbor.client.audit import AuditEntry
from taskharbor.client.handle import Attempt, Job, Step
from taskharbor.codec import decode_payload, decode_result
from taskharbor.errors import PayloadError
from taskharbor.records import (
    AttemptStatus,
    Delivery,
    JobRecord,
    Reason,
    State,
)
from taskharbor.rules.display import shown_payload
from taskharbor.views.documents import Document, Time, Uuid
from taskharbor.views.retry_documents import Retry, RetryMetricsDocument, retry_of


class ProgressDocument(Document):
    """The progress that a running handler reported."""

    fraction: Annotated[float, Meta(ge=0, le=1)]
    message: str
    value: Annotated[Any, Meta(description="What the handler reported with it: any JSON, or null.")]


class LatestAction(Document):
    """Who changed a job last, how and when."""

    id: Uuid
    at: Time
    verb: Annotated[str, Meta(examples=["job.cancel"])]
    actor: str | None

    @classmethod
    def maybe(cls, source: AuditEntry | None) -> Self | None:
        return None if source is None else cls.of(source)


class JobDocument(Document):
    """A job in its current state. Secrets of HTTP jobs are shown as `***`."""

    id: Uuid
    task: str
    queue: str
    state: State
    priority: int
    payload: dict[str, Any]
    attempts: Annotated[int, Meta(description="Failures in the current run.")]
    number: Annotated[int, Meta(description="The number of the latest attempt; it rises on every claim.")]
    max_attempts: int | None
    timeout: float | None
    retry: Retry
    correlation_id: str | None
    parent: Annotated[str, Meta(description="The id of the job whose handler enqueued it.")] | None
    tags: list[str]
    meta: Annotated[dict[str, str], Meta(description="Text that it carries along, by name.")]
    workflow: Annotated[str, Meta(description="The id of the workflow that the job is a member of.")] | None
    failure_task: (
        Annotated[
            str, Meta(description="The task that is enqueued if this job dies; a workflow has its own.")
        ]
        | None
    )
    delivery: Delivery
    idempotency_key: str | None
    depends_on: list[str]
    enqueued_at: Time
    run_at: Time
    due_at: Annotated[Time, Meta(description="The time of the occurrence, for a recurring job.")] | None
    schedule: Annotated[str, Meta(description="The name of the schedule, for a recurring job.")] | None
    expires_at: Time | None
    finished_at: Time | None
    failed_at: (
        Annotated[Time, Meta(description="When it failed last in the current run, or died; else null.")]
        | None
    )
    reason: Reason | None
    error: str | None
    fingerprint: Annotated[str, Meta(description="The cause of its latest failure; see /dlq/groups.")] | None
    result: Any
    progress: ProgressDocument | None
    worker: str | None
    lease_expires_at: Time | None
    lease_expired: bool
    cancel_requested: bool
    version: int
    action_id: Annotated[str, Meta(description="The latest action that changed it.")] | None
    latest_action: Annotated[
        LatestAction | None | UnsetType,
        Meta(
            description="Only present when one job is read. Null if no action changed it, or none that is kept."
        ),
    ] = UNSET
    options_unreadable: Annotated[
        str | UnsetType,
        Meta(description="Only present if a newer version wrote options that this version cannot read."),
    ] = UNSET
    unreadable: Annotated[
        dict[str, Any] | UnsetType,
        Meta(
            description="Only present if stored values are invalid: those values, by name. "
            "The fields have placeholders."
        ),
    ] = UNSET

    @classmethod
    def of(cls, source: Job[Any], **others: Any) -> Self:
        record = source._harbor.sealing.shown_record(source.record)
        recurrence = record.options.recurrence
        return super().of(
            source,
            payload=_payload(record),
            retry=retry_of(record.options.retry),
            depends_on=record.depends_on,
            progress=None if record.progress is None else ProgressDocument.of(record.progress),
            schedule=None if recurrence is None else recurrence.name,
            result=_result(record),
            version=record.version,
            latest_action=others.pop("latest_action", UNSET),
            options_unreadable=UNSET if record.unreadable_options is None else record.unreadable_options,
            unreadable=_unreadable(record) or UNSET,
            **others,
        )


def _payload(record: JobRecord) -> dict[str, Any]:
    """Return the payload, or nothing if it cannot be read: one such job must not hide a list of others."""
    try:
        return shown_payload(record.task, decode_payload(record.payload))
    except PayloadError:
        return {}


def _result(record: JobRecord) -> Any:
    try:
        return None if record.result is None else decode_result(record.result)
    except PayloadError:
        return None


def _unreadable(record: JobRecord) -> dict[str, Any]:
    """Return the job's stored values that are invalid, by name."""
    found = {} if record.unreadable is None else msgspec.json.decode(record.unreadable)
    try:
        decode_payload(record.payload)
    except PayloadError:
        found.setdefault("payload", "***" if record.task == "http" else record.payload)
    return found


class JobPage(Document):
    """Jobs, newest first. A page may be short; at the end, nextCursor is null."""

    items: list[JobDocument]
    next_cursor: str | None
    examined: Annotated[int, Meta(description="How many jobs were looked at for it.")] = 0
    reached: (
        Annotated[
            datetime,
            Meta(
                tz=True, description="If the search ended early: when the last job that it saw was enqueued."
            ),
        ]
        | None
    ) = None


class AttemptFields(Document):
    """What every form of an attempt shows."""

    number: int
    retry_count: Annotated[int, Meta(description="Failures in the run when it began: 0 for the first.")]
    worker: str
    started_at: Time | None
    finished_at: Time
    traceback: str | None
    detail: str | None
    worker_survived: bool
    retry_delay: (
        Annotated[
            float, Meta(description="Seconds granted before the retry, if it failed and was to be retried.")
        ]
        | None
    )


class AttemptDocument(AttemptFields):
    """One execution of a job."""

    job_id: Uuid
    status: Literal["SUCCESS", "FAILED", "TIMED_OUT", "LOST", "CANCELLED", "RELEASED", "SLEPT"]
    execution_time: Annotated[
        Time, Meta(description="When it began, or when it was handed back without having begun.")
    ]
    execution_duration: Annotated[float, Meta(description="Seconds.")] | None
    error_message: str | None
    fingerprint: Annotated[str, Meta(description="The cause of its failure.")] | None
    code_version: Annotated[str, Meta(description="The version of the application that it failed in.")] | None

    @classmethod
    def of(cls, source: Attempt, **others: Any) -> Self:
        began, ended = source.started_at, source.finished_at
        return super().of(
            source,
            status="SUCCESS" if source.status is AttemptStatus.SUCCEEDED else source.status.upper(),
            execution_time=began or ended,
            execution_duration=None if began is None else (ended - began).total_seconds(),
            error_message=source.error,
            **others,
        )


class History(Document):
    """A job's attempts, newest first, and how its current run was retried."""

    items: list[AttemptDocument]
    next_cursor: None
    retry_metrics: RetryMetricsDocument


class EventDocument(Document):
    """Something that happened to a job: the data of a server-sent event."""

    job_id: str
    task: str
    queue: str
    at: Time
    attempt: int | None
    correlation_id: str | None
    meta: dict[str, str]
    worker: str | None
    error: str | None
    reason: str | None
    retry_at: Time | None


# -- only on the command line ------------------------------------------------------------------------


class HistoryEntry(AttemptFields):
    """An attempt under its job, with the names of the Python interface."""

    status: AttemptStatus
    error: str | None


class EnqueuedJob(JobDocument, kw_only=True):
    """A job, and whether it existed before it was enqueued."""

    existed: bool


class JobWithHistory(JobDocument, kw_only=True):
    """A job with its attempts."""

    history: list[HistoryEntry]


class InspectedJob(JobWithHistory, kw_only=True):
    """Everything about a job."""

    retry_metrics: RetryMetricsDocument
    steps: list[Step]
