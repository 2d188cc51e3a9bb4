"""The options of an enqueue: checked once, and turned into the fields that the store keeps."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from taskharbor.clock import check_seconds, seconds_to_micros, to_micros
from taskharbor.codec import KEY_LIMIT, agreeing, checked_name, shorten
from taskharbor.drivers.base import AlikeJobs, Driver
from taskharbor.errors import ConfigurationError
from taskharbor.records import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    RESERVED_TAGS,
    Delivery,
    DeliveryName,
    NewJob,
    Options,
)
from taskharbor.rules.meta import checked_meta, read_meta
from taskharbor.rules.retry import RetryPolicy, resolve_max_attempts

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.task import Isolation, Signature
    from taskharbor.records import Misfire, MisfireName
    from taskharbor.schedule import Schedule

TAGS_MAX = 32
FIRST_INSTANT = to_micros(datetime.min.replace(tzinfo=UTC))
LAST_INSTANT = to_micros(datetime.max.replace(tzinfo=UTC))


class EnqueueOptions(TypedDict, total=False):
    """The options of one enqueue; a task's declaration takes them as defaults."""

    queue: str
    run_at: datetime | None
    delay: float | timedelta | None
    priority: int
    max_attempts: int | None
    max_retries: int | None
    timeout: float | timedelta | None
    expires_at: datetime | None
    expires_in: float | timedelta | None
    idempotency_key: str | None
    delivery: Delivery | DeliveryName | None
    retry: RetryPolicy | None
    correlation_id: str | None
    tags: list[str] | tuple[str, ...]
    meta: Mapping[str, str] | None
    failure_task: Signature[Any] | None
    id: str | uuid.UUID | None


class TaskOptions(EnqueueOptions, total=False):
    """What `@harbor.task(…)` takes: what the task is, when it recurs, and the defaults of its jobs."""

    name: str | None
    aliases: Iterable[str]
    parameter_aliases: Mapping[str, str] | None
    raw: bool
    isolation: Isolation | None
    schedule: str | Schedule | None
    timezone: str
    misfire: Misfire | MisfireName
    misfire_grace: float
    dead_letter: bool


OPTION_NAMES = frozenset(EnqueueOptions.__annotations__)
# Options of a single job: a declaration cannot have them.
OWN_OPTIONS = frozenset(
    {"run_at", "delay", "expires_at", "expires_in", "idempotency_key", "correlation_id", "id"}
)
# Options of a task: a single job cannot have them.
DECLARED_ONLY = frozenset(TaskOptions.__annotations__) - OPTION_NAMES
TASK_OPTIONS = OPTION_NAMES - OWN_OPTIONS | DECLARED_ONLY

# Names that other libraries use, by our name.
_HABITS = {
    "schedule": "cron crontab cron_string every interval periodic repeat run_every",
    "delay": "countdown defer defer_by delay_seconds enqueue_in schedule_in wait",
    "run_at": "at defer_until enqueue_at eta schedule_at scheduled_at scheduled_for when",
    "expires_at": "deadline expires",
    "expires_in": "expires_after max_age ttl",
    "max_retries": "retries retry_count retry_limit",
    "max_attempts": "attempts max_tries tries",
    "retry": "autoretry_for backoff default_retry_delay retry_backoff retry_delay retry_policy retry_when",
    "timeout": "job_timeout max_runtime soft_time_limit time_limit",
    "idempotency_key": "dedup_key deduplication_id job_key key lock queueing_lock unique_key",
    "id": "job_id message_id task_id",
    "name": "actor_name task_name",
    "queue": "channel queue_name routing_key",
    "delivery": "ack_late acks_late",
    "tags": "labels tag",
    "correlation_id": "request_id trace_id",
    "meta": "context extra headers metadata",
    "timezone": "time_zone tz",
    "misfire_grace": "misfire_grace_time",
}
_HERE = {habit: name for name, habits in _HABITS.items() for habit in habits.split()}
_INSTEAD = {
    "bind": "a function whose first parameter is annotated with Context is given it",
    "ignore_result": "what a handler returns is kept, and None costs nothing: return nothing",
    "result_ttl": "Harbor(retention=…) says how long finished jobs are kept",
}


