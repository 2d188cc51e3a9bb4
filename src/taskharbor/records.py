"""The records: a job, its state, its attempts and its workflow, as stores keep them.

Instants are integers, microseconds since the Unix epoch in UTC; `taskharbor.clock` turns them into
datetimes at the surface. Ids are UUIDs as lower-case text; new ones are version 7, so that they sort by
the time they were made.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

DEFAULT_QUEUE = "default"
PRIORITY_MIN, PRIORITY_MAX = -100, 100
GROUP_NAMES_MAX = 20  # tasks, and versions, that one group of dead jobs lists
RESERVED_TAGS = "taskharbor:"  # tags of callers must not begin with this
SCHEDULE_TAG = "taskharbor:schedule"  # on the job of every schedule, so that a list of them needs no scan


class State(StrEnum):
    """The state of a job. Every store has exactly these states."""

    WAITING = "waiting"  # for the jobs it depends on
    SCHEDULED = "scheduled"  # until its run_at
    READY = "ready"
    RUNNING = "running"  # under a lease
    SUCCEEDED = "succeeded"
    DEAD = "dead"  # in the dead-letter queue
    CANCELLED = "cancelled"


# Each enumeration has its names as a Literal type as well, so that type checkers accept plain text. A test compares
# the two.
StateName = Literal["waiting", "scheduled", "ready", "running", "succeeded", "dead", "cancelled"]


class AttemptStatus(StrEnum):
    """How an attempt ended, in its row of history."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"
    RELEASED = "released"
    SLEPT = "slept"


AttemptStatusName = Literal["succeeded", "failed", "timed_out", "lost", "cancelled", "released", "slept"]


FAILURES = frozenset({AttemptStatus.FAILED, AttemptStatus.TIMED_OUT})


class Delivery(StrEnum):
    """How often a job's handler may begin in one run."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


DeliveryName = Literal["at_least_once", "at_most_once"]


class Reason(StrEnum):
    """Why a job is dead (up to `operator`) or cancelled (the rest)."""

    EXHAUSTED = "exhausted"
    UNRECOVERABLE = "unrecoverable"
    NOT_RETRYABLE = "not_retryable"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    POISON = "poison"
    INVALID_PAYLOAD = "invalid_payload"
    UNKNOWN_TASK = "unknown_task"
    UNSETTLEABLE = "unsettleable"  # a bug of TaskHarbor's kept it from being settled, again and again
    UNREADABLE = "unreadable"  # its stored row cannot be read
    OPERATOR = "operator"  # an operator dead-lettered it
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DISCARDED = "discarded"
    DEPENDENCY = "dependency"  # a dependency ended without success


ReasonName = Literal[
    "exhausted",
    "unrecoverable",
    "not_retryable",
    "lost",
    "interrupted",
    "poison",
    "invalid_payload",
    "unknown_task",
    "unsettleable",
    "unreadable",
    "operator",
    "cancelled",
    "expired",
    "discarded",
    "dependency",
]


# Why a running handler should stop. If several apply, the first one counts.
StopReason = Literal["lease_lost", "cancel", "timeout", "shutdown"]
STOP_REASONS: tuple[StopReason, ...] = get_args(StopReason)


class Takes(Struct, frozen=True, omit_defaults=True):
    """The parameter that receives the results of a job's dependencies.

    `results` says which, as positions among them: one of them, or a list, in any nesting. None: a list of all.
    """

    parameter: str
    results: int | list[Any] | None = None


class Misfire(StrEnum):
    """What to do about a missed occurrence: no worker ran, or the previous run took too long."""

    RUN_ONCE = "run_once"  # one run, however many were missed
    SKIP = "skip"  # dropped, if it is later than the grace


MisfireName = Literal["run_once", "skip"]


class Recurrence(Struct, frozen=True, omit_defaults=True, gc=False):
    """How a job recurs. The policy reads it; for a store it is a part of the job's options."""

    schedule: str  # as `taskharbor.schedule.parse` takes it
    name: str
    application: str = "default"
    timezone: str = "UTC"
    misfire: Misfire = Misfire.RUN_ONCE
    misfire_grace: float = 60.0  # seconds
    dead_letter: bool = False  # a failed occurrence leaves a copy in the dead-letter queue
    declared: bool = False  # in the code of its application
    paused: bool = False
    again_after: int = 0  # a caller asked for another run while this attempt was running


