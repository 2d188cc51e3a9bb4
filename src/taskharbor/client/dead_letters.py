"""`harbor.dlq`: the dead-letter queue."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack

from taskharbor.client.filters import DeadWhere, asked_filter
from taskharbor.client.handle import Job
from taskharbor.client.jobs import JobPage
from taskharbor.client.operating import Operator, conflict, requeue_operation
from taskharbor.client.options import checked_id
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.drivers.base import Discard, Operation, OperationVerdict, Requeue
from taskharbor.errors import ConfigurationError, JobConflict
from taskharbor.records import JobFilter, State
from taskharbor.rules.lifecycle import REQUEUEABLE
from taskharbor.rules.operating import needs_force


class DeadLetters(Operator):
    """`harbor.dlq`: the jobs in state dead."""

    async def alist(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        tag: str | None = None,
        workflow: object = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """List matching dead jobs, newest first."""
        return await self._harbor.jobs.alist(
            state=State.DEAD, queue=queue, task=task, tag=tag, workflow=workflow, cursor=cursor, limit=limit
        )

    list = sync_method(alist)

    async def arequeue(
        self,
        id: object,
        run_at: datetime | None = None,
        reset_attempts: bool = True,
        *,
        force: bool = False,
    ) -> Job[Any]:
        """Begin a new run of a dead (or cancelled) job. An at_most_once one that was claimed needs `force=True`."""
        return await self._requeue(id, requeue_operation(run_at, reset_attempts), force, "dlq.requeue()")

    requeue = sync_method(arequeue)

    async def _requeue(self, id: object, operation: Requeue, force: bool, verb: str) -> Job[Any]:
        job_id = checked_id(id)
        refuse_inside_transaction(self._harbor, verb)
        await self._harbor._collect_expired(job_id)
        job = await self._harbor.jobs.aget(job_id)
        if job.state not in REQUEUEABLE:
            raise conflict(job_id, job.state, Requeue)
        if needs_force(job.record) and not force:
            raise JobConflict(
                job_id,
                f"job {job_id} is at_most_once and may have been executed; give force=True to run it again",
            )
        await self._operate(operation, job_id, verb)
        return await self._harbor.jobs.aget(job_id)

    async def arequeue_all(
        self,
        /,
        filter: JobFilter | None = None,
        *,
        run_at: datetime | None = None,
        reset_attempts: bool = True,
        **where: Unpack[DeadWhere],
    ) -> int:
        """Requeue every matching dead job except at_most_once ones; return how many."""
        dead = _dead_filter(filter, where)
        operation = requeue_operation(run_at, reset_attempts)
        refuse_inside_transaction(self._harbor, "dlq.requeue_all()")
        await self._harbor._collect_all_expired()
        done = 0
        async for jobs in self._matching(dead):
            ids = [job.id for job in jobs if not needs_force(job)]
            done += len(await self._done(operation, ids))
        return done

    requeue_all = sync_method(arequeue_all)

    async def adiscard(self, id: object) -> Job[Any]:
        """Take a dead job out of the dead-letter queue: it becomes cancelled, reason discarded."""
        await self._operate(Discard(), id, "dlq.discard()")
        job = await self._harbor.jobs.aget(id)
        self._harbor._report_cancelled(job.record)
        return job

    discard = sync_method(adiscard)

    async def adiscard_all(self, /, filter: JobFilter | None = None, **where: Unpack[DeadWhere]) -> int:
        """Discard every matching dead job; return how many."""
        dead = _dead_filter(filter, where)
        refuse_inside_transaction(self._harbor, "dlq.discard_all()")
        await self._harbor._collect_all_expired()
        done = 0
        async for jobs in self._matching(dead):
            discarded = await self._done(Discard(), [job.id for job in jobs])
            await self._harbor.jobs._report_cancelled(discarded)
            done += len(discarded)
        return done

    discard_all = sync_method(adiscard_all)

    async def _done(self, operation: Operation, ids: Sequence[str]) -> builtins.list[str]:
        answers = await self._driver.operate(operation, ids)
        return [answer.job_id for answer in answers if answer.verdict is OperationVerdict.DONE]


def _dead_filter(filter: JobFilter | None, where: DeadWhere) -> JobFilter:
    asked = asked_filter(filter, where)
    if asked.state not in (None, State.DEAD):
        raise ConfigurationError(f"only dead jobs are in the dead-letter queue, not {asked.state} ones")
    return JobFilter(State.DEAD, asked.queue, asked.task, asked.tag, asked.workflow)
