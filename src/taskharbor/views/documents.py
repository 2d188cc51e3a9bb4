"""The documents that the REST interface returns and that `--json` prints.

Each document is one type. It is built from what the client returns, msgspec encodes it, and the OpenAPI document
describes it, so that what is described is what is served. What callers send is in `taskharbor.server.requests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from taskharbor.client.audit import AuditEntry
from taskharbor.client.handle import Attempt, Job, Step
from taskharbor.client.queues import Queue
from taskharbor.client.retry_metrics import RetryMetrics
from taskharbor.client.schedule import Schedule
from taskharbor.client.stats import Point
from taskharbor.clock import MAX_SECONDS, from_micros
from taskharbor.codec import decode_payload, decode_result
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.drivers.contract.rollups import Period
from taskharbor.errors import PayloadError
from taskharbor.records import (
    AttemptStatus,
    Delivery,
    JobRecord,
    Misfire,
    Reason,
    State,
    TokenRecord,
)
from taskharbor.rules.display import shown_payload
from taskharbor.rules.retry import MAX_ATTEMPTS
from taskharbor.workflow.handle import WorkflowState

if TYPE_CHECKING:
    from taskharbor.workflow import Workflow

PATTERNS_MAX = 100

Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Time = Annotated[datetime, Meta(tz=True)]
Delay = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description="Seconds.")]
Patterns = Annotated[
    list[Annotated[str, Meta(min_length=1)]],
    Meta(max_length=PATTERNS_MAX, description="Texts that the error's text or type name contains."),
]
TypeNames = Annotated[
    list[
        Annotated[
            str, Meta(pattern=r"^[^:\x00-\x20]+:[^:\x00-\x20]+(?!\n)$", examples=["builtins:PermissionError"])
        ]
    ],
    Meta(max_length=PATTERNS_MAX, description="Types of errors, or bases of them, as module:name."),
]


class Document(Struct, rename="camel"):
    """A document with names in camelCase. Later versions may add fields."""

    @classmethod
    def of(cls, source: Any, **others: Any) -> Self:
        """Build the document of `source`: each field is its attribute of that name, unless `others` has the field."""
        fields = {name: getattr(source, name) for name in cls.__struct_fields__ if name not in others}
        return cls(**fields, **others)


class RetryDocument(Document, forbid_unknown_fields=True):
    """How often a failed job is retried, after what delay, and after which errors.

    It has the same form in requests and in responses. A field that is left out is as in the default policy.
    """

    max_attempts: Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS, description="0: no limit of its own.")] = 25
    initial: Delay = 0.2
    maximum: Delay | UnsetType = UNSET
    multiplier: Annotated[float, Meta(ge=1)] = 2.0
    jitter: (
        Annotated[float, Meta(ge=0, le=1, description="A fraction of the delay.")] | Literal["full"] | None
    ) = 0.2
    retry_on: Patterns = []
    never_retry_on: Patterns = []
    retry_on_types: TypeNames = []
    never_retry_on_types: TypeNames = []


Retry = Annotated[
    RetryDocument | Literal["none"] | None,
    Meta(description="A policy; `none` for no retries at all; null if the task's declaration decides."),
]


def retry_of(stored: Mapping[str, Any] | None | UnsetType) -> RetryDocument | Literal["none"] | None:
    """Return the document of a stored policy: None if the job has none, "none" if the job refuses retries."""
    if isinstance(stored, UnsetType):
        return None
    if stored is None:
        return "none"
    known = {name: stored[name] for name in RetryDocument.__struct_fields__ if name in stored}
    return RetryDocument(**{"jitter": None} | known)


# -- jobs ------------------------------------------------------------------------------------------


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


class RetryMetricsDocument(Document):
    """How the current run of a job was retried."""

    task: str
    total_attempts: Annotated[int, Meta(description="Attempts that failed or succeeded.")]
    successful_at: Annotated[int, Meta(description="Which of them succeeded, from 1.")] | None
    last_error: str | None
    backoff_seconds: Annotated[float, Meta(description="The delays granted before retries, in all.")]
    summary: Annotated[str, Meta(description="All of it as one line, for a log.")]

    @classmethod
    def of(cls, source: RetryMetrics, **others: Any) -> Self:
        return super().of(source, summary=str(source), **others)


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


# -- queues, schedules, workflows, workers -----------------------------------------------------------


class QueueDocument(Document):
    """A queue in its current state."""

    name: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    oldest_ready_at: Time | None
    oldest_ready_seconds: float | None
    paused_by: Annotated[str, Meta(description="Who paused it, if that is known.")] | None
    paused_since: Time | None

    @classmethod
    def of(cls, source: Queue, **others: Any) -> Self:
        age = source.oldest_ready_age
        return super().of(source, oldest_ready_seconds=None if age is None else age.total_seconds(), **others)


class QueueList(Document):
    """Every queue that has runnable or running jobs, or is paused."""

    items: list[QueueDocument]
    next_cursor: None


class QueueFlag(Document):
    """Whether a queue is paused."""

    name: str
    paused: bool


class TaskDocument(Document):
    """A task that a live worker knows, or a task or tag whose jobs are held."""

    kind: HoldKind
    name: str
    held: bool
    held_by: Annotated[str, Meta(description="Who asked for the hold, if that is known.")] | None
    held_since: Time | None
    workers: Annotated[list[str], Meta(description="The live workers that know the task.")]


class TaskList(Document):
    """The tasks that live workers know, and every task or tag that is held."""

    items: list[TaskDocument]
    next_cursor: None


class HoldFlag(Document):
    """Whether the jobs of a task or a tag are held."""

    kind: HoldKind
    name: str
    held: bool


class ScheduleDocument(Document):
    """A schedule in its current state."""

    name: str
    application: str
    id: Annotated[str, Meta(description="The id of its job, whose history is at /jobs/{id}/history.")]
    task: str
    payload: dict[str, Any]
    queue: str
    priority: int
    schedule: str
    timezone: str
    misfire: Misfire
    misfire_grace: float
    dead_letter: bool
    paused: bool
    declared: bool
    orphaned: bool | None
    state: State
    due_at: Time | None
    next_run_at: Time | None
    attempts: int
    last_status: AttemptStatus | None
    last_finished_at: Time | None
    last_error: str | None
    max_attempts: int | None
    timeout: float | None
    retry: Retry
    delivery: Delivery
    correlation_id: str | None
    tags: list[str]
    meta: dict[str, str]
    failure_task: (
        Annotated[str, Meta(description="The task that is enqueued when a run of it fails for good.")] | None
    )

    @classmethod
    def of(cls, source: Schedule, **others: Any) -> Self:
        delivery = source.delivery or Delivery.AT_LEAST_ONCE
        return super().of(source, retry=retry_of(source.retry), delivery=delivery, **others)


class ScheduleList(Document):
    """Schedules, by name."""

    items: list[ScheduleDocument]
    next_cursor: None


class WorkflowDocument(Document):
    """A workflow in its current state: how many of its jobs are in which state."""

    id: Uuid
    state: WorkflowState
    total: int
    succeeded: int
    dead: int
    cancelled: int
    waiting: int
    active: int
    on_failure: Literal["wait", "cancel"]
    idempotency_key: str | None
    enqueued_at: Time
    shape: Annotated[
        Any,
        Meta(description="How it was composed: chains, groups and chords of the indexes of its jobs."),
    ]

    @classmethod
    def of(cls, source: Workflow, **others: Any) -> Self:
        return super().of(source, total=source.progress.total, **source.counts, **others)


class WorkflowPage(Document):
    """Workflows, newest first. A page may be short; at the end, nextCursor is null."""

    items: list[WorkflowDocument]
    next_cursor: str | None


class RunningDocument(Document):
    """A job that a worker has been executing for longer than a heartbeat."""

    id: Uuid
    task: str
    started_at: Time
    seconds: float
    overdue_seconds: Annotated[float, Meta(description="How long ago its timeout passed.")] | None
    cancel_requested: bool


class WorkerDocument(Document):
    """A worker that is running or holds leases. If only its leases are known, many fields are null."""

    worker: str
    open: Annotated[int, Meta(description="Jobs that it holds and has not settled.")]
    expires_at: Annotated[Time, Meta(description="When its last lease expires.")] | None
    expired: bool
    running: list[RunningDocument]
    slots: int | None
    queues: Annotated[list[str], Meta(description="The queues that it serves; null: all.")] | None
    host: str | None
    pid: int | None
    started_at: Time | None
    supervisor: str | None
    version: Annotated[str, Meta(description="Of its application.")] | None
    memory_mib: Annotated[int, Meta(description="Resident memory of its process.")] | None
    loop_lag_seconds: (
        Annotated[float, Meta(description="The longest that its event loop ran late in the last seconds.")]
        | None
    )


class Stats(Document):
    """Counts of jobs by state, the queues, and what the workers do."""

    counts: dict[State, int]
    queues: list[QueueDocument]
    workers: list[WorkerDocument]


# -- roll-ups ----------------------------------------------------------------------------------------

ROLLUPS_NOTE = (
    "not exact counts: workers write them every ten seconds, and one that is killed loses its last ones"
)


class TimesDocument(Document):
    """Times in seconds. Percentiles are interpolated in buckets; null without a time."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class PointDocument(Document):
    """What workers counted in one minute or hour: attempts by outcome, and how long jobs waited and ran."""

    at: Annotated[Time, Meta(description="Its begin.")]
    seconds: Annotated[int, Meta(description="Its length.")]
    enqueued: Annotated[int, Meta(description="Jobs claimed for the first time.")]
    started: int
    succeeded: int
    failed: int
    retried: int
    dead: int
    lost: int
    cancelled: int
    wait: TimesDocument
    duration: TimesDocument

    @classmethod
    def of(cls, source: Point, **others: Any) -> Self:
        times = {name: TimesDocument.of(getattr(source, name)) for name in ("wait", "duration")}
        return super().of(source, **times, **others)


