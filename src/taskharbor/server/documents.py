"""The documents of the interface, as types: what is sent is checked against them, and OpenAPI describes them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from taskharbor.client.filters import PAGE_MAX
from taskharbor.clock import MAX_SECONDS
from taskharbor.codec import KEY_LIMIT, NAME_LIMIT
from taskharbor.records import PRIORITY_MAX, PRIORITY_MIN, Delivery, Misfire, Reason, State
from taskharbor.rules.retry import MAX_ATTEMPTS
from taskharbor.workflow.handle import WorkflowState

PATTERNS_MAX = 100

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT)]
Key = Annotated[str, Meta(min_length=1, max_length=KEY_LIMIT)]
# As text, because not every instant that the format knows is one here: there is no year 0 and no second 60.
Instant = Annotated[
    str, Meta(max_length=40, extra_json_schema={"format": "date-time"}, examples=["2026-01-31T12:00:00Z"])
]
Priority = Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX, description="Higher runs first.")]
Attempts = Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000, description="Seconds.")]
Tags = Annotated[list[Name], Meta(max_length=32)]
Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
WorkflowId = Annotated[str, Meta(description="The id of a workflow.", extra_json_schema={"format": "uuid"})]
Payload = Annotated[dict[str, Any], Meta(description="The task's arguments, by parameter name.")]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="At most so many.")]
Cursor = Annotated[str, Meta(max_length=64, description="The nextCursor of the page before.")]
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
Status = Literal["SUCCESS", "FAILED", "TIMED_OUT", "LOST", "CANCELLED", "RELEASED", "SLEPT"]


class Given(Struct, rename="camel", forbid_unknown_fields=True):
    """What a caller sends: a field that nobody knows is a mistake."""


class Shown(Struct, rename="camel"):
    """What is answered; later versions may add fields."""


# -- what is sent ----------------------------------------------------------------------------------


class RetryDocument(Given):
    """How often a failed job is tried again, after what delay, and after which errors.

    The same when it is sent and when it is shown. What is left out is as in the default policy.
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
    Meta(description="A policy; `none` for no retries at all; null where the task's declaration decides."),
]


class NewTaskJob(Given):
    """A job for a task. What is left out is as the task declares it."""

    task: Name
    payload: Payload | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    run_at: Instant | None | UnsetType = UNSET
    delay: Annotated[float, Meta(ge=0, le=3_153_600_000)] | None | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    max_retries: Attempts | UnsetType = UNSET
    timeout: Seconds | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    expires_at: Instant | None | UnsetType = UNSET
    idempotency_key: Key | None | UnsetType = UNSET
    delivery: Delivery | UnsetType = UNSET
    correlation_id: Name | None | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    id: Uuid | None | UnsetType = UNSET


class JobChanges(Given):
    """What to change of a job that is neither running nor finished; what is left out stays."""

    payload: Payload | UnsetType = UNSET
    run_at: Instant | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    max_retries: Attempts | UnsetType = UNSET
    timeout: Seconds | None | UnsetType = UNSET
    expires_at: Instant | None | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET


class RetryRequest(Given):
    """A new run of a dead or cancelled job."""

    run_at: Instant | None = None
    force: Annotated[bool, Meta(description="Also an at_most_once job that may have been executed.")] = False


class WorkflowRetryRequest(Given):
    """A new run of what is dead or cancelled in a workflow."""

    force: Annotated[bool, Meta(description="Also at_most_once members that may have been executed.")] = False


class RequeueRequest(Given):
    """A new run of a dead job."""

    run_at: Instant | None = None
    reset_attempts: bool = True
    force: Annotated[bool, Meta(description="Also an at_most_once job that may have been executed.")] = False


class DeadFilter(Given):
    """Which dead jobs; all of them, if nothing is given."""

    queue: Name | None = None
    task: Name | None = None
    tag: Name | None = None


class RequeueAllRequest(DeadFilter):
    """Which dead jobs, and when they are to run."""

    run_at: Instant | None = None
    reset_attempts: bool = True


