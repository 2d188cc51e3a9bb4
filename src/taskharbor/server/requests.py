"""What callers send, as types: requests are checked against them, and the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from taskharbor.client.filters import IDS_MAX, PAGE_MAX
from taskharbor.codec import KEY_LIMIT, NAME_LIMIT
from taskharbor.records import PRIORITY_MAX, PRIORITY_MIN, Delivery, Misfire, Reason, State
from taskharbor.rules.fingerprint import ERROR_SHOWN
from taskharbor.rules.meta import ENTRIES_MAX
from taskharbor.rules.replaying import BRAKE
from taskharbor.rules.retry import MAX_ATTEMPTS
from taskharbor.schedule import EXPRESSION_MAX
from taskharbor.views.documents import Uuid
from taskharbor.views.retry_documents import Retry
from taskharbor.workflow.handle import WorkflowState

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT)]
Key = Annotated[str, Meta(min_length=1, max_length=KEY_LIMIT)]
# A text, because the JSON format knows instants that are invalid here: there is no year 0 and no second 60.
Instant = Annotated[
    str, Meta(max_length=40, extra_json_schema={"format": "date-time"}, examples=["2026-01-31T12:00:00Z"])
]
Priority = Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX, description="Higher runs first.")]
Attempts = Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000, description="Seconds.")]
Tags = Annotated[list[Name], Meta(max_length=32)]
MetaEntries = Annotated[
    dict[str, str],
    Meta(
        max_length=ENTRIES_MAX,
        description="Text that travels with the job: operators see it, and children inherit it. No secrets.",
        examples=[{"tenant": "acme"}],
    ),
]
WorkflowId = Annotated[str, Meta(description="The id of a workflow.", extra_json_schema={"format": "uuid"})]
Payload = Annotated[dict[str, Any], Meta(description="The task's arguments, by parameter name.")]
ErrorText = Annotated[
    str,
    Meta(min_length=1, max_length=ERROR_SHOWN, description="A part of the latest error, near its beginning."),
]
Fingerprint = Annotated[
    str, Meta(pattern="^[0-9a-fA-F]{16}$", description="Of a group of dead jobs, as /dlq/groups lists them.")
]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Maximum number of items.")]
Cursor = Annotated[str, Meta(max_length=4_096, description="The nextCursor of the previous page.")]


class Input(Struct, rename="camel", forbid_unknown_fields=True):
    """What a caller sends. An unknown field is refused, because it is a mistake."""


# -- bodies ----------------------------------------------------------------------------------------


class NewFailureTask(Input, kw_only=True):
    """The task of the job that is enqueued when a job dies. A field that is left out is as the task declares it."""

    task: Name
    payload: Payload | UnsetType = UNSET
    parameter: (
        Annotated[
            Name,
            Meta(
                description="Takes what died: an object with workflow, job, task, reason and error; null for none. "
                "Left out, it is the first one that the payload lacks, if the server knows the task's code."
            ),
        ]
        | None
        | UnsetType
    ) = UNSET
    queue: Name | UnsetType = UNSET
    delay: Annotated[float, Meta(ge=0, le=3_153_600_000)] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    max_retries: Attempts | UnsetType = UNSET
    timeout: Seconds | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    delivery: Delivery | UnsetType = UNSET
    correlation_id: Name | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    meta: MetaEntries | UnsetType = UNSET


FailureTaskInput = Annotated[
    NewFailureTask,
    Meta(description="Enqueued with the job's death; null for none although the task declares one."),
]


class NewTaskJob(Input):
    """A job for a task. A field that is left out is as the task declares it."""

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
    expires_in: Seconds | None | UnsetType = UNSET
    idempotency_key: Key | None | UnsetType = UNSET
    delivery: Delivery | UnsetType = UNSET
    correlation_id: Name | None | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    meta: MetaEntries | UnsetType = UNSET
    failure_task: FailureTaskInput | None | UnsetType = UNSET
    id: Uuid | None | UnsetType = UNSET


class BulkChanges(Input):
    """Changes of jobs that are neither running nor finished. A field that is left out stays."""

    run_at: Instant | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    max_retries: Attempts | UnsetType = UNSET
    timeout: Seconds | None | UnsetType = UNSET
    expires_at: Instant | None | UnsetType = UNSET
    expires_in: Seconds | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET


class JobChanges(BulkChanges):
    """Changes of a job that is neither running nor finished. A field that is left out stays."""

    payload: Payload | UnsetType = UNSET


class RetryRequest(Input):
    """A new run of a dead or cancelled job."""

    run_at: Instant | None = None
    force: Annotated[bool, Meta(description="Also an at_most_once job that may have been executed.")] = False


class WorkflowRetryRequest(Input):
    """A new run of the dead and cancelled jobs of a workflow."""

    force: Annotated[bool, Meta(description="Also at_most_once members that may have been executed.")] = False


class RequeueRequest(RetryRequest):
    """A new run of a dead job."""

    reset_attempts: bool = True


PayloadValues = Annotated[
    dict[str, str | int | float | bool | None],
    Meta(description="Values of the payload by their paths.", examples=[{"user.id": 42}]),
]
PayloadText = Annotated[
    str,
    Meta(
        max_length=20_000,
        description="Values of the payload by their paths, as a JSON object.",
        examples=['{"user.id": 42}'],
    ),
]


class Selection(Input):
    """What every list and every bulk operation can select jobs by; a field that is left out selects any."""

    queue: Name | None = None
    task: Name | None = None
    tag: Name | None = None
    workflow: WorkflowId | None = None
    reason: Reason | UnsetType = UNSET  # not None: `?reason=null` would mean every reason
    error: ErrorText | None = None
    fingerprint: Fingerprint | None = None
    correlation_id: Name | None = None
    enqueued_after: Instant | None = None
    enqueued_before: Instant | None = None
    finished_after: Instant | None = None
    finished_before: Instant | None = None


class DeadFilter(Selection):
    """Which dead jobs; all of them if every field is left out."""

    payload: PayloadValues | None = None
    ids: Annotated[list[Uuid], Meta(max_length=IDS_MAX)] | None = None
    dry_run: Annotated[bool, Meta(description="Only say how many jobs it would act on.")] = False


class BulkFilter(DeadFilter):
    """Which jobs; all of them if every field is left out."""

    state: State | UnsetType = UNSET


class UpdateAllRequest(BulkFilter, kw_only=True):
    """Which jobs to change, and how."""

    changes: BulkChanges


class BulkRequest(Selection, kw_only=True):
    """Which jobs to act on in the background, and what to do to them."""

    state: State | UnsetType = UNSET
    payload: PayloadValues | None = None
    ids: Annotated[list[Uuid], Meta(max_length=IDS_MAX)] | None = None
    verb: Literal["requeue", "discard", "cancel", "delete"]
    everything: Annotated[
        bool, Meta(description="Act on all jobs of the store; refused beside a filter.")
    ] = False
    on_queue: Annotated[Name, Meta(description="The queue of the job that does it.")] | None = None


class RequeueAllRequest(DeadFilter):
    """Which dead jobs to requeue, and when they run."""

    run_at: Instant | None = None
    reset_attempts: bool = True


class ReplayRequest(Selection):
    """Which dead jobs to replay, and when to stop."""

    payload: PayloadValues | None = None
    ids: Annotated[list[Uuid], Meta(max_length=IDS_MAX)] | None = None
    brake: Annotated[
        float, Meta(ge=0, le=1, description="The share of a slice that may fail again in the same way.")
    ] = BRAKE
    on_queue: Annotated[Name, Meta(description="The queue of the job that replays them.")] | None = None


class ScheduleFields(Input):
    """The options of a schedule and of its jobs."""

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
    meta: MetaEntries | UnsetType = UNSET
    failure_task: FailureTaskInput | None | UnsetType = UNSET


Expression = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=EXPRESSION_MAX,
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
    """Changes of a schedule. A field that is left out stays."""

    task: Name | UnsetType = UNSET
    schedule: Expression | UnsetType = UNSET


# -- queries ---------------------------------------------------------------------------------------


class SelectionQuery(Selection):
    """The same in a query, where a value is text."""

    payload: PayloadText | None = None


class DeadQuery(SelectionQuery):
    """Which dead jobs."""

    cursor: Cursor | None = None
    limit: Limit = 100


class JobQuery(DeadQuery):
    """Which jobs."""

    state: State | UnsetType = UNSET  # not None: `?state=null` would mean every state


class DeadCountQuery(SelectionQuery):
    """Which dead jobs to count."""


class GroupQuery(SelectionQuery):
    """Which dead jobs, and how many groups of them."""

    limit: Limit = 100


class JobCountQuery(SelectionQuery):
    """Which jobs to count."""

    state: State | UnsetType = UNSET  # not None, as with jobs


class WorkflowQuery(Input):
    """Which workflows."""

    state: WorkflowState | UnsetType = UNSET  # not None, as with jobs
    cursor: Cursor | None = None
    limit: Limit = 100


class AuditQuery(Input):
    """Which actions."""

    actor: Name | None = None
    verb: Annotated[Name, Meta(description="Such as job.cancel or queue.pause.")] | None = None
    job: (
        Annotated[
            str,
            Meta(max_length=100, description="The id of a job: its actions, and the latest that changed it."),
        ]
        | None
    ) = None
    after: Instant | None = None
    before: Instant | None = None
    cursor: Cursor | None = None
    limit: Limit = 100


class HistoryQuery(Input):
    """How many attempts to return."""

    limit: Limit = 10


class ApplicationQuery(Input):
    """Whose schedules; those of the server's own application if it is left out."""

    application: Name | None = None


class SeriesQuery(Input):
    """Which periods, of which jobs."""

    queue: Name | None = None
    task: Name | None = None
    since: (
        Annotated[
            str,
            Meta(
                description="An instant. By default an hour ago for minutes, a day ago for hours.",
                examples=["2026-01-31T12:00:00Z"],
            ),
        ]
        | None
    ) = None
    step: Literal["minute", "hour"] = "minute"


class AutoscaleQuery(Input):
    """For which queue, and how long its jobs may wait."""

    queue: Annotated[Name, Meta(description="Every queue, if it is left out.")] | None = None
    age: Annotated[
        float, Meta(ge=1, le=86_400, description="Seconds that the oldest ready job should stay below.")
    ] = 30.0


class EventsQuery(Input):
    """Which events."""

    names: (
        Annotated[
            str,
            Meta(max_length=200, description="Names of events, separated by commas; all if it is left out."),
        ]
        | None
    ) = None