class Options(Struct, frozen=True, omit_defaults=True, gc=False):
    """The options that no claim reads: a store keeps them as one JSON text beside the job.

    `retry` is a policy as JSON, None for "no policy" given explicitly, or unset.
    """

    max_attempts: int | None = None
    timeout: float | None = None
    retry: dict[str, Any] | None | UnsetType = UNSET
    correlation_id: str | None = None
    tags: tuple[str, ...] = ()
    recurrence: Recurrence | None = None  # a schedule, for a job that re-arms itself
    workflow: str | None = None  # that it is a member of
    takes: Takes | None = None
    # What is enqueued with its death: its own failure task, True for its workflow's, False for none whatever its task
    # declares, None where nothing was said.
    failure_task: bool | FailureTask | None = None
    dead_copy: DeadCopy | None = None  # of a message: where its copy goes, should it die
    parent: str | None = None  # of a child: the job whose handler enqueued it


NO_OPTIONS = Options()


class DeadCopy(Struct, frozen=True):
    """Where a dead message is copied to, and the group that it was read by."""

    source: str  # the topic that it came from
    topic: str
    group: str


class FailureTask(Struct, frozen=True, omit_defaults=True):
    """A failure task as it is stored; its job still lacks an id and the argument that says what died."""

    task: str
    payload: str
    queue: str
    parameter: str | None = None  # takes the description of what died; None for none
    priority: int = 0
    delay: int | None = None
    delivery: Delivery | None = None
    options: Options = NO_OPTIONS
    meta: str | None = None


_decode_options = msgspec.json.Decoder(Options).decode
_encode = msgspec.json.Encoder().encode


def read_options(text: str | None) -> tuple[Options, str | None]:
    """Decode stored options; if they cannot be read, return defaults and the text itself.

    They may come from a newer version or a manual edit; reading the job must still work.
    """
    if text is None:
        return NO_OPTIONS, None
    try:
        return _decode_options(text), None
    except (msgspec.DecodeError, UnicodeError):
        return NO_OPTIONS, text


def encode_options(options: Options) -> str | None:
    """Return the text that a store keeps: None for the defaults."""
    return None if options is NO_OPTIONS or options == NO_OPTIONS else _encode(options).decode()


def repr_without_secrets(job: Any) -> str:
    """Return a record's repr without the payload of an HTTP job: logs may show it, and it may contain secrets."""
    shown = {name: getattr(job, name) for name in job.__struct_fields__}
    if job.task == "http":
        shown["payload"] = "***"
    return f"{type(job).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class NewJob(Struct, frozen=True, gc=False):
    """A job as a producer hands it to the store."""

    __repr__ = repr_without_secrets

    id: str
    task: str
    payload: str = "{}"
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    run_at: int | None = None
    delay: int | None = None  # microseconds from the store's now; instead of run_at
    expires_at: int | None = None
    idempotency_key: str | None = None
    delivery: Delivery | None = None  # None: the worker's declaration decides
    options: Options = NO_OPTIONS
    depends_on: tuple[str, ...] = ()  # `waiting` until all of these have succeeded
    due_at: int | None = None  # of the first occurrence, for a recurring job
    ends_with_members: bool = False  # cancelled as soon as one of them is dead or cancelled
    meta: str | None = None  # JSON of a map of text to text, within the limits of `rules.meta`; None for none
    # Microseconds from the store's now, instead of expires_at, which the client makes of it: no store sees this one.
    expires_in: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a row and a place are all that it needs: it waits for no job, has no tags and does not recur."""
        return not self.depends_on and not self.options.tags and self.due_at is None


class JobRecord(Struct, frozen=True, gc=False):
    """A job as the store returns it: what was enqueued, and its current state."""

    __repr__ = repr_without_secrets

    id: str
    task: str
    payload: str
    queue: str
    priority: int
    state: State
    enqueued_at: int
    run_at: int  # its place in the order: when it runs next; for a finished job, when it was due last
    attempts: int = 0  # recorded failures in the current run
    number: int = 0  # of the latest attempt; rises on every claim, over all runs
    due_at: int | None = None  # of the occurrence, for a recurring job
    expires_at: int | None = None
    idempotency_key: str | None = None
    delivery: Delivery | None = None
    options: Options = NO_OPTIONS
    depends_on: tuple[str, ...] = ()
    version: int = 1  # raised by every change an operator makes
    suspect: bool = False  # to be executed alone next time
    worker: str | None = None
    lease_expires_at: int | None = None
    lease_expired: bool = False
    cancel_requested: bool = False
    reason: Reason | None = None
    finished_at: int | None = None  # when it reached its terminal state
    error: str | None = None  # of the latest attempt
    last_status: AttemptStatus | None = None  # how the latest attempt ended, and when
    last_finished_at: int | None = None
    result: str | None = None
    progress: Progress | None = None
    unreadable_options: str | None = None  # the stored text; `options` are then the defaults
    # Invalid stored values, as JSON; the fields here have placeholders for them.
    unreadable: str | None = None
    meta: str | None = None  # the stored text; see `rules.meta.read_meta`
    fingerprint: str | None = None  # of the latest attempt's failure; every dead job has one
    aside: str | None = None  # the label of the place where it stands aside; see `rules.aside`
    action_id: str | None = None  # of the latest action that changed it, which may no longer be kept
    code_version: str | None = None  # of the application that the latest attempt failed in


class Progress(Struct, frozen=True, repr_omit_defaults=True):
    """The progress that a running handler reported."""

    fraction: float
    message: str = ""
    value_json: str | None = None  # a value of the handler's own

    @property
    def value(self) -> Any:
        """The value that the handler reported with it, as JSON has it; None for none."""
        try:
            return None if self.value_json is None else msgspec.json.decode(self.value_json)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self.value_json  # another program wrote it


class AttemptRecord(Struct, frozen=True, gc=False):
    """One row of history."""

    job_id: str
    number: int
    status: AttemptStatus
    retry_count: int  # failures in the run when the attempt began
    worker: str
    started_at: int | None  # None: it was released before it began
    finished_at: int
    error: str | None = None
    traceback: str | None = None
    detail: str | None = None  # how it was lost, or why it was put back
    worker_survived: bool = False  # lost, but its worker is alive
    retry_delay: int | None = (
        None  # microseconds granted before the retry, if it failed and was to be retried
    )
    fingerprint: str | None = None  # of its failure; see `rules.fingerprint`
    code_version: str | None = None  # of the application that it failed in


class StepRecord(Struct, frozen=True, gc=False):
    """The stored result of a durable step."""

    result: str  # JSON
    number: int  # of the attempt that stored it


class NewWorkflow(Struct, frozen=True):
    """Jobs that are stored, kept and pruned as a whole. Their ids follow the workflow's, one by one."""

    id: str
    about: str = "{}"  # JSON that the store does not read
    idempotency_key: str | None = None


