"""`harbor.jobs`: read and operate on jobs."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from msgspec import UnsetType

from taskharbor.client.filters import (
    JobWhere,
    asked_filter,
    checked_cursor,
    checked_limit,
    cursor_after,
    job_filter,
)
from taskharbor.client.handle import Attempt, Job, Step
from taskharbor.client.operating import Operator, not_found, requeue_operation
from taskharbor.client.options import (
    checked_id,
    checked_instant,
    checked_priority,
    checked_tags,
    checked_timeout,
    refuse_huge,
    refuse_unknown,
)
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.codec import checked_name, decode_result, encode_payload
from taskharbor.drivers.base import (
    Cancel,
    Delete,
    Operation,
    OperationResult,
    OperationVerdict,
    RunNow,
    Update,
)
from taskharbor.drivers.capabilities import Steps
from taskharbor.errors import ConfigurationError, JobConflict
from taskharbor.records import JobFilter, JobRecord, State, StateName
from taskharbor.rules.lifecycle import CANCELLABLE, DELETABLE
from taskharbor.rules.retry import resolve_max_attempts
from taskharbor.telemetry.reports import READ_AT_ONCE


class JobChanges(TypedDict, total=False):
    """The fields of a job that can change while it is neither running nor finished."""

    priority: int
    run_at: datetime
    payload: Mapping[str, Any]
    max_attempts: int | None
    max_retries: int | None
    timeout: float | timedelta | None
    tags: list[str] | tuple[str, ...]
    expires_at: datetime | None


CHANGEABLE_OPTIONS = frozenset(JobChanges.__annotations__)


class JobPage(list[Job[Any]]):
    """A page of jobs; `next_cursor` continues the list, and is None at its end."""

    def __init__(self, jobs: list[Job[Any]], next_cursor: str | None) -> None:
        super().__init__(jobs)
        self.next_cursor = next_cursor


class Jobs(Operator):
    """`harbor.jobs`"""

    async def aget(self, id: object) -> Job[Any]:
        """Return the job with this id, or raise JobNotFound."""
        job_id = checked_id(id)
        [record] = await self._driver.get([job_id])
        if record is None:
            raise not_found(job_id)
        return Job(record, self._harbor)

    get = sync_method(aget)

    async def alist(
        self,
        *,
        state: State | StateName | None = None,
        queue: str | None = None,
        task: str | None = None,
        tag: str | None = None,
        workflow: object = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """List matching jobs, newest first. A page may be shorter than `limit`; on the last, `next_cursor` is None."""
        where = job_filter(state=state, queue=queue, task=task, tag=tag, workflow=workflow)
        page = await self._driver.list(where, cursor=checked_cursor(cursor), limit=checked_limit(limit))
        return JobPage([Job(record, self._harbor) for record in page.jobs], cursor_after(page.next_cursor))

    list = sync_method(alist)

    async def aupdate(self, /, id: object, **changes: Unpack[JobChanges]) -> Job[Any]:
        """Change a job that is neither running nor finished: priority, run_at, payload, limits, timeout, tags."""
        refuse_unknown(changes, CHANGEABLE_OPTIONS)
        update = _update(changes)
        await self._refuse_schedule(id)
        if not isinstance(update.payload, UnsetType):
            await self._refuse_unfit_payload(id, update.payload)
        await self._operate(update, id, "jobs.update()")
        return await self.aget(id)

    update = sync_method(aupdate)

    async def acancel(self, id: object) -> Job[Any]:
        """Cancel a job that has not begun, or ask a running one to stop. A schedule loses only this occurrence."""
        refuse_inside_transaction(self._harbor, "jobs.cancel()")
        await self._harbor._collect_expired(checked_id(id))
        job = await self.aget(id)
        if job.record.options.recurrence is not None:
            await self._harbor.schedules._cancel_occurrence(job.record)
            return await self.aget(id)
        if job.record.due_at is not None and job.record.unreadable_options is not None:
            raise JobConflict(
                job.id,
                f"job {job.id} is a schedule of a newer version of TaskHarbor; cancel it with that version",
            )
        answer = await self._operate(Cancel(), id, "jobs.cancel()")
        job = await self.aget(id)
        if (
            answer.verdict is OperationVerdict.DONE
        ):  # the worker of a running job emits the event when it ends
            self._harbor._report_cancelled(job.record)
            await self._report_cancelled(answer.cancelled)
        return job

    cancel = sync_method(acancel)

    async def adelete(self, id: object) -> None:
        """Remove a job that is not running, with its history."""
        await self._operate(Delete(), id, "jobs.delete()")

    delete = sync_method(adelete)

    async def aretry(self, id: object, *, run_at: datetime | None = None, force: bool = False) -> Job[Any]:
        """Begin a new run of a dead or cancelled job."""
        return await self._harbor.dlq._requeue(id, requeue_operation(run_at), force, "jobs.retry()")

    retry = sync_method(aretry)

    async def arun_now(self, id: object) -> Job[Any]:
        """Make a scheduled job ready. For a schedule's job, this is an extra run."""
        job = await self.aget(id)
        recurrence = job.record.options.recurrence
        if recurrence is not None:
            await self._harbor.schedules._run_now(job.id, recurrence.name, "jobs.run_now()")
            return await self.aget(id)
        await self._operate(RunNow(), id, "jobs.run_now()")
        return await self.aget(id)

    run_now = sync_method(arun_now)

    async def acancel_all(self, /, filter: JobFilter | None = None, **where: Unpack[JobWhere]) -> int:
        """Cancel every matching job that is not finished; return how many."""
        return await self._operate_all(
            Cancel(), asked_filter(filter, where), CANCELLABLE, "jobs.cancel_all()"
        )

    cancel_all = sync_method(acancel_all)

    async def adelete_all(self, /, filter: JobFilter | None = None, **where: Unpack[JobWhere]) -> int:
        """Delete every matching job that is not running, but no schedule; return how many."""
        return await self._operate_all(Delete(), asked_filter(filter, where), DELETABLE, "jobs.delete_all()")

    delete_all = sync_method(adelete_all)

    async def acounts(self, queue: str | None = None) -> dict[str, int]:
        """Count the jobs in each of the seven states."""
        counts = await self._driver.counts(None if queue is None else checked_name("queue", queue))
        return {str(state): count for state, count in counts.items()}

    counts = sync_method(acounts)

    async def ahistory(self, id: object, limit: int = 10) -> builtins.list[Attempt]:
        """Return the job's attempts, newest first."""
        job_id = checked_id(id)
        attempts = await self._driver.history(job_id, checked_limit(limit))
        if not attempts:
            await self.aget(job_id)  # no attempt yet, or no such job?
        return [Attempt(record) for record in attempts]

    history = sync_method(ahistory)

    async def asteps(self, id: object) -> builtins.list[Step]:
        """Return the job's durable steps, in the order in which attempts stored them."""
        job_id = checked_id(id)
        steps = await Steps.of(self._driver).steps(job_id)
        if not steps:
            await self.aget(job_id)  # none yet, or no such job?
        found = [Step(name, decode_result(step.result), step.number) for name, step in steps.items()]
        return sorted(found, key=lambda step: (step.number, step.name))

    steps = sync_method(asteps)

    async def _refuse_unfit_payload(self, id: object, payload: str) -> None:
        """Refuse a payload that does not fit the task, if this harbor declares it."""
        job = await self.aget(id)
        task = self._harbor._known(job.task)
        if task is not None:
            task.validate(payload)

    async def _operate_all(
        self, operation: Operation, where: JobFilter, allowed: frozenset[State], verb: str
    ) -> int:
        """Apply an operation to every matching job that allows it; return how many."""
        refuse_inside_transaction(self._harbor, verb)
        await self._harbor._collect_all_expired()
        done = 0
        async for jobs in self._matching(where):
            one_off = [job for job in jobs if job.state in allowed and not _recurs(job)]
            answers = await self._driver.operate(operation, [job.id for job in one_off])
            done += sum(
                answer.verdict in (OperationVerdict.DONE, OperationVerdict.REQUESTED) for answer in answers
            )
            if isinstance(operation, Cancel):
                await self._report_ended(answers)
                done += await self._cancel_occurrences(
                    [job for job in jobs if job.options.recurrence is not None]
                )
        return done

    async def _cancel_occurrences(self, jobs: builtins.list[JobRecord]) -> int:
        """Cancel only the next or running occurrence of each schedule; the schedules go on."""
        answers = [await self._harbor.schedules._cancel_occurrence(job) for job in jobs]
        return sum(
            answer.verdict in (OperationVerdict.DONE, OperationVerdict.REQUESTED) for answer in answers
        )

    async def _refuse_schedule(self, id: object) -> None:
        job = await self.aget(id)
        if job.record.options.recurrence is not None:
            name = job.record.options.recurrence.name
            raise JobConflict(
                job.id,
                f"job {job.id} is the schedule {name!r}; change it with harbor.schedules.update({name!r}, …)",
            )

    async def _report_ended(self, answers: Sequence[OperationResult]) -> None:
        """Report the cancelled jobs, and the dependants that were cancelled with them."""
        await self._report_cancelled([a.job_id for a in answers if a.verdict is OperationVerdict.DONE])
        await self._report_cancelled([job_id for a in answers for job_id in a.cancelled])

    async def _report_cancelled(self, ids: Sequence[str]) -> None:
        if not self._harbor.events.wanted("cancelled"):
            return
        for start in range(0, len(ids), READ_AT_ONCE):
            for record in await self._driver.get(ids[start : start + READ_AT_ONCE]):
                if record is not None:
                    self._harbor._report_cancelled(record)


def _recurs(job: JobRecord) -> bool:
    """Whether it belongs to a schedule, even if a newer version wrote options that cannot be read here."""
    return job.options.recurrence is not None or (
        job.due_at is not None and job.unreadable_options is not None
    )


def _update(changes: Mapping[str, Any]) -> Update:
    if not changes:
        raise ConfigurationError(f"nothing to change was given; give {', '.join(sorted(CHANGEABLE_OPTIONS))}")
    refuse_huge(changes)
    fields: dict[str, Any] = {}
    for name, value in changes.items():
        match name:
            case "priority":
                fields[name] = checked_priority(value)
            case "run_at":
                fields[name] = checked_instant(value, name)
            case "expires_at":
                fields[name] = None if value is None else checked_instant(value, name)
            case "payload":
                fields[name] = encode_payload(value)
            case "timeout":
                fields[name] = None if value is None else checked_timeout(value)
            case "tags":
                fields[name] = checked_tags(value)
    if "max_attempts" in changes or "max_retries" in changes:
        fields["max_attempts"] = resolve_max_attempts(changes.get("max_attempts"), changes.get("max_retries"))
    return Update(**fields)
