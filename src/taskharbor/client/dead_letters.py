"""`harbor.dlq`: the dead-letter queue."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack

from taskharbor.acting import current_actor
from taskharbor.builtin_tasks import REPLAY
from taskharbor.client.actions import details_of, new_action
from taskharbor.client.error_groups import ErrorGroup, checked_brake, filter_payload
from taskharbor.client.filters import Count, DeadWhere, checked_limit, dead_filter
from taskharbor.client.handle import Job
from taskharbor.client.jobs import JobPage
from taskharbor.client.operating import Operator, conflict, requeue_operation
from taskharbor.client.options import checked_id
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.drivers.base import Action, DeadLetter, Discard, Operation, OperationVerdict, Requeue, Verb
from taskharbor.drivers.capabilities import Groups, Steps
from taskharbor.errors import ConfigurationError, JobConflict
from taskharbor.records import PRIORITY_MAX, JobFilter
from taskharbor.rules.grouping import Grouping, is_stored_with_dead
from taskharbor.rules.lifecycle import REQUEUEABLE
from taskharbor.rules.operating import needs_force
from taskharbor.rules.replaying import BRAKE


class DeadLetters(Operator):
    """`harbor.dlq`: the jobs in state dead."""

    async def alist(
        self, *, cursor: str | None = None, limit: int = 100, **where: Unpack[DeadWhere]
    ) -> JobPage:
        """List matching dead jobs, newest first."""
        return await self._harbor.jobs._page(dead_filter(None, where), cursor, limit)

    list = sync_method(alist)

    async def acount(self, /, filter: JobFilter | None = None, **where: Unpack[DeadWhere]) -> Count:
        """Count the matching dead jobs, up to 10,000; of more, the text of the count is `10,000+`."""
        return await self._harbor.jobs.acount(dead_filter(filter, where))

    count = sync_method(acount)

    async def agroups(
        self, /, filter: JobFilter | None = None, *, limit: int = 100, **where: Unpack[DeadWhere]
    ) -> builtins.list[ErrorGroup]:
        """Group the matching dead jobs by the fingerprints of what they died of, the largest groups first."""
        dead, most = dead_filter(filter, where), checked_limit(limit)
        store = Groups.offered_by(self._driver)
        if store is not None and is_stored_with_dead(dead):
            return [ErrorGroup.of(each) for each in await store.groups(dead, most)]
        grouping = Grouping()
        async for jobs in self._matching(dead):
            grouping.add(jobs)
        return [ErrorGroup.of(each) for each in grouping.largest(most)]

    groups = sync_method(agroups)

    async def areplay(
        self,
        /,
        filter: JobFilter | None = None,
        *,
        brake: float = BRAKE,
        on_queue: str | None = None,
        **where: Unpack[DeadWhere],
    ) -> Job[Any]:
        """Enqueue a job that requeues the matching dead jobs in slices of 1, 10, 100 and then 1,000.

        After each slice it waits until all of its jobs have succeeded or failed once. If more than `brake` of them,
        a share, failed with the fingerprint that they had died of, it stops by itself. It skips at_most_once jobs
        that may have been executed. It runs on the queue of the newest of these jobs, unless `on_queue` names another.
        """
        dead, share = dead_filter(filter, where), checked_brake(brake)
        Steps.of(self._driver)  # or refuse now what could not remember its slices
        if on_queue is None:
            newest = await anext(self._matching(dead), None)
            if newest is None:
                raise ConfigurationError("no dead job matches, so there is nothing to replay")
            on_queue = newest[0].queue
        payload = {"where": filter_payload(dead), "brake": share, "actor": current_actor()}
        return await self._harbor.aenqueue(REPLAY, payload, queue=on_queue, priority=PRIORITY_MAX)

    replay = sync_method(areplay)

    async def aadd(self, id: object) -> Job[Any]:
        """Dead-letter a job that has not finished and is not running: it becomes dead, reason operator."""
        refuse_inside_transaction(self._harbor, "dlq.add()")
        job = await self._harbor.jobs.aget(id)
        self._refuse_schedule_job(
            job.record, "pause it with harbor.schedules.pause({name!r}), or cancel this occurrence"
        )
        answer = await self._operate(DeadLetter(), id, "dlq.add()")
        job = await self._harbor.jobs.aget(id)
        self._harbor._report_dead_lettered(job.record)
        await self._harbor.jobs._report_cancelled(answer.cancelled)
        return job

    add = sync_method(aadd)

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
        await self._operate(operation, job_id, verb, {"force": True} if force else None)
        return await self._harbor.jobs.aget(job_id)

    async def arequeue_all(
        self,
        /,
        filter: JobFilter | None = None,
        *,
        run_at: datetime | None = None,
        reset_attempts: bool = True,
        dry_run: bool = False,
        **where: Unpack[DeadWhere],
    ) -> int:
        """Requeue every matching dead job, except at_most_once ones that may have been executed; return how many.

        With `dry_run`, only count them.
        """
        dead = dead_filter(filter, where)
        operation = requeue_operation(run_at, reset_attempts, only_dead=True)
        if dry_run:
            return await self._count_matching(dead, lambda job: not needs_force(job))
        refuse_inside_transaction(self._harbor, "dlq.requeue_all()")
        await self._harbor._collect_all_expired()
        done = 0
        action = new_action(Verb.REQUEUE, where=dead, details=details_of(operation))
        async for jobs in self._matching(dead):
            ids = [job.id for job in jobs if not needs_force(job)]
            done += len(await self._done(operation, ids, action))
        return done

    requeue_all = sync_method(arequeue_all)

    async def adiscard(self, id: object) -> Job[Any]:
        """Take a dead job out of the dead-letter queue: it becomes cancelled, reason discarded."""
        await self._operate(Discard(), id, "dlq.discard()")
        job = await self._harbor.jobs.aget(id)
        self._harbor._report_cancelled(job.record)
        return job

    discard = sync_method(adiscard)

    async def adiscard_all(
        self, /, filter: JobFilter | None = None, *, dry_run: bool = False, **where: Unpack[DeadWhere]
    ) -> int:
        """Discard every matching dead job; return how many. With `dry_run`, only count them."""
        dead = dead_filter(filter, where)
        if dry_run:
            await self._harbor._collect_all_expired()
            return await self.acount(dead)
        refuse_inside_transaction(self._harbor, "dlq.discard_all()")
        await self._harbor._collect_all_expired()
        done = 0
        action = new_action(Verb.DISCARD, where=dead)
        async for jobs in self._matching(dead):
            discarded = await self._done(Discard(), [job.id for job in jobs], action)
            await self._harbor.jobs._report_cancelled(discarded)
            done += len(discarded)
        return done

    discard_all = sync_method(adiscard_all)

    async def _done(self, operation: Operation, ids: Sequence[str], action: Action) -> builtins.list[str]:
        answers = await self._apply(operation, ids, action)
        return [answer.job_id for answer in answers if answer.verdict is OperationVerdict.DONE]
