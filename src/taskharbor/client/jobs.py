"""`harbor.jobs`: read and operate on jobs."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack

from msgspec import UnsetType
from msgspec.structs import replace

from taskharbor.acting import current_actor
from taskharbor.builtin_tasks import BULK
from taskharbor.client.actions import details_of, new_action
from taskharbor.client.error_groups import filter_payload
from taskharbor.client.filters import (
    COUNT_MAX,
    FILTERS,
    Count,
    JobWhere,
    asked_filter,
    checked_cursor,
    checked_limit,
    checked_prefix,
    cursor_above,
    cursor_after,
    dead_filter,
    is_whole_id,
    job_filter,
)
from taskharbor.client.handle import Attempt, Job, Step
from taskharbor.client.operating import VERBS, Operator, is_of_schedule, not_found, requeue_operation
from taskharbor.client.options import checked_id, refuse_unknown
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.client.updating import BULK_OPTIONS, BulkUpdate, JobChanges, checked_update
from taskharbor.clock import from_micros
from taskharbor.codec import checked_name, decode_result, shorten
from taskharbor.drivers.base import (
    Action,
    Cancel,
    Delete,
    Operation,
    OperationResult,
    OperationVerdict,
    RunNow,
    Verb,
)
from taskharbor.drivers.capabilities import Steps
from taskharbor.errors import ConfigurationError, JobConflict
from taskharbor.records import PRIORITY_MAX, JobFilter, JobRecord, State
from taskharbor.rules.lifecycle import CANCELLABLE, CHANGEABLE, DELETABLE
from taskharbor.telemetry.reports import READ_AT_ONCE

CANDIDATES_MAX = 10  # ids that an ambiguous prefix names

if TYPE_CHECKING:
    from taskharbor.rules.why_facts import Why


class JobPage(list[Job[Any]]):
    """A page of jobs; `next_cursor` continues the list, and is None at its end.

    A search that no index serves looks at the newest jobs for a tenth of a second, or at 100,000 of them. If it ended
    so, `reached` is the time at which the last of these was enqueued, and `next_cursor` goes on from there.
    """

    def __init__(
        self,
        jobs: list[Job[Any]],
        next_cursor: str | None,
        *,
        examined: int = 0,
        reached: datetime | None = None,
    ) -> None:
        super().__init__(jobs)
        self.next_cursor = next_cursor
        self.examined = examined
        self.reached = reached


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

    async def afind(self, prefix: object) -> Job[Any]:
        """Return the job whose id is this, or the only one whose id begins so (at least 4 characters)."""
        begin = checked_prefix(prefix)
        page = await self._driver.list(JobFilter(), cursor=cursor_above(begin), limit=CANDIDATES_MAX + 1)
        found = [record for record in page.jobs if record.id.startswith(begin)]
        if not found:
            raise not_found(begin)
        if len(found) > 1:
            named = ", ".join(record.id for record in found[:CANDIDATES_MAX])
            more = " and more" if len(found) > CANDIDATES_MAX else ""
            raise ConfigurationError(
                f"several jobs have an id that begins with {begin}: {named}{more}; give more of it"
            )
        return Job(found[0], self._harbor)

    find = sync_method(afind)

    async def _whole_id(self, text: str) -> str:
        """Return the id that was given, or the only one that begins so."""
        return checked_id(text) if is_whole_id(text) else (await self.afind(text)).id

    async def awhy(self, id: object) -> Why:
        """Return why the job with this id does not run, or does. `str()` gives the sentence."""
        from taskharbor.client.why import why

        return await why(self._harbor, checked_id(id))

    why = sync_method(awhy)

    async def alist(
        self, *, cursor: str | None = None, limit: int = 100, **where: Unpack[JobWhere]
    ) -> JobPage:
        """List matching jobs, newest first. A page may be shorter than `limit`; on the last, `next_cursor` is None."""
        return await self._page(job_filter(**where), cursor, limit)

    list = sync_method(alist)

    async def _page(self, where: JobFilter, cursor: str | None, limit: int) -> JobPage:
        page = await self._driver.list(where, cursor=checked_cursor(cursor), limit=checked_limit(limit))
        return JobPage(
            [Job(record, self._harbor) for record in page.jobs],
            cursor_after(page.next_cursor),
            examined=page.examined,
            reached=None if page.reached is None else from_micros(page.reached),
        )

    async def acount(self, /, filter: JobFilter | None = None, **where: Unpack[JobWhere]) -> Count:
        """Count the matching jobs, up to 10,000; of more, the text of the count is `10,000+`."""
        asked = asked_filter(filter, where)
        found, cursor = 0, None
        while True:
            counted = await self._driver.count(asked, cursor=cursor, limit=COUNT_MAX + 1 - found)
            found, cursor = found + counted.jobs, counted.next_cursor
            if found > COUNT_MAX:
                return Count(COUNT_MAX, more=True)
            if cursor is None:
                return Count(found)

    count = sync_method(acount)

    async def aupdate(self, /, id: object, **changes: Unpack[JobChanges]) -> Job[Any]:
        """Change a job that is neither running nor finished: priority, run_at, payload, limits, timeout, tags, expiry,
        retry policy.

        A new policy brings its limit, unless one is given as well. `retry="declared"` takes the job's own policy away:
        it follows the code again.
        """
        update = await checked_update(changes, self._driver)
        await self._refuse_schedule(id)
        if not isinstance(update.payload, UnsetType):
            await self._refuse_unfit_payload(id, update.payload)
            update = replace(update, payload=self._harbor.sealing.seal(update.payload))
        await self._operate(update, id, "jobs.update()")
        return await self.aget(id)

    update = sync_method(aupdate)

    async def acancel(self, id: object) -> Job[Any]:
        """Cancel a job that has not begun, or ask a running one to stop. A schedule loses only this occurrence."""
        refuse_inside_transaction(self._harbor, "jobs.cancel()")
        await self._harbor._collect_expired(checked_id(id))
        job = await self.aget(id)
        if job.record.options.recurrence is not None:
            action = new_action(Verb.CANCEL, job_id=job.id)
            await self._harbor.schedules._cancel_occurrence(job.record, action)
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
            action = new_action(Verb.RUN_NOW, job_id=job.id, subject=recurrence.name)
            await self._harbor.schedules._run_now(job.id, recurrence.name, "jobs.run_now()", action)
            return await self.aget(id)
        await self._operate(RunNow(), id, "jobs.run_now()")
        return await self.aget(id)

    run_now = sync_method(arun_now)

    async def acancel_all(
        self, /, filter: JobFilter | None = None, *, dry_run: bool = False, **where: Unpack[JobWhere]
    ) -> int:
        """Cancel every matching job that is not finished; return how many. With `dry_run`, only count them."""
        asked = asked_filter(filter, where)
        if dry_run:
            return await self._count_matching(asked, lambda job: job.state in CANCELLABLE)
        return await self._operate_all(Cancel(), asked, CANCELLABLE, "jobs.cancel_all()")

    cancel_all = sync_method(acancel_all)

    async def adelete_all(
        self, /, filter: JobFilter | None = None, *, dry_run: bool = False, **where: Unpack[JobWhere]
    ) -> int:
        """Delete every matching job that is not running, but no schedule; return how many.

        With `dry_run`, only count them; some that a job or a workflow still needs may be among these.
        """
        asked = asked_filter(filter, where)
        if dry_run:
            return await self._count_matching(
                asked, lambda job: job.state in DELETABLE and not is_of_schedule(job)
            )
        return await self._operate_all(Delete(), asked, DELETABLE, "jobs.delete_all()")

    delete_all = sync_method(adelete_all)

    async def aupdate_all(
        self, /, filter: JobFilter | None = None, *, dry_run: bool = False, **given: Unpack[BulkUpdate]
    ) -> int:
        """Change every matching job that is neither running nor finished, but no schedule; return how many.

        Beside the filter it takes what `update` takes, except a payload: `update_all(task="mail:send", timeout=30)`.
        With `dry_run`, only count them.
        """
        refuse_unknown(given, FILTERS | BULK_OPTIONS, "argument")
        changes = {name: value for name, value in given.items() if name in BULK_OPTIONS}
        where: Any = {name: value for name, value in given.items() if name not in BULK_OPTIONS}
        asked = asked_filter(filter, where)
        update = await checked_update(changes, self._driver, BULK_OPTIONS)
        if dry_run:
            return await self._count_matching(
                asked, lambda job: job.state in CHANGEABLE and not is_of_schedule(job)
            )
        return await self._operate_all(update, asked, CHANGEABLE, "jobs.update_all()")

    update_all = sync_method(aupdate_all)

    async def astart_bulk(
        self,
        verb: Literal["requeue", "discard", "cancel", "delete"],
        /,
        filter: JobFilter | None = None,
        *,
        everything: bool = False,
        on_queue: str | None = None,
        **where: Unpack[JobWhere],
    ) -> Job[Any]:
        """Enqueue a job that does this to every matching job that is there now; its progress says how far it is.

        Cancel it to stop it: what it has done stays done. It runs on the queue of the newest matching job, unless
        `on_queue` names another. Without a filter it is refused, unless `everything` is True.
        """
        from taskharbor.bulk import OF_DEAD, VERBS

        if verb not in VERBS:
            raise ConfigurationError(f"a bulk job does one of {', '.join(VERBS)}, not {shorten(verb)}")
        asked = asked_filter(filter, where)
        if (asked == job_filter()) != everything:
            raise ConfigurationError(
                "everything=True and a filter were both given; give one of them"
                if everything
                else f"without a filter, it would {verb} every job of the store: give a filter, or everything=True"
            )
        if verb in OF_DEAD:
            asked = dead_filter(asked, {})
        if on_queue is None:
            newest = await anext(self._matching(asked), None)
            if newest is None:
                raise ConfigurationError(f"no job matches, so there is nothing to {verb}")
            on_queue = newest[0].queue
        payload = {"verb": verb, "where": filter_payload(asked), "actor": current_actor()}
        return await self._harbor.aenqueue(BULK, payload, queue=on_queue, priority=PRIORITY_MAX)

    start_bulk = sync_method(astart_bulk)

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
        shown = self._harbor.sealing.shown
        found = [Step(name, decode_result(shown(step.result)), step.number) for name, step in steps.items()]
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
        action = new_action(VERBS[type(operation)], where=where, details=details_of(operation))
        async for jobs in self._matching(where):
            one_off = [job for job in jobs if job.state in allowed and not is_of_schedule(job)]
            answers = await self._apply(operation, [job.id for job in one_off], action)
            done += sum(
                answer.verdict in (OperationVerdict.DONE, OperationVerdict.REQUESTED) for answer in answers
            )
            if isinstance(operation, Cancel):
                await self._report_ended(answers)
                done += await self._cancel_occurrences(
                    [job for job in jobs if job.options.recurrence is not None], action
                )
        return done

    async def _cancel_occurrences(self, jobs: builtins.list[JobRecord], action: Action) -> int:
        """Cancel only the next or running occurrence of each schedule; the schedules go on."""
        answers = [await self._harbor.schedules._cancel_occurrence(job, action) for job in jobs]
        return sum(
            answer.verdict in (OperationVerdict.DONE, OperationVerdict.REQUESTED) for answer in answers
        )

    async def _refuse_schedule(self, id: object) -> None:
        job = await self.aget(id)
        if job.record.options.recurrence is not None:
            self._refuse_schedule_job(job.record, "change it with harbor.schedules.update({name!r}, …)")

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
