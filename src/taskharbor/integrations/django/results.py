"""`TaskResult`: what Django shows of a job."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings as project_settings
from django.utils import timezone

from taskharbor import errors
from taskharbor.clock import from_micros
from taskharbor.codec import decode_payload
from taskharbor.context import Context
from taskharbor.drivers.contract.leasing import worker_of
from taskharbor.integrations.django.framework import TaskError, TaskResult, TaskResultStatus
from taskharbor.records import FAILURES, AttemptRecord, AttemptStatus, JobRecord, State

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

ATTEMPTS_MAX = 100  # the latest ones; a job may have more
_STATUSES = {
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
_FAILED = FAILURES | {AttemptStatus.LOST}


def new(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], backend: str) -> Any:
    """Return the result of a task that is about to be enqueued; it has no id yet."""
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def of(task: Any, record: JobRecord, attempts: Sequence[AttemptRecord], backend: str, harbor: Harbor) -> Any:
    """Return the result of a job from what the store has of it; `attempts` are the latest first."""
    begun = [attempt for attempt in reversed(attempts) if attempt.started_at is not None]
    workers = [attempt.worker for attempt in begun]
    if record.state is State.RUNNING and record.worker is not None:
        workers.append(record.worker)
    payload = decode_payload(harbor.sealing.open(record.payload))
    result = TaskResult(
        task=_as_enqueued(task, record, backend),
        id=record.id,
        status=_STATUSES.get(record.state, TaskResultStatus.READY),
        enqueued_at=instant(record.enqueued_at),
        started_at=instant(begun[0].started_at) if begun else None,
        finished_at=instant(record.finished_at),
        last_attempted_at=instant(begun[-1].started_at) if begun else None,
        args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}),
        backend=backend,
        errors=_errors(record, begun),
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", harbor._decode_result(record))
    return result


def begun(task: Any, context: Context, payload: Mapping[str, Any], backend: str) -> Any:
    """Return the result of a job whose first attempt begins now, without asking the store."""
    execution = context._execution
    now = instant(execution.started_at)
    result = new(task, payload.get("args", ()), payload.get("kwargs", {}), backend)
    return replaced(
        result,
        task=_as_enqueued(task, context.job.record, backend),
        id=execution.claimed.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=instant(execution.claimed.enqueued_at),
        started_at=now,
        last_attempted_at=now,
        worker_ids=[worker_of(execution.lease.token)],
    )


def begun_again(result: Any, context: Context) -> Any:
    """Complete the result of a job whose later attempt begins now: the store does not know yet when."""
    now = instant(context._execution.started_at)
    return replaced(result, started_at=result.started_at or now, last_attempted_at=now)


def succeeded(result: Any, value: Any, at: datetime) -> Any:
    """Return the result of an attempt that has succeeded."""
    return replaced(result, status=TaskResultStatus.SUCCESSFUL, finished_at=_local(at), _return_value=value)


def replaced(frozen: Any, **changes: Any) -> Any:
    """Return a copy with other values. Nothing is checked: what the store has need not fit the backend of today."""
    copy = object.__new__(type(frozen))
    for field in fields(frozen):
        value = changes[field.name] if field.name in changes else getattr(frozen, field.name)
        object.__setattr__(copy, field.name, value)
    return copy


def instant(micros: int | None) -> datetime | None:
    """Return a moment as Django has it: without a zone, in that of the project, if USE_TZ is off."""
    return None if micros is None else _local(from_micros(micros))


def _local(moment: datetime) -> datetime:
    if project_settings.USE_TZ:
        return moment
    naive: datetime = timezone.make_naive(moment)
    return naive


def _as_enqueued(task: Any, record: JobRecord, backend: str) -> Any:
    """Return the task with what `using()` gave this job."""
    was_deferred = record.state is State.SCHEDULED or record.run_at > record.enqueued_at
    return replaced(
        task,
        priority=record.priority,
        queue_name=record.queue,
        backend=backend,
        run_after=instant(record.run_at) if was_deferred and not record.attempts else None,
    )


def _errors(record: JobRecord, begun: Sequence[AttemptRecord]) -> list[Any]:
    found = [_error(attempt) for attempt in begun if attempt.status in _FAILED]
    if not found and record.state in (State.DEAD, State.CANCELLED):
        # It ended without having begun: it expired, was cancelled, or its arguments fit no more.
        text = record.error or f"the job is {record.state}, reason {record.reason}"
        found.append(TaskError(exception_class_path=_path(text, ""), traceback=text))
    return found


def _error(attempt: AttemptRecord) -> Any:
    text = attempt.error or attempt.detail or f"the attempt was {attempt.status}"
    trace = attempt.traceback or text
    return TaskError(exception_class_path=_path(text, trace), traceback=trace)


def _path(error: str, trace: str) -> str:
    """Return the path of the error's class. The store has its name, and the last lines of the traceback its module."""
    name = error.partition(":")[0]
    if name.isidentifier():
        for line in reversed(trace.splitlines()):
            if found := re.match(rf"((?:\w+\.)*){name}(?::|$)", line):
                return f"{found[1] or 'builtins.'}{name}"
        for module in (builtins, errors):
            if isinstance(getattr(module, name, None), type):
                return f"{module.__name__}.{name}"
    return f"{errors.__name__}.{errors.JobFailed.__name__}"
