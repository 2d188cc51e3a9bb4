"""`Schedule`: a schedule as a caller sees it, and how its job is built."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from taskharbor.client.options import OWN_OPTIONS, checked_options, new_job, refuse_unknown
from taskharbor.clock import check_seconds, from_micros
from taskharbor.codec import agreeing, checked_name, decode_payload, shorten
from taskharbor.errors import ConfigurationError
from taskharbor.records import (
    RESERVED_TAGS,
    SCHEDULE_TAG,
    AttemptStatus,
    Delivery,
    DeliveryName,
    FailureTask,
    JobRecord,
    Misfire,
    MisfireName,
    NewJob,
    Recurrence,
    State,
)
from taskharbor.rules.display import shown_payload
from taskharbor.rules.meta import read_meta
from taskharbor.rules.retry import RetryPolicy
from taskharbor.schedule import Schedule as Recurring
from taskharbor.schedule import parse

if TYPE_CHECKING:
    from taskharbor.client.task import Signature


# The options of a schedule's jobs, without those of a single job (run_at, id, idempotency_key …): the schedule sets
# the time of each run, and its name is its identity.
class RunOptions(TypedDict, total=False):
    """The options of a schedule's runs."""

    queue: str
    priority: int
    max_attempts: int | None
    max_retries: int | None
    timeout: float | timedelta | None
    delivery: Delivery | DeliveryName | None
    retry: RetryPolicy | None
    correlation_id: str | None
    tags: list[str] | tuple[str, ...]
    meta: Mapping[str, str] | None
    failure_task: Signature[Any] | None


class ScheduleOptions(RunOptions, total=False):
    """The options of `harbor.schedules.add`."""

    timezone: str
    misfire: Misfire | MisfireName
    misfire_grace: float | timedelta
    dead_letter: bool


class ScheduleChanges(ScheduleOptions, total=False):
    """The options of `harbor.schedules.update`."""

    schedule: str | Recurring
    task: str
    payload: Mapping[str, Any]


JOB_OPTIONS = frozenset(RunOptions.__annotations__)
RECURRENCE_OPTIONS = frozenset({"schedule", "timezone", "misfire", "misfire_grace", "dead_letter"})


class Schedule(Struct, frozen=True):
    """A schedule as it was when it was read."""

    name: str
    application: str
    id: str  # of its job, for `harbor.jobs`
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
    declared: bool  # in its application's code
    orphaned: bool | None  # no longer declared; None where the declarations are not known
    state: State
    due_at: datetime | None  # of the next occurrence, or of the running one
    next_run_at: (
        datetime | None
    )  # when its job runs next, perhaps for a retry; None while it runs or is paused
    attempts: int  # failures of the current occurrence
    last_status: AttemptStatus | None  # how its latest attempt ended
    last_finished_at: datetime | None
    last_error: str | None
    tags: tuple[str, ...]
    max_attempts: int | None = None
    timeout: float | None = None
    retry: dict[str, Any] | None | UnsetType = (
        UNSET  # as JSON; None: no retries, as was given; unset: not given
    )
    delivery: Delivery | None = None  # None: as its task declares
    correlation_id: str | None = None
    meta: dict[str, str] = {}
    failure_task: str | None = None  # the name of the task that is enqueued when a run of it fails for good

    @classmethod
    def of(cls, record: JobRecord, *, orphaned: bool | None) -> Schedule:
        recurrence = record.options.recurrence
        assert recurrence is not None, "only a recurring job is a schedule"
        waits = record.state is not State.RUNNING and not recurrence.paused
        return cls(
            name=recurrence.name,
            application=recurrence.application,
            id=record.id,
            task=record.task,
            payload=shown_payload(record.task, decode_payload(record.payload)),
            queue=record.queue,
            priority=record.priority,
            schedule=recurrence.schedule,
            timezone=recurrence.timezone,
            misfire=recurrence.misfire,
            misfire_grace=recurrence.misfire_grace,
            dead_letter=recurrence.dead_letter,
            paused=recurrence.paused,
            declared=recurrence.declared,
            orphaned=orphaned,
            state=record.state,
            due_at=None if record.due_at is None else from_micros(record.due_at),
            next_run_at=from_micros(record.run_at) if waits else None,
            attempts=record.attempts,
            last_status=record.last_status,
            last_finished_at=None
            if record.last_finished_at is None
            else from_micros(record.last_finished_at),
            last_error=record.error,
            tags=tuple(tag for tag in record.options.tags if not tag.startswith(RESERVED_TAGS)),
            max_attempts=record.options.max_attempts,
            timeout=record.options.timeout,
            retry=record.options.retry,
            delivery=record.delivery,
            correlation_id=record.options.correlation_id,
            meta=read_meta(record.meta),
            failure_task=own.task if isinstance(own := record.options.failure_task, FailureTask) else None,
        )