class WorkflowRecord(Struct, frozen=True):
    """A workflow as the store returns it, with the number of its jobs by state."""

    id: str
    about: str
    enqueued_at: int
    total: int  # jobs that it was stored with
    idempotency_key: str | None = None
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    waiting: int = 0
    active: int = 0  # scheduled, ready or running


class MemberResult(Struct, frozen=True, gc=False):
    """The state and result of a dependency."""

    job_id: str
    succeeded: bool
    result: str | None = None
    left_out: bool = False  # its result was too large to be included


class JobFilter(Struct, frozen=True):
    """Selects jobs for a list or a bulk operation; None matches any. `rules.filtering` says which jobs match."""

    state: State | None = None
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    workflow: str | None = None  # by its id
    reason: Reason | None = None
    error: str | None = None  # a part of the first characters of the latest attempt's error
    fingerprint: str | None = None  # of dead jobs
    correlation_id: str | None = None
    enqueued_after: int | None = None  # that instant or later
    enqueued_before: int | None = None  # earlier than that instant
    finished_after: int | None = None
    finished_before: int | None = None
    ids: tuple[str, ...] | None = None
    payload: dict[str, Any] | None = None  # values of the payload by their paths, such as {"user.id": 42}


class GroupRecord(Struct, frozen=True, gc=False):
    """Dead jobs of one cause: those whose latest attempts failed with the same fingerprint."""

    fingerprint: str
    count: int
    first_seen: int  # when the first of them died, and the last
    last_seen: int
    tasks: tuple[str, ...]  # sorted; at most `GROUP_NAMES_MAX`, as are the versions
    versions: tuple[str, ...]  # of the code that they failed in, as far as it was known
    sample_id: str  # the newest of them
    error: str | None = None  # of the sample, its first characters


class TokenRecord(Struct, frozen=True):
    """A token of the REST interface, as the store keeps it: a digest, never the token itself."""

    id: str
    name: str
    role: str
    digest: str  # SHA-256 of the token, in hex
    created_at: int
    expires_at: int | None = None


class SessionRecord(Struct, frozen=True):
    """A browser that signed in to the dashboard with a token: a digest, never what the browser keeps."""

    digest: str  # SHA-256 of the cookie's value, in hex
    token_id: str  # whose role it has; it ends with the token
    created_at: int
    expires_at: int | None = None


class QueueRecord(Struct, frozen=True):
    name: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    oldest_ready_at: int | None  # the due time of the job that has been ready longest
