"""`Job`: a job as a caller sees it, frozen at the moment it was read."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from taskharbor.client.retry_metrics import RetryMetrics, read_retry_metrics
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.waiting import Pending, until_ended
from taskharbor.clock import MICROS_PER_SECOND, from_micros
from taskharbor.codec import decode_payload
from taskharbor.drivers.base import Driver, Enqueued
from taskharbor.errors import JobCancelled, JobFailed, JobNotFound
from taskharbor.records import (
    FAILURES,
    RESERVED_TAGS,
    AttemptRecord,
    AttemptStatus,
    Delivery,
    FailureTask,
    JobRecord,
    NewJob,
    Progress,
    Reason,
    State,
)
from taskharbor.rules.display import shown_payload
from taskharbor.rules.meta import read_meta

if TYPE_CHECKING:
    from taskharbor.client.audit import AuditEntry
    from taskharbor.client.harbor import Harbor
    from taskharbor.rules.why_facts import Why

R_co = TypeVar("R_co", covariant=True)


class Job(Struct, Generic[R_co], eq=False, gc=False):
    """A job as it was when it was read. It never changes; `refresh()` returns a newer one."""

    # The record, or the parts to build it from on first use: callers that enqueue a hundred thousand jobs at once
    # look at few of them.
    _read: JobRecord | tuple[NewJob, Enqueued, str]
    _harbor: Harbor
    existed: bool = True

    @property
    def _record(self) -> JobRecord:
        read = self._read
        if isinstance(read, JobRecord):
            return read
        record = _enqueued_record(*read)
        force_setattr(self, "_read", record)
        return record

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"a Job is read-only; to change the job in the store, call harbor.jobs.update(job.id, {name}=…)"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Job is read-only; {name} cannot be deleted")

    def __copy__(self) -> Job[R_co]:
        return self  # immutable

    def __deepcopy__(self, _: object) -> Job[R_co]:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a Job cannot be pickled, because it is tied to its harbor; pass job.id on instead")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._record == other._record

    def __hash__(self) -> int:
        return hash(self._record.id)

    def __repr__(self) -> str:
        r = self._record
        return f"Job(id={r.id!r}, task={r.task!r}, state={str(r.state)!r}, attempts={r.attempts})"

    @property
    def _driver(self) -> Driver:
        return self._harbor.driver

    @property
    def record(self) -> JobRecord:
        """The job as the store returned it, with times in microseconds."""
        return self._record

    # -- what it is --

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def task(self) -> str:
        return self._record.task

    @property
    def queue(self) -> str:
        return self._record.queue

    @property
    def priority(self) -> int:
        return self._record.priority

    @property
    def payload(self) -> dict[str, Any]:
        """Its arguments; an HTTP job's secrets are shown as `***`."""
        return shown_payload(
            self._record.task, decode_payload(self._harbor.sealing.shown(self._record.payload))
        )

    @property
    def idempotency_key(self) -> str | None:
        return self._record.idempotency_key

    @property
    def delivery(self) -> Delivery:
        return self._record.delivery or Delivery.AT_LEAST_ONCE

    @property
    def max_attempts(self) -> int | None:
        return self._record.options.max_attempts

    @property
    def timeout(self) -> float | None:
        return self._record.options.timeout

    @property
    def correlation_id(self) -> str | None:
        return self._record.options.correlation_id

    @property
    def parent(self) -> str | None:
        """The id of the job whose handler enqueued it with `ctx.enqueue`."""
        return self._record.options.parent

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for tag in self._record.options.tags if not tag.startswith(RESERVED_TAGS))

    @property
    def meta(self) -> dict[str, str]:
        """What it carries along: the entries that it was enqueued with, and those that it inherited."""
        return read_meta(self._record.meta)

    @property
    def workflow(self) -> str | None:
        """The id of the workflow that it is a member of."""
        return self._record.options.workflow

    @property
    def failure_task(self) -> str | None:
        """The name of the task that is enqueued with its death; that of a workflow's members is the workflow's."""
        own = self._record.options.failure_task
        return own.task if isinstance(own, FailureTask) else None

    @property
    def enqueued_at(self) -> datetime:
        return from_micros(self._record.enqueued_at)

    @property
    def expires_at(self) -> datetime | None:
        return _datetime(self._record.expires_at)

    # -- its state --

    @property
    def state(self) -> State:
        return self._record.state

    @property
    def attempts(self) -> int:
        """Recorded failures in the current run."""
        return self._record.attempts

    @property
    def attempt_number(self) -> int:
        """The number of the latest attempt: it rises with every claim, over all runs; 0 before the first."""
        return self._record.number

    @property
    def number(self) -> int:
        """The same as `attempt_number`."""
        return self._record.number

    @property
    def run_at(self) -> datetime:
        return from_micros(self._record.run_at)

    @property
    def due_at(self) -> datetime | None:
        """When the current occurrence is due, for the job of a schedule."""
        return _datetime(self._record.due_at)

    @property
    def finished_at(self) -> datetime | None:
        return _datetime(self._record.finished_at)

    @property
    def failed_at(self) -> datetime | None:
        """When it failed last in the current run, or died; None after any other end of its latest attempt."""
        record = self._record
        if record.state is State.DEAD:
            return _datetime(record.finished_at)
        has_failed = record.attempts > 0 and record.last_status in FAILURES
        return _datetime(record.last_finished_at) if has_failed else None

    @property
    def reason(self) -> Reason | None:
        """Why it is dead or cancelled."""
        return self._record.reason

    @property
    def fingerprint(self) -> str | None:
        """The cause of its latest attempt's failure; a dead job always has one. See `harbor.dlq.groups()`."""
        return self._record.fingerprint

    @property
    def error(self) -> str | None:
        """The latest attempt's error."""
        return self._record.error

    @property
    def progress(self) -> Progress | None:
        return self._harbor.sealing.shown_progress(self._record.progress)

    @property
    def worker(self) -> str | None:
        return self._record.worker

    @property
    def lease_expires_at(self) -> datetime | None:
        return _datetime(self._record.lease_expires_at)

    @property
    def lease_expired(self) -> bool:
        return self._record.lease_expired

    @property
    def cancel_requested(self) -> bool:
        return self._record.cancel_requested

    @property
    def action_id(self) -> str | None:
        """The id of the latest action that changed it; see `harbor.audit`."""
        return self._record.action_id

    # -- reading the store again --

    async def arefresh(self) -> Job[R_co]:
        """Read the job again."""
        return await self._harbor.jobs.aget(self.id)

    refresh = sync_method(arefresh)

    async def ahistory(self, limit: int = 10) -> list[Attempt]:
        """Return its attempts, newest first."""
        return await self._harbor.jobs.ahistory(self.id, limit)

    history = sync_method(ahistory)

    async def aretry_metrics(self) -> RetryMetrics:
        """Return how its current run was retried: attempts, last error and backoff, up to when this job was read."""
        return await read_retry_metrics(self._driver, self._record)

    retry_metrics = sync_method(aretry_metrics)

    async def alatest_action(self) -> AuditEntry | None:
        """Return who changed it last, how and when; None if no action changed it, or none that is kept."""
        return await self._harbor.audit._latest_of(self._record.action_id)

    latest_action = sync_method(alatest_action)

    async def awhy(self) -> Why:
        """Return why the job does not run, or does, as the store knows it now. `str()` gives the sentence."""
        from taskharbor.client.why import why

        return await why(self._harbor, self.id)

    why = sync_method(awhy)

    async def aresult(self, timeout: float | None = None) -> R_co:
        """Wait for the job to end and return what its handler returned.

        Raises JobFailed if it is dead, JobCancelled if it was cancelled, JobNotFound if it is gone, and
        TimeoutError when `timeout` seconds have passed.
        """
        return await until_ended(self._driver, timeout, self._result)

    result = sync_method(aresult)

    async def _result(self) -> R_co | Pending:
        [record] = await self._driver.get([self.id])
        if record is None:
            raise JobNotFound(self.id, f"no job has the id {self.id}; it was deleted or pruned")
        if record.state is State.SUCCEEDED:
            return self._harbor._decode_result(record)  # type: ignore[no-any-return]
        if record.state in (State.DEAD, State.CANCELLED):
            raise _error_of(record)
        return Pending(f"job {self.id} is still {record.state}")