def new_id() -> str:
    import uuid_utils  # a program that enqueues nothing starts without it

    return str(uuid_utils.uuid7())


def new_ids(count: int) -> list[str]:
    """Ids for this many jobs, in their order."""
    import uuid_utils

    new = uuid_utils.uuid7
    return [str(new()) for _ in range(count)]


def checked_id(value: object, of: str = "job") -> str:
    """Return the id of a job or a workflow as lower-case UUID text, from a string or a UUID."""
    import uuid_utils

    if isinstance(value, uuid.UUID | uuid_utils.UUID):
        return str(value)
    try:
        if isinstance(value, str):
            return str(uuid.UUID(value))
    except ValueError:
        pass
    raise ConfigurationError(
        f"a {of}'s id is a UUID such as 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10, not {shorten(value)}"
    )


def refuse_unknown(
    given: Iterable[str], allowed: frozenset[str] = OPTION_NAMES, what: str = "option"
) -> None:
    """Refuse an unknown option, and suggest the one that was probably meant."""
    unknown = sorted(set(given) - allowed)
    if not unknown:
        return
    meant = {name: _HERE.get(name) or _closest(name, allowed) for name in unknown}
    for name, here in meant.items():
        remedy = _INSTEAD.get(name) or _elsewhere(name, allowed) or _elsewhere(here or name, allowed)
        if remedy is not None:
            raise ConfigurationError(
                remedy if remedy.startswith(f"{name} ") else f"unknown {what} {name}: {remedy}"
            )
    likely = ", ".join(here for here in meant.values() if here in allowed)
    raise ConfigurationError(
        f"unknown {agreeing(len(unknown), what, f'{what}s')} {', '.join(unknown)}"
        f"{f': did you mean {likely}? The' if likely else '; the'} {what}s are {', '.join(sorted(allowed))}"
    )


def _closest(name: str, allowed: frozenset[str]) -> str | None:
    import difflib  # most programs never need it

    close = difflib.get_close_matches(name.lower(), allowed, n=1)
    return close[0] if close else None


def _elsewhere(name: str, allowed: frozenset[str]) -> str | None:
    """Say where an option that is unknown here belongs."""
    if allowed is OPTION_NAMES and name in DECLARED_ONLY:
        return f"{name} belongs to a task, not to one job; declare it: @harbor.task({name}=…)"
    if allowed is TASK_OPTIONS and name in OWN_OPTIONS:
        return f"{name} belongs to one job, not to a task; give it with .using({name}=…)"
    return None


def refuse_stranger(harbor: Harbor, options: Mapping[str, Any]) -> None:
    """Refuse the failure task of another harbor: its job would be stored here, where no worker need know it."""
    task = getattr(options.get("failure_task"), "task", None)
    if (
        not isinstance(task, str | None) and task.harbor is not harbor
    ):  # text: one that was named on this harbor
        raise ConfigurationError(
            f"the failure task {task.name!r} belongs to another harbor; give one that is declared on this one"
        )


def refuse_huge(options: Mapping[str, Any]) -> None:
    """Refuse an integer that is too large for any option, and that Python may even refuse to print in an error."""
    for name, value in options.items():
        if isinstance(value, int) and value.bit_length() > 64:
            raise ConfigurationError(
                f"{name} cannot be an integer of {value.bit_length():,} bits; give a smaller one"
            )