def schedule_id(application: str, name: str) -> str:
    """Return the id of a schedule's job. It follows from the name, so there is never a second job.

    It begins with zeros, so that lists of jobs, newest first, show schedules last.
    """
    import hashlib

    digest = hashlib.sha256(f"{len(application)}:{application}:{name}".encode()).digest()
    raw = bytearray(6) + digest[:10]
    raw[6] = 0x80 | raw[6] & 0x0F  # version 8: a custom UUID
    raw[8] = 0x80 | raw[8] & 0x3F
    return str(uuid.UUID(bytes=bytes(raw)))


def checked_recurrence(
    name: str, application: str, given: Mapping[str, Any], *, declared: bool
) -> Recurrence:
    """Build the recurrence from the caller's options."""
    schedule = parse(given["schedule"], given.get("timezone", "UTC"))
    return Recurrence(
        schedule=schedule.expression,
        name=checked_name("schedule", name),
        application=checked_name("application", application),
        timezone=schedule.timezone,
        misfire=_checked_misfire(given.get("misfire", Misfire.RUN_ONCE)),
        misfire_grace=_checked_grace(given.get("misfire_grace", 60.0)),
        dead_letter=_checked_flag(given.get("dead_letter", False)),
        declared=declared,
    )


def recurring_job(
    task: str, payload: str, options: dict[str, Any], recurrence: Recurrence, now: int
) -> NewJob:
    """Build the job of a schedule, due at the first occurrence from now on."""
    job = new_job(task, payload, {**options, "id": schedule_id(recurrence.application, recurrence.name)})
    tags = (SCHEDULE_TAG, *job.options.tags)
    due_at = recurring(recurrence).next_micros(now)
    return replace(
        job,
        options=replace(job.options, tags=tags, recurrence=recurrence),
        run_at=due_at,
        due_at=due_at,
    )


def recurring(recurrence: Recurrence) -> Recurring:
    return parse(recurrence.schedule, recurrence.timezone)


def checked_job_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a schedule's runs as the store keeps them."""
    own = OWN_OPTIONS & options.keys() - JOB_OPTIONS
    if own:
        raise ConfigurationError(
            f"{', '.join(sorted(own))} {agreeing(len(own), 'belongs', 'belong')} to one job, not to a schedule, "
            "which says itself when it runs"
        )
    refuse_unknown(options, JOB_OPTIONS | RECURRENCE_OPTIONS)
    return checked_options({name: value for name, value in options.items() if name in JOB_OPTIONS})


def _checked_misfire(value: object) -> Misfire:
    try:
        return Misfire(str(value))
    except ValueError:
        raise ConfigurationError(
            f'misfire must be "run_once" (a missed occurrence is made up for) or "skip" (it is dropped), '
            f"not {shorten(value)}"
        ) from None


def _checked_grace(value: float | timedelta) -> float:
    return check_seconds(value, "misfire_grace")


def _checked_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"dead_letter must be True or False, not {shorten(value)}")
    return value