class Step(Struct, frozen=True):
    """A durable step of a job: what was stored under its name, and by which attempt."""

    name: str
    result: Any
    number: int  # of the attempt


class Attempt:
    """One execution of a job, as history keeps it."""

    __slots__ = ("_record",)

    def __init__(self, record: AttemptRecord) -> None:
        self._record = record

    def __repr__(self) -> str:
        r = self._record
        return f"Attempt(number={r.number}, status={str(r.status)!r}, error={r.error!r})"

    @property
    def job_id(self) -> str:
        return self._record.job_id

    @property
    def number(self) -> int:
        """The attempt number, as `Job.attempt_number` counts."""
        return self._record.number

    @property
    def status(self) -> AttemptStatus:
        return self._record.status

    @property
    def retry_count(self) -> int:
        """Failures in the run when this attempt began: 0 for the first."""
        return self._record.retry_count

    @property
    def worker(self) -> str:
        return self._record.worker

    @property
    def started_at(self) -> datetime | None:
        """None if it was released before its handler began."""
        return _datetime(self._record.started_at)

    @property
    def finished_at(self) -> datetime:
        return from_micros(self._record.finished_at)

    @property
    def fingerprint(self) -> str | None:
        """The cause of its failure, by which dead jobs are grouped: 16 hexadecimal digits."""
        return self._record.fingerprint

    @property
    def code_version(self) -> str | None:
        """The version of the application that it failed in, if that is known."""
        return self._record.code_version

    @property
    def error(self) -> str | None:
        return self._record.error

    @property
    def traceback(self) -> str | None:
        return self._record.traceback

    @property
    def detail(self) -> str | None:
        """How it was lost, or why it was put back."""
        return self._record.detail

    @property
    def retry_delay(self) -> float | None:
        """Seconds that were granted before the retry, if it failed and was to be retried."""
        delay = self._record.retry_delay
        return None if delay is None else delay / MICROS_PER_SECOND

    @property
    def worker_survived(self) -> bool:
        """Whether it was recorded as lost although its worker was alive."""
        return self._record.worker_survived


def _error_of(record: JobRecord) -> JobFailed | JobCancelled:
    if record.state is State.CANCELLED:
        return JobCancelled(record.id, f"job {record.id} ({record.task}) was cancelled: {record.reason}")
    return JobFailed(
        record.id,
        f"job {record.id} ({record.task}) is dead ({record.reason}): {record.error}",
        reason=None if record.reason is None else record.reason.value,
        error=record.error,
    )


def _datetime(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _enqueued_record(job: NewJob, answer: Enqueued, payload: str) -> JobRecord:
    return JobRecord(
        answer.id,
        job.task,
        payload,
        job.queue,
        job.priority,
        answer.state,
        answer.enqueued_at,
        answer.run_at,
        expires_at=job.expires_at,
        idempotency_key=job.idempotency_key,
        delivery=job.delivery,
        options=job.options,
        depends_on=job.depends_on,
        meta=job.meta,
    )