def checked_options(options: dict[str, Any], *, declared: bool = False) -> dict[str, Any]:
    """Turn options into `NewJob` and `Options` fields, or raise one clear error.

    The policy that a task declares follows the code, so its jobs store only the limit it has, as `policy_limit`.
    """
    refuse_unknown(options)
    refuse_huge(options)
    if options.get("run_at") is not None and options.get("delay") is not None:
        raise ConfigurationError("run_at and delay say the same thing; give one of them")
    if options.get("expires_at") is not None and options.get("expires_in") is not None:
        raise ConfigurationError("expires_at and expires_in say the same thing; give one of them")
    checked: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    for name, value in options.items():
        if name == "failure_task" and not (value is None and declared):
            from taskharbor.failure_tasks import failure_task_of  # most programs have none

            inner[name] = False if value is None else failure_task_of(value)
        if value is None and name != "retry":
            if name in OWN_OPTIONS:  # kept, because None takes back an earlier value
                (inner if name == "correlation_id" else checked)[name] = None
            continue
        match name:
            case "queue":
                checked["queue"] = checked_name("queue", value)
            case "run_at" | "expires_at":
                checked[name] = checked_instant(value, name)
            case "delay":
                checked["delay"] = seconds_to_micros(value, "delay")
            case "expires_in":
                checked["expires_in"] = seconds_to_micros(checked_timeout(value, "expires_in"))
            case "priority":
                checked["priority"] = checked_priority(value)
            case "idempotency_key":
                checked["idempotency_key"] = checked_name("idempotency key", value, KEY_LIMIT)
            case "delivery":
                checked["delivery"] = checked_delivery(value)
            case "id":
                checked["id"] = checked_id(value)
            case "timeout":
                inner["timeout"] = checked_timeout(value)
            case "retry":
                if declared:
                    checked["policy_limit"] = _declared_limit(value)
                else:
                    inner["retry"] = checked_retry(value)
            case "correlation_id":
                inner["correlation_id"] = checked_name("correlation id", value)
            case "tags":
                inner["tags"] = checked_tags(value)
            case "meta":
                checked["meta"] = checked_meta(value)
    limit = resolve_max_attempts(options.get("max_attempts"), options.get("max_retries"))
    if limit is not None:
        inner["max_attempts"] = limit
    checked["options"] = inner
    return checked