class Series(Document):
    """What workers counted, by minute or hour. These are not exact counts."""

    items: list[PointDocument]
    total: Annotated[PointDocument, Meta(description="All of these periods together.")]
    step: Period
    queue: str | None
    task: str | None
    note: Annotated[str, Meta(examples=[ROLLUPS_NOTE])] = ROLLUPS_NOTE
    next_cursor: None = None


class QueueDemandDocument(Document):
    """How many slots a queue needs, and what that follows from."""

    queue: str
    slots: int
    ready: int
    running: int
    oldest_ready_seconds: float
    arrivals_per_second: Annotated[float, Meta(description="First claims and retries, from the roll-ups.")]
    mean_seconds: Annotated[float, Meta(description="The mean duration, from the roll-ups.")] | None
    paused: bool


class Autoscale(Document):
    """How many slots are needed so that no ready job waits for longer than an age."""

    slots: Annotated[int, Meta(description="Of all queues below together.")]
    age: Annotated[float, Meta(description="Seconds.")]
    queues: list[QueueDemandDocument]
    note: Annotated[str, Meta(examples=[ROLLUPS_NOTE])] = f"arrivals and durations are {ROLLUPS_NOTE}"


# -- the server itself -------------------------------------------------------------------------------


class Health(Document):
    """The server responds."""

    status: Literal["ok"]


class Ready(Document):
    """The store can be reached, and its schema is right."""

    status: Literal["ready"]


class ErrorBody(Document):
    """What went wrong."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorDocument(Document):
    """The shape of every error."""

    error: ErrorBody


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


class WorkflowWithJobs(WorkflowDocument):
    """A workflow with its jobs."""

    jobs: list[JobDocument]


class TokenDocument(Document):
    """What the store keeps of a token."""

    id: str
    name: str
    role: str
    created_at: Time | None
    expires_at: Time | None

    @classmethod
    def of(cls, source: TokenRecord, **others: Any) -> Self:
        created_at, expires_at = instant(source.created_at), instant(source.expires_at)
        return super().of(source, created_at=created_at, expires_at=expires_at, **others)


class NewToken(TokenDocument):
    """A token as it is shown once."""

    token: str


class TokenList(Document):
    """Tokens, without the tokens themselves."""

    items: list[TokenDocument]
    next_cursor: None


def instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