class ScheduleFields(Given):
    """What a schedule and its jobs may be given."""

    payload: Payload | UnsetType = UNSET
    timezone: Annotated[str, Meta(max_length=64, examples=["Europe/Berlin"])] | UnsetType = UNSET
    misfire: Misfire | UnsetType = UNSET
    misfire_grace: Annotated[float, Meta(ge=0, le=31_536_000)] | UnsetType = UNSET
    dead_letter: bool | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    max_retries: Attempts | UnsetType = UNSET
    timeout: Seconds | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    delivery: Delivery | UnsetType = UNSET
    correlation_id: Name | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET


Expression = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        description="Cron with 5 fields, or 6 with seconds first, or an interval such as `@every 30s`.",
        examples=["*/10 * * * * *"],
    ),
]


class NewSchedule(ScheduleFields, kw_only=True):
    """A job that recurs."""

    name: Name
    task: Name
    schedule: Expression


class ScheduleChanges(ScheduleFields):
    """What to change of a schedule; what is left out stays."""

    task: Name | UnsetType = UNSET
    schedule: Expression | UnsetType = UNSET


# -- queries ---------------------------------------------------------------------------------------


class JobQuery(Given):
    """Which jobs."""

    state: State | UnsetType = UNSET  # not None, which `?state=null` would be taken for: every state
    queue: Name | None = None
    task: Name | None = None
    tag: Name | None = None
    workflow: WorkflowId | None = None
    cursor: Cursor | None = None
    limit: Limit = 100


class DeadQuery(Given):
    """Which dead jobs."""

    queue: Name | None = None
    task: Name | None = None
    tag: Name | None = None
    workflow: WorkflowId | None = None
    cursor: Cursor | None = None
    limit: Limit = 100


class WorkflowQuery(Given):
    """Which workflows."""

    state: WorkflowState | UnsetType = UNSET  # not None, as with jobs
    cursor: Cursor | None = None
    limit: Limit = 100


class HistoryQuery(Given):
    """How many attempts."""

    limit: Limit = 10


class ApplicationQuery(Given):
    """Whose schedules; the server's own application, if it is not given."""

    application: Name | None = None


class EventsQuery(Given):
    """Which events."""

    names: (
        Annotated[
            str,
            Meta(max_length=200, description="Names of events, separated by commas; all, if not given."),
        ]
        | None
    ) = None


# -- what is answered ------------------------------------------------------------------------------


class ProgressDocument(Shown):
    """How far a running handler says it is."""

    fraction: float
    message: str


class JobDocument(Shown):
    """A job as it stands. Secrets of HTTP jobs are shown as `***`."""

    id: Uuid
    task: str
    queue: str
    state: State
    priority: int
    payload: dict[str, Any]
    attempts: Annotated[int, Meta(description="Failures in the current run.")]
    number: Annotated[int, Meta(description="Of the latest attempt; rises on every claim.")]
    max_attempts: int | None
    timeout: float | None
    retry: Retry
    correlation_id: str | None
    tags: list[str]
    workflow: Annotated[str, Meta(description="The id of the workflow that it is a member of.")] | None
    delivery: Delivery
    idempotency_key: str | None
    depends_on: list[str]
    enqueued_at: datetime
    run_at: datetime
    due_at: Annotated[datetime, Meta(description="Of the occurrence, for a recurring job.")] | None
    schedule: Annotated[str, Meta(description="Its name, for a recurring job.")] | None
    expires_at: datetime | None
    finished_at: datetime | None
    reason: Reason | None
    error: str | None
    result: Any
    progress: ProgressDocument | None
    worker: str | None
    lease_expires_at: datetime | None
    lease_expired: bool
    cancel_requested: bool
    version: int
    options_unreadable: Annotated[
        str | UnsetType,
        Meta(description="Only where a newer version wrote options that cannot be read here."),
    ] = UNSET
    unreadable: Annotated[
        dict[str, Any] | UnsetType,
        Meta(
            description="Only where stored values cannot be what they should: those, by name. Fields have stand-ins."
        ),
    ] = UNSET