def merged(declared: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Merge: given options replace declared ones, and so does each entry of meta."""
    both = {**declared, **given}
    if declared.get("meta") is not None:
        both["meta"] = checked_meta(read_meta(declared["meta"]) | read_meta(given.get("meta")))
    both["options"] = {**declared.get("options", {}), **given.get("options", {})}
    if given.get("delay") is not None:
        both.pop("run_at", None)
    if given.get("run_at") is not None:
        both.pop("delay", None)
    if given.get("expires_in") is not None:
        both.pop("expires_at", None)
    if given.get("expires_at") is not None:
        both.pop("expires_in", None)
    if given.get("options", {}).get("retry", UNSET) is not UNSET:
        both.pop("policy_limit", None)  # the given policy brings its own
    return both


def refuse_none_of_declared(options: dict[str, Any], declared: dict[str, Any]) -> None:
    """Refuse None for a declared option: it could mean "none", which a job cannot store, or "as declared"."""
    inner = declared.get("options", {})
    for name, value in options.items():
        if value is not None or name in OWN_OPTIONS or name in ("retry", "failure_task"):
            continue
        kept = "max_attempts" if name == "max_retries" else name
        if kept in declared or kept in inner:
            raise ConfigurationError(
                f"{name}=None does not lift the {name} that is declared already; "
                "leave it out to keep that, or give another value"
            )


def new_job(task: str, payload: str, checked: dict[str, Any]) -> NewJob:
    """Build a job from options that `checked_options` returned."""
    return job_maker(task, checked)(payload)


def job_maker(task: str, checked: dict[str, Any]) -> Callable[[str], NewJob]:
    """Return a function that makes jobs which differ only in their payloads."""
    fields = dict(checked)
    inner = fields.pop("options", None)
    given_id = fields.pop("id", None)
    policy_limit = fields.pop("policy_limit", None)
    if policy_limit and not (inner or {}).get("max_attempts"):
        inner = {**(inner or {}), "max_attempts": policy_limit}
    if inner:
        fields["options"] = Options(**inner)

    def make(payload: str) -> NewJob:
        return NewJob(given_id or new_id(), task, payload, **fields)

    return make


def with_expiry(job: NewJob, now: int) -> NewJob:
    """Return the job with the instant that its `expires_in` means: what a store keeps."""
    if job.expires_in is None:
        return job
    return replace(job, expires_at=min(now + job.expires_in, LAST_INSTANT), expires_in=None)


async def with_expiries(jobs: Sequence[NewJob], driver: Driver) -> Sequence[NewJob]:
    """Do so for each of them, counted from the store's now, which is asked only where it is needed."""
    if isinstance(jobs, AlikeJobs):
        if jobs.shared.expires_in is not None:
            jobs.shared = with_expiry(jobs.shared, await driver.now())
        return jobs
    if all(job.expires_in is None for job in jobs):
        return jobs
    now = await driver.now()
    return [with_expiry(job, now) for job in jobs]


def checked_instant(value: datetime, name: str) -> int:
    micros = to_micros(value, name)
    # Without the first and last day: in some zones their instants have no date in UTC, and could not be shown.
    if not FIRST_INSTANT <= micros <= LAST_INSTANT:
        raise ConfigurationError(f"{name} must be between the years 1 and 9999 in UTC, not {shorten(value)}")
    return micros


def checked_priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not PRIORITY_MIN <= value <= PRIORITY_MAX:
        raise ConfigurationError(
            f"priority must be a whole number from {PRIORITY_MIN} to {PRIORITY_MAX} (higher runs first), "
            f"not {shorten(value)}"
        )
    return int(value)


def checked_delivery(value: object) -> Delivery:
    try:
        return Delivery(str(value))
    except ValueError:
        raise ConfigurationError(
            f'delivery must be "at_least_once" or "at_most_once", not {shorten(value)}'
        ) from None


def checked_timeout(value: Any, name: str = "timeout") -> float:
    seconds = check_seconds(value, name, least="above 0, up to")
    if seconds == 0:
        raise ConfigurationError(f"{name} must be more than 0 seconds; leave it out for the default")
    return seconds


def checked_retry(value: object) -> dict[str, Any] | None | UnsetType:
    if value is UNSET:
        return UNSET
    if value is None:
        return None
    if not isinstance(value, RetryPolicy):
        raise ConfigurationError(
            f"retry must be a RetryPolicy, one of taskharbor.presets, or None for no retries, not {shorten(value)}"
        )
    if value.follows_code:
        raise ConfigurationError(
            "retry of one job is stored with it, and code cannot be: "
            + (
                "its functions delay= and should_retry= belong"
                if type(value) is RetryPolicy
                else f"{type(value).__name__}, a class of its own, belongs"
            )
            + " to a task or a worker; give it to @harbor.task(retry=…) or Worker(retry=…), and the job numbers and "
            "lists alone"
        )
    return value.to_dict()


def _declared_limit(policy: object) -> int | None:
    """Return the limit of the policy that a task declares; None or 0 where it sets none."""
    if policy is UNSET:
        return None
    checked = checked_retry_of_code(policy)
    return None if checked is None else checked.max_attempts


def with_limit_of_policy(checked: dict[str, Any]) -> dict[str, Any]:
    """Return changes of a stored job where a new policy brings its limit, unless a limit is given as well."""
    inner = checked.get("options", {})
    policy = inner.get("retry")
    if not isinstance(policy, dict) or "max_attempts" in inner or not policy["max_attempts"]:
        return checked
    return {**checked, "options": {**inner, "max_attempts": policy["max_attempts"]}}


def checked_retry_of_code(value: object, name: str = "retry") -> RetryPolicy | None:
    """Check the retry policy of a worker or a task, which may contain functions."""
    if value is None or isinstance(value, RetryPolicy):
        return value
    raise ConfigurationError(
        f"{name} must be a RetryPolicy, one of taskharbor.presets, or None, not {shorten(value)}"
    )


def checked_tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise ConfigurationError(f"tags must be a list of strings, not {shorten(value)}")
    tags = tuple(dict.fromkeys(checked_name("tag", tag) for tag in value))
    for tag in tags:
        if tag.startswith(RESERVED_TAGS):
            raise ConfigurationError(
                f"tags that begin with {RESERVED_TAGS} are TaskHarbor's own, not {tag!r}"
            )
    if len(tags) > TAGS_MAX:
        raise ConfigurationError(f"a job takes at most {TAGS_MAX} tags, not {len(tags)}")
    return tags
