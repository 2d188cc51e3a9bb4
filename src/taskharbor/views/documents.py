"""Jobs, attempts, queues and leases as JSON documents: the names the REST interface uses."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from taskharbor.client.display import shown_payload
from taskharbor.client.handle import Attempt, Job, Step
from taskharbor.client.queues import Queue
from taskharbor.client.schedule import Schedule
from taskharbor.clock import from_micros
from taskharbor.codec import decode_payload, decode_result
from taskharbor.errors import PayloadError
from taskharbor.records import RESERVED_TAGS, Delivery, JobRecord, Options

if TYPE_CHECKING:
    from taskharbor.workflow import Workflow


def of_job(job: Job[Any]) -> dict[str, Any]:
    return of_record(job.record)


def of_record(record: JobRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "task": record.task,
        "queue": record.queue,
        "state": str(record.state),
        "priority": record.priority,
        "payload": _payload(record),
        "attempts": record.attempts,
        "number": record.number,
        **of_options(record.options),
        **_unreadable(record),
        "delivery": str(record.delivery or Delivery.AT_LEAST_ONCE),
        "idempotencyKey": record.idempotency_key,
        "dependsOn": list(record.depends_on),
        "enqueuedAt": instant(record.enqueued_at),
        "runAt": instant(record.run_at),
        "dueAt": instant(record.due_at),
        "schedule": None if record.options.recurrence is None else record.options.recurrence.name,
        "expiresAt": instant(record.expires_at),
        "finishedAt": instant(record.finished_at),
        "reason": None if record.reason is None else str(record.reason),
        "error": record.error,
        "result": _result(record),
        "progress": None
        if record.progress is None
        else {"fraction": record.progress.fraction, "message": record.progress.message},
        "worker": record.worker,
        "leaseExpiresAt": instant(record.lease_expires_at),
        "leaseExpired": record.lease_expired,
        "cancelRequested": record.cancel_requested,
        "version": record.version,
    }


def _payload(record: JobRecord) -> dict[str, Any]:
    """Nothing, where it cannot be read: one such job must not hide a list of others."""
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
    """Show what could not be read (a newer version wrote it, or a person by hand), only where there is such a value."""
    found = {} if record.unreadable_options is None else {"optionsUnreadable": record.unreadable_options}
    unreadable = unreadable_of(record)
    return found if unreadable is None else found | {"unreadable": unreadable}


def unreadable_of(record: JobRecord) -> dict[str, Any] | None:
    """What is stored of the job and cannot be what it should, by name."""
    found = {} if record.unreadable is None else msgspec.json.decode(record.unreadable)
    try:
        decode_payload(record.payload)
    except PayloadError:
        found.setdefault("payload", "***" if record.task == "http" else record.payload)
    return found or None


def of_options(options: Options) -> dict[str, Any]:
    return {
        "maxAttempts": options.max_attempts,
        "timeout": options.timeout,
        "retry": of_retry(options.retry),
        "correlationId": options.correlation_id,
        "tags": [tag for tag in options.tags if not tag.startswith(RESERVED_TAGS)],
        "workflow": options.workflow,
    }


def of_retry(stored: dict[str, Any] | None | UnsetType) -> dict[str, Any] | str | None:
    """Not said: null. Said that there is to be none: a word."""
    if stored is UNSET:
        return None
    if stored is None:
        return "none"
    lists = {name: stored.get(name, []) for name in ("retry_on", "never_retry_on")}
    types = {f"{name}_types": stored.get(f"{name}_types", []) for name in lists}
    numbers = {
        name: stored.get(name) for name in ("max_attempts", "initial", "maximum", "multiplier", "jitter")
    }
    return {camel_case(name): value for name, value in (numbers | lists | types).items()}


def camel_case(name: str) -> str:
    """The name by which a document has it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def of_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "status": str(attempt.status),
        "retryCount": attempt.retry_count,
        "worker": attempt.worker,
        "startedAt": attempt.started_at,
        "finishedAt": attempt.finished_at,
        "error": attempt.error,
        "traceback": attempt.traceback,
        "detail": attempt.detail,
        "outlived": attempt.outlived,
    }


def of_step(step: Step) -> dict[str, Any]:
    return {"name": step.name, "number": step.number, "result": step.result}


def of_workflow(workflow: Workflow) -> dict[str, Any]:
    return {
        "id": workflow.id,
        "state": str(workflow.state),
        "total": workflow.progress.total,
        **workflow.counts,
        "onFailure": workflow.on_failure,
        "idempotencyKey": workflow.idempotency_key,
        "enqueuedAt": workflow.enqueued_at,
        "shape": workflow.shape,
    }


def of_queue(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        "ready": queue.ready,
        "scheduled": queue.scheduled,
        "running": queue.running,
        "oldestReadyAt": queue.oldest_ready_at,
        "oldestReadySeconds": None
        if queue.oldest_ready_age is None
        else queue.oldest_ready_age.total_seconds(),
    }


def of_schedule(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "application": schedule.application,
        "id": schedule.id,
        "task": schedule.task,
        "payload": schedule.payload,
        "queue": schedule.queue,
        "priority": schedule.priority,
        "schedule": schedule.schedule,
        "timezone": schedule.timezone,
        "misfire": str(schedule.misfire),
        "misfireGrace": schedule.misfire_grace,
        "deadLetter": schedule.dead_letter,
        "paused": schedule.paused,
        "declared": schedule.declared,
        "orphaned": schedule.orphaned,
        "state": str(schedule.state),
        "dueAt": schedule.due_at,
        "nextRunAt": schedule.next_run_at,
        "attempts": schedule.attempts,
        "lastStatus": None if schedule.last_status is None else str(schedule.last_status),
        "lastFinishedAt": schedule.last_finished_at,
        "lastError": schedule.last_error,
        "maxAttempts": schedule.max_attempts,
        "timeout": schedule.timeout,
        "retry": of_retry(schedule.retry),
        "delivery": str(schedule.delivery or Delivery.AT_LEAST_ONCE),
        "correlationId": schedule.correlation_id,
        "tags": list(schedule.tags),
    }


def of_list(items: list[dict[str, Any]], next_cursor: str | None = None) -> dict[str, Any]:
    return {"items": items, "nextCursor": next_cursor}


def instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
