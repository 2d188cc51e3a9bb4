"""`harbor.jobs`, `harbor.dlq`, `harbor.queues`: what people do to jobs and queues."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct

from taskharbor.client.facade import synced
from taskharbor.client.handle import Attempt, Job
from taskharbor.client.options import (
    checked_id,
    checked_instant,
    checked_priority,
    checked_tags,
    checked_timeout,
    refuse_huge,
    refuse_unknown,
)
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.clock import from_micros
from taskharbor.codec import checked_name, encode_payload, shorten
from taskharbor.collecting import collect_expired
from taskharbor.drivers.base import (
    Cancel,
    Delete,
    Discard,
    Operated,
    Operation,
    Requeue,
    RunNow,
    Update,
    Verdict,
)
from taskharbor.errors import ConfigurationError, JobConflict, JobNotFound
from taskharbor.job import Delivery, JobFilter, JobRecord, State
from taskharbor.lifecycle import CANCELLABLE, DELETABLE, REQUEUEABLE
from taskharbor.retry import resolve_max_attempts

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

FILTERS = frozenset(JobFilter.__struct_fields__)
PAGE_MAX = 1_000
BULK_PAGE = 500
CHANGEABLE_OPTIONS = frozenset(
    {"priority", "run_at", "payload", "max_attempts", "max_retries", "timeout", "tags", "expires_at"}
)


class JobPage(list[Job[Any]]):
    """A page of jobs; `next_cursor` continues the list, and is None at its end."""

    def __init__(self, jobs: list[Job[Any]], next_cursor: str | None) -> None:
        super().__init__(jobs)
        self.next_cursor = next_cursor


class Queue(Struct, frozen=True):
    """A queue as it stands."""

    name: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    oldest_ready_at: datetime | None
    oldest_ready_age: timedelta | None

    @property
    def depth(self) -> int:
        """Jobs that are ready to run."""
        return self.ready


class _Operator:
    def __init__(self, harbor: Harbor) -> None:
        self._harbor = harbor

    async def _operate(self, operation: Operation, id: object, wanted: str) -> Operated:
        """Do it to one job, or raise what stands against it."""
        job_id = checked_id(id)
        refuse_inside_transaction(self._harbor, "this")
        # A job whose lease has expired only looks like running: the policy puts it where it belongs first.
        await self._harbor.collect_expired(job_id)
        [answer] = await self._harbor.driver.operate(operation, [job_id])
        if answer.verdict is Verdict.NOT_FOUND:
            raise _not_found(job_id)
        if answer.verdict is Verdict.CONFLICT:
            raise _conflict(job_id, answer.state, wanted)
        return answer

    async def _matching(self, where: JobFilter) -> AsyncIterator[list[JobRecord]]:
        cursor: str | None = None
        while True:
            page = await self._harbor.driver.list(where, cursor=cursor, limit=BULK_PAGE)
            if page.jobs:
                yield page.jobs
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _operate_all(self, operation: Operation, where: JobFilter, allowed: frozenset[State]) -> int:
        """Do it to every job that matches and allows it; how many that were."""
        refuse_inside_transaction(self._harbor, "this")
        await collect_expired(self._harbor.driver)
        done = 0
        async for jobs in self._matching(where):
            ids = [job.id for job in jobs if job.state in allowed]
            answers = await self._harbor.driver.operate(operation, ids)
            done += sum(answer.verdict in (Verdict.DONE, Verdict.REQUESTED) for answer in answers)
            if isinstance(operation, Cancel):
                await self._tell_cancelled([a.job_id for a in answers if a.verdict is Verdict.DONE])
        return done

    async def _tell_cancelled(self, ids: list[str]) -> None:
        if self._harbor.events.wanted("cancelled"):
            for record in await self._harbor.driver.get(ids):
                if record is not None:
                    self._harbor.tell_cancelled(record)


class Jobs(_Operator):
    """`harbor.jobs`"""

    async def aget(self, id: object) -> Job[Any]:
        """The job with this id, or JobNotFound."""
        job_id = checked_id(id)
        [record] = await self._harbor.driver.get([job_id])
        if record is None:
            raise _not_found(job_id)
        return Job(record, self._harbor)

    get = synced(aget)

    async def alist(
        self,
        *,
        state: str | State | None = None,
        queue: str | None = None,
        task: str | None = None,
        tag: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Jobs that match, newest first. A page may be shorter than `limit`; the end is `next_cursor` None."""
        where = job_filter(state=state, queue=queue, task=task, tag=tag)
        page = await self._harbor.driver.list(where, cursor=_cursor(cursor), limit=_limit(limit))
        return JobPage([Job(record, self._harbor) for record in page.jobs], page.next_cursor)

    list = synced(alist)

    async def aupdate(self, /, id: object, **changes: Any) -> Job[Any]:
        """Change a job that is neither running nor finished: priority, run_at, payload, limits, timeout, tags."""
        refuse_unknown(changes, CHANGEABLE_OPTIONS)
        update = _update(changes)
        if update.payload is not UNSET:
            update = await self._fitting_payload(id, update)
        await self._operate(update, id, "changed")
        return await self.aget(id)

    update = synced(aupdate)

    async def acancel(self, id: object) -> Job[Any]:
        """End a job that has not begun; ask a running one to end."""
        answer = await self._operate(Cancel(), id, "cancelled")
        job = await self.aget(id)
        if answer.verdict is Verdict.DONE:  # a running one ends in its worker, which tells of it then
            self._harbor.tell_cancelled(job.record)
        return job

    cancel = synced(acancel)

    async def adelete(self, id: object) -> None:
        """Remove a job that is not running, with its history."""
        await self._operate(Delete(), id, "deleted")

    delete = synced(adelete)

    async def aretry(self, id: object, *, run_at: datetime | None = None, force: bool = False) -> Job[Any]:
        """Begin a new run of a dead or cancelled job."""
        return await self._harbor.dlq.arequeue(id, run_at=run_at, force=force)

    retry = synced(aretry)

    async def arun_now(self, id: object) -> Job[Any]:
        """Make a scheduled job ready."""
        await self._operate(RunNow(), id, "run now: only a scheduled one can")
        return await self.aget(id)

    run_now = synced(arun_now)

    async def acancel_all(self, /, filter: JobFilter | None = None, **where: Any) -> int:
        """Cancel every job that matches and is not finished; how many."""
        return await self._operate_all(Cancel(), _asked(filter, where), CANCELLABLE)

    cancel_all = synced(acancel_all)

    async def adelete_all(self, /, filter: JobFilter | None = None, **where: Any) -> int:
        """Delete every job that matches and is not running; how many."""
        return await self._operate_all(Delete(), _asked(filter, where), DELETABLE)

    delete_all = synced(adelete_all)

    async def acounts(self, queue: str | None = None) -> dict[str, int]:
        """How many jobs stand in each of the seven states."""
        counts = await self._harbor.driver.counts(None if queue is None else checked_name("queue", queue))
        return {str(state): count for state, count in counts.items()}

    counts = synced(acounts)

    async def ahistory(self, id: object, limit: int = 10) -> builtins.list[Attempt]:
        """The job's attempts, newest first."""
        job_id = checked_id(id)
        attempts = await self._harbor.driver.history(job_id, _limit(limit))
        if not attempts:
            await self.aget(job_id)  # no attempt yet, or no such job?
        return [Attempt(record) for record in attempts]

    history = synced(ahistory)

    async def _fitting_payload(self, id: object, update: Update) -> Update:
        job = await self.aget(id)
        task = self._harbor.tasks.get(job.task)
        if task is not None and isinstance(update.payload, str):
            task.plan.decode(update.payload)
        return update