class JobPage(Shown):
    """Jobs, newest first. A page may be short; the end is a nextCursor of null."""

    items: list[JobDocument]
    next_cursor: str | None


class AttemptDocument(Shown):
    """One execution of a job."""

    job_id: Uuid
    number: int
    status: Status
    retry_count: Annotated[int, Meta(description="Failures in the run when it began: 0 for the first.")]
    execution_time: Annotated[datetime, Meta(description="When it began, or was handed back unbegun.")]
    execution_duration: Annotated[float, Meta(description="Seconds.")] | None
    error_message: str | None
    worker: str
    started_at: datetime | None
    finished_at: datetime
    traceback: str | None
    detail: str | None
    outlived: bool


class History(Shown):
    """A job's attempts, newest first."""

    items: list[AttemptDocument]
    next_cursor: None


class Requeued(Shown):
    """How many jobs were requeued."""

    requeued: int


class Discarded(Shown):
    """How many jobs were discarded."""

    discarded: int


class QueueDocument(Shown):
    """A queue as it stands."""

    name: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    oldest_ready_at: datetime | None
    oldest_ready_seconds: float | None


class QueueList(Shown):
    """Every queue that holds runnable or running jobs, or is paused."""

    items: list[QueueDocument]
    next_cursor: None


class QueueFlag(Shown):
    """Whether a queue is paused."""

    name: str
    paused: bool


class ScheduleDocument(Shown):
    """A schedule as it stands."""

    name: str
    application: str
    id: Annotated[str, Meta(description="Of its job: its history is at /jobs/{id}/history.")]
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
    due_at: datetime | None
    next_run_at: datetime | None
    attempts: int
    last_status: str | None
    last_finished_at: datetime | None
    last_error: str | None
    max_attempts: int | None
    timeout: float | None
    retry: Retry
    delivery: Delivery
    correlation_id: str | None
    tags: list[str]


class ScheduleList(Shown):
    """Schedules, by name."""

    items: list[ScheduleDocument]
    next_cursor: None


class WorkflowDocument(Shown):
    """A workflow as it stands: how many of its jobs are where."""

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
    enqueued_at: datetime
    shape: Annotated[
        Any,
        Meta(description="How it was put together: chains, groups and chords of the indexes of its jobs."),
    ]


class WorkflowPage(Shown):
    """Workflows, newest first. A page may be short; the end is a nextCursor of null."""

    items: list[WorkflowDocument]
    next_cursor: str | None


class RunningDocument(Shown):
    """A job that a worker has been executing for longer than a heartbeat."""

    id: Uuid
    task: str
    started_at: datetime
    seconds: float
    overdue_seconds: Annotated[float, Meta(description="For how long it should have ended.")] | None
    cancel_requested: bool


class WorkerDocument(Shown):
    """A worker that is there, or holds leases. Of one that only its leases are known by, much is null."""

    worker: str
    open: Annotated[int, Meta(description="Jobs that it holds and has not settled.")]
    expires_at: Annotated[datetime, Meta(description="Of its last lease.")] | None
    expired: bool
    running: list[RunningDocument]
    slots: int | None
    queues: Annotated[list[str], Meta(description="Those that it serves; null: every queue.")] | None
    host: str | None
    pid: int | None
    started_at: datetime | None
    supervisor: str | None


class Stats(Shown):
    """Counts, queues and what the workers do."""

    counts: dict[State, int]
    queues: list[QueueDocument]
    workers: list[WorkerDocument]


class Health(Shown):
    """The server answers."""

    status: Literal["ok"]


class Ready(Shown):
    """The store can be reached, and its schema is right."""

    status: Literal["ready"]


class ErrorBody(Shown):
    """What went wrong."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorDocument(Shown):
    """The shape of every error."""

    error: ErrorBody