class DeadLetters(_Operator):
    """`harbor.dlq`: the jobs in state dead, with everything about why."""

    async def alist(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        tag: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Dead jobs that match, newest first."""
        return await self._harbor.jobs.alist(
            state=State.DEAD, queue=queue, task=task, tag=tag, cursor=cursor, limit=limit
        )

    list = synced(alist)

    async def arequeue(
        self,
        id: object,
        run_at: datetime | None = None,
        reset_attempts: bool = True,
        *,
        force: bool = False,
    ) -> Job[Any]:
        """Begin a new run of a dead (or cancelled) job. An at_most_once one that was claimed needs `force=True`."""
        operation = _requeue(run_at, reset_attempts)
        refuse_inside_transaction(self._harbor, "this")
        await self._harbor.collect_expired(checked_id(id))
        job = await self._harbor.jobs.aget(id)
        wanted = "requeued: only a dead or cancelled one can"
        if job.state not in REQUEUEABLE:
            raise _conflict(job.id, job.state, wanted)
        if job.delivery is Delivery.AT_MOST_ONCE and job.number and not force:
            raise JobConflict(
                job.id,
                f"job {job.id} is at_most_once and may have been executed; give force=True to run it again",
            )
        await self._operate(operation, id, wanted)
        return await self._harbor.jobs.aget(id)

    requeue = synced(arequeue)

    async def arequeue_all(
        self,
        /,
        filter: JobFilter | None = None,
        *,
        run_at: datetime | None = None,
        reset_attempts: bool = True,
        **where: Any,
    ) -> int:
        """Requeue every dead job that matches; how many. Jobs that are at_most_once are left alone."""
        asked = _asked(filter, where)
        if asked.state not in (None, State.DEAD):
            raise ConfigurationError(f"only dead jobs are in the dead-letter queue, not {asked.state} ones")
        dead = JobFilter(State.DEAD, asked.queue, asked.task, asked.tag)
        operation = _requeue(run_at, reset_attempts)
        refuse_inside_transaction(self._harbor, "this")
        await collect_expired(self._harbor.driver)
        done = 0
        async for jobs in self._matching(dead):
            ids = [job.id for job in jobs if job.delivery is not Delivery.AT_MOST_ONCE]
            answers = await self._harbor.driver.operate(operation, ids)
            done += sum(answer.verdict is Verdict.DONE for answer in answers)
        return done

    requeue_all = synced(arequeue_all)

    async def adiscard(self, id: object) -> Job[Any]:
        """Take a dead job out of the queue for good: it becomes cancelled, reason discarded."""
        await self._operate(Discard(), id, "discarded: only a dead one can")
        job = await self._harbor.jobs.aget(id)
        self._harbor.tell_cancelled(job.record)
        return job

    discard = synced(adiscard)


class Queues(_Operator):
    """`harbor.queues`"""

    async def alist(self) -> list[Queue]:
        """Every queue that holds runnable or running jobs, or is paused."""
        now = await self._harbor.driver.now()
        return [
            Queue(
                q.name,
                q.paused,
                q.ready,
                q.scheduled,
                q.running,
                None if q.oldest_ready_at is None else from_micros(q.oldest_ready_at),
                None if q.oldest_ready_at is None else timedelta(microseconds=now - q.oldest_ready_at),
            )
            for q in await self._harbor.driver.queues()
        ]

    list = synced(alist)

    async def apause(self, name: str) -> None:
        """Stop this queue's jobs from being claimed; those claimed but not begun are handed back."""
        await self._set_paused(name, True)

    pause = synced(apause)

    async def aresume(self, name: str) -> None:
        """Let this queue's jobs be claimed again."""
        await self._set_paused(name, False)

    resume = synced(aresume)

    async def _set_paused(self, name: str, paused: bool) -> None:
        queue = checked_name("queue", name)
        refuse_inside_transaction(self._harbor, "this")
        await self._harbor.driver.pause(queue, paused)


def job_filter(
    *,
    state: str | State | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
) -> JobFilter:
    """A filter from what a caller gave, each part checked."""
    return JobFilter(
        None if state is None else _state(state),
        None if queue is None else checked_name("queue", queue),
        None if task is None else checked_name("task", task),
        None if tag is None else checked_name("tag", tag),
    )


def _asked(filter: JobFilter | None, where: dict[str, Any]) -> JobFilter:
    """What a bulk operation means: one filter, or its parts as keywords; never more than was written."""
    if filter is None:
        refuse_unknown(where, FILTERS)
        return job_filter(**where)
    if where:
        raise ConfigurationError("a filter and its parts as keywords were both given; give one of them")
    if not isinstance(filter, JobFilter):
        raise ConfigurationError(
            f"a filter is a JobFilter, not {shorten(filter)}; or give its parts: queue=…, task=…, tag=…"
        )
    return job_filter(state=filter.state, queue=filter.queue, task=filter.task, tag=filter.tag)


def _state(value: object) -> State:
    try:
        return State(str(value))
    except ValueError:
        raise ConfigurationError(
            f"no state is called {shorten(value)}; the states are {', '.join(State)}"
        ) from None


def _update(changes: Mapping[str, Any]) -> Update:
    if not changes:
        raise ConfigurationError(f"nothing to change was given; give {', '.join(sorted(CHANGEABLE_OPTIONS))}")
    refuse_huge(dict(changes))
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


def _requeue(run_at: datetime | None, reset_attempts: bool) -> Requeue:
    return Requeue(None if run_at is None else checked_instant(run_at, "run_at"), reset_attempts)


def _limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise ConfigurationError(f"limit must be a whole number from 1 to {PAGE_MAX}, not {shorten(limit)}")
    return limit


def _cursor(cursor: str | None) -> str | None:
    try:
        return None if cursor is None else checked_id(cursor)
    except ConfigurationError:
        raise ConfigurationError(
            f"a cursor is the next_cursor of an earlier page, a UUID, not {shorten(cursor)}"
        ) from None


def _conflict(job_id: str, state: State | None, wanted: str) -> JobConflict:
    return JobConflict(job_id, f"job {job_id} is {state}, so it cannot be {wanted}")


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(job_id, f"no job has the id {job_id}; it never existed, or it was deleted or pruned")
