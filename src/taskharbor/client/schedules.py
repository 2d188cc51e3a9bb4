"""`harbor.schedules`: recurring jobs, by name."""

from __future__ import annotations

import builtins
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from taskharbor.builtin_tasks import TRIAL_NAMES as BUILT_IN
from taskharbor.client.actions import HIDDEN, new_action
from taskharbor.client.operating import Operator
from taskharbor.client.options import merged, refuse_stranger, with_limit_of_policy
from taskharbor.client.schedule import (
    JOB_OPTIONS,
    RECURRENCE_OPTIONS,
    Schedule,
    ScheduleChanges,
    ScheduleOptions,
    checked_job_options,
    checked_recurrence,
    recurring,
    recurring_job,
    schedule_id,
)
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.codec import checked_name, encode_payload
from taskharbor.drivers.base import (
    Action,
    Cancel,
    Delete,
    OperationResult,
    OperationVerdict,
    Seen,
    Update,
    Verb,
)
from taskharbor.drivers.capabilities import Upkeep
from taskharbor.errors import ConfigurationError, JobConflict, JobNotFound, StoreUnavailable
from taskharbor.records import SCHEDULE_TAG, JobFilter, JobRecord, NewJob, Options, Recurrence, State
from taskharbor.rules.lifecycle import TERMINAL
from taskharbor.rules.recurrence import after_cancelling
from taskharbor.rules.standing import PARKED_AT
from taskharbor.telemetry.logs import log_line

if TYPE_CHECKING:
    from taskharbor.client.task import Task
    from taskharbor.schedule import Schedule as Recurring

logger = logging.getLogger("taskharbor")

ROUNDS_MAX = 100  # attempts at a change that others keep overtaking, before it is an error
CHANGEABLE = JOB_OPTIONS | RECURRENCE_OPTIONS | {"task", "payload"}
HISTORY_BATCH = 200  # schedules whose history is pruned in one transaction

Change = Callable[[JobRecord, int], Update | None]


class Schedules(Operator):
    """`harbor.schedules`: recurring jobs. A name belongs to an application, by default this harbor's."""

    # -- reading --

    async def alist(self, application: str | None = None) -> builtins.list[Schedule]:
        """List every schedule of the store, or of one application, by name."""
        wanted = None if application is None else checked_name("application", application)
        found = [
            self._schedule_of(record, recurrence)
            async for record, recurrence in self._all()
            if wanted is None or recurrence.application == wanted
        ]
        return sorted(found, key=lambda each: (each.application, each.name))

    list = sync_method(alist)

    async def aget(self, name: str, *, application: str | None = None) -> Schedule:
        """Return the schedule of this name, or raise JobNotFound."""
        record, recurrence = await self._record(self._id(name, application), name)
        return self._schedule_of(record, recurrence)

    get = sync_method(aget)

    # -- changing --

    async def aadd(
        self,
        /,
        name: str,
        task: str,
        payload: Mapping[str, Any] | None = None,
        *,
        schedule: str | Recurring,
        application: str | None = None,
        replace: bool = True,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Create a schedule for this task, or change the one of the same name. With `replace=False` a schedule that
        exists is an error instead: JobConflict.

        Further options: timezone, misfire, misfire_grace, dead_letter, and those of the jobs: queue, priority,
        max_attempts, max_retries, timeout, delivery, retry, correlation_id, tags, meta,
        failure_task.
        """
        refuse_inside_transaction(self._harbor, "schedules.add()")
        given = {**options, "schedule": schedule}
        refuse_stranger(self._harbor, given)
        checked = checked_job_options(given)
        known = self._harbor._known(checked_name("task", task))
        text = encode_payload({} if payload is None else payload)
        if known is not None:
            known.validate(text)
            checked = merged(known._options, checked)
        recurrence = checked_recurrence(name, application or self._harbor.application, given, declared=False)
        job = recurring_job(
            task if known is None else known.name, text, checked, recurrence, await self._driver.now()
        )
        action = new_action(Verb.UPDATE_SCHEDULE, job_id=job.id, subject=name)
        await self._ensure([job], replace=replace, action=action)
        return await self.aget(name, application=application)

    add = sync_method(aadd)

    async def aupdate(
        self, /, name: str, *, application: str | None = None, **changes: Unpack[ScheduleChanges]
    ) -> Schedule:
        """Change a schedule's times, task, payload or options, even while it runs."""
        if not changes:
            raise ConfigurationError(f"nothing to change was given; give {', '.join(sorted(CHANGEABLE))}")
        refuse_stranger(self._harbor, changes)
        checked = with_limit_of_policy(
            checked_job_options({k: v for k, v in changes.items() if k not in ("task", "payload")})
        )
        payload = None if "payload" not in changes else encode_payload(changes["payload"])
        task = None if "task" not in changes else checked_name("task", changes["task"])

        def change(record: JobRecord, now: int) -> Update:
            old = record.options.recurrence
            assert old is not None, "it is looked at first"
            given = {field: getattr(old, field) for field in RECURRENCE_OPTIONS} | changes
            recurrence = checked_recurrence(name, old.application, given, declared=old.declared)
            desired = _desired(record, checked, recurrence, task, payload)
            known = self._harbor._known(desired.task)
            if known is not None and (payload is not None or task is not None):
                known.validate(self._harbor.sealing.shown(desired.payload))
            return _difference(record, self._as_stored(record, desired), now) or Update()

        asked = {field: value for field, value in changes.items() if field in ("priority", "queue", "task")}
        details = dict.fromkeys(changes, HIDDEN) | asked
        await self._change(name, application, Verb.UPDATE_SCHEDULE, "schedules.update()", change, details)
        return await self.aget(name, application=application)

    update = sync_method(aupdate)

    async def apause(self, name: str, *, application: str | None = None) -> Schedule:
        """Begin no further run until it is resumed. A running occurrence goes on."""

        def pause(record: JobRecord, now: int) -> Update | None:
            options = _with(record.options, paused=True)
            return None if options == record.options else Update(options=options, run_at=PARKED_AT)

        await self._change(name, application, Verb.PAUSE_SCHEDULE, "schedules.pause()", pause)
        return await self.aget(name, application=application)

    pause = sync_method(apause)

    async def aresume(self, name: str, *, application: str | None = None) -> Schedule:
        """Let it run again. `misfire` decides about the occurrences that came due while it was paused."""

        def resume(record: JobRecord, now: int) -> Update | None:
            options = _with(record.options, paused=False)
            return None if options == record.options else Update(options=options, at_due=True)

        await self._change(name, application, Verb.RESUME_SCHEDULE, "schedules.resume()", resume)
        return await self.aget(name, application=application)

    resume = sync_method(aresume)

    async def arun_now(self, name: str, *, application: str | None = None) -> Schedule:
        """Run once in addition to the occurrences: at once, or right after a running occurrence."""
        job_id = self._id(name, application)
        action = new_action(Verb.RUN_SCHEDULE, job_id=job_id, subject=name)
        await self._run_now(job_id, name, "schedules.run_now()", action)
        return await self.aget(name, application=application)

    run_now = sync_method(arun_now)

    async def adelete(self, name: str, *, application: str | None = None) -> None:
        """Remove a schedule with its history. A running occurrence goes on, and is the last one."""
        refuse_inside_transaction(self._harbor, "schedules.delete()")
        job_id = self._id(name, application)
        action = new_action(Verb.DELETE_SCHEDULE, job_id=job_id, subject=name)
        for _ in range(ROUNDS_MAX):
            await self._harbor._collect_expired(job_id)
            record, _recurrence = await self._record(job_id, name)
            if record.state is not State.RUNNING:
                [answer] = await self._apply(Delete(), [job_id], action)
                if answer.verdict is OperationVerdict.DONE:
                    return
                continue  # it has just begun
            tags = tuple(tag for tag in record.options.tags if tag != SCHEDULE_TAG)
            ordinary = replace(record.options, recurrence=None, tags=tags)
            answer = await self._update(record, Update(options=ordinary), action)
            if answer.verdict is OperationVerdict.DONE:
                return
        raise _too_quick(name)

    delete = sync_method(adelete)

    # -- declared schedules --

    async def _reconcile(self) -> None:
        """Store what the code declares, and report what it no longer declares. Many processes may do this at once."""
        now = await self._driver.now()
        declared = self._declared()
        if declared:
            await self._ensure([_declared_job(task, now) for task in declared.values()])
        orphans = [each.name for each in await self.alist(self._harbor.application) if each.orphaned]
        if orphans:
            log_line(
                logger,
                logging.WARNING,
                "schedules that are no longer declared go on: {schedules}; pause or delete them with "
                "`taskharbor schedule`",
                {"application": self._harbor.application, "schedules": orphans},
            )

    def _declared(self) -> dict[str, Task[Any, Any, Any, Any]]:
        return {task.name: task for task in self._harbor.tasks.values() if task.recurrence is not None}

    async def _ensure(
        self, jobs: builtins.list[NewJob], *, replace: bool = True, action: Action | None = None
    ) -> None:
        """Create each of these schedules, or change it where it differs. The code's declaration is no action."""
        settled = self._adapt if replace else self._refuse
        for _ in range(ROUNDS_MAX):
            answers = await self._driver.enqueue(self._harbor.sealing.sealed(jobs))
            existing = [job for job, answer in zip(jobs, answers, strict=True) if answer.existed]
            ended = [job for job in existing if not await settled(job, action)]
            for job in ended:  # the last run of a deleted schedule, which has ended
                await self._driver.operate(Delete(), [job.id])
            if not ended:
                return
            jobs = ended
        raise _too_quick(", ".join(job.task for job in jobs))

    def _as_stored(self, record: JobRecord, desired: NewJob) -> NewJob:
        """Return the schedule with the payload that is stored, if it is the same: each encoding may be another text."""
        sealing = self._harbor.sealing
        if sealing.shown(record.payload) == sealing.shown(desired.payload):
            return replace(desired, payload=record.payload)
        return replace(desired, payload=sealing.seal(desired.payload))

    async def _adapt(self, job: NewJob, action: Action | None) -> bool:
        """Change the existing schedule to what is given; return False if it no longer exists."""
        for _ in range(ROUNDS_MAX):
            [record] = await self._driver.get([job.id])
            if record is None or record.state in TERMINAL:
                return False
            update = _difference(record, self._as_stored(record, job), await self._driver.now())
            if update is None:
                return True
            answer = await self._update(record, update, action)
            if answer.verdict is OperationVerdict.DONE:
                log_line(
                    logger,
                    logging.INFO,
                    "schedule {schedule} changed",
                    {"schedule": _name_of(job), "job": job.id},
                )
                return True
        raise _too_quick(_name_of(job))

    async def _refuse(self, job: NewJob, action: Action | None) -> bool:
        """Raise for the schedule that exists; return False if it no longer does."""
        [record] = await self._driver.get([job.id])
        if record is None or record.state in TERMINAL:
            return False
        raise JobConflict(
            job.id, f"a schedule called {_name_of(job)!r} exists already; change that one instead"
        )

    # -- called by harbor.jobs --

    async def _run_now(self, job_id: str, name: str, verb: str, action: Action) -> None:
        refuse_inside_transaction(self._harbor, verb)
        for _ in range(ROUNDS_MAX):
            await self._harbor._collect_expired(job_id)
            record, recurrence = await self._record(job_id, name)
            if recurrence.paused:
                raise JobConflict(
                    job_id, f"the schedule {name!r} is paused, so it cannot be run now; resume it first"
                )
            if record.state is State.RUNNING:
                update = Update(options=_with(record.options, again_after=record.number))
            elif record.state is State.READY:
                raise JobConflict(
                    job_id,
                    f"the schedule {name!r} is due already, so it cannot be run now; "
                    "it runs as soon as a worker is free",
                )
            else:  # it is not due yet, so this is an extra run
                update = Update(run_at=await self._driver.now())
            answer = await self._update(record, update, action)
            if answer.verdict is OperationVerdict.DONE:
                return
        raise _too_quick(name)

    async def _cancel_occurrence(self, record: JobRecord, action: Action) -> OperationResult:
        """Cancel the next or the running occurrence; the one after it follows."""
        for _ in range(ROUNDS_MAX):
            occurrence = after_cancelling(record, await self._driver.now())
            [answer] = await self._apply(Cancel(occurrence, _seen(record)), [record.id], action)
            if answer.verdict is not OperationVerdict.CHANGED:
                return answer
            [found] = await self._driver.get([record.id])
            if found is None or found.options.recurrence is None:
                return OperationResult(record.id, OperationVerdict.NOT_FOUND)
            record = found
        raise _too_quick(_name_of(record))

    async def _prune_history(self, keep: int, before: int) -> int:
        upkeep = Upkeep.of(self._driver)
        pruned, ids = 0, [record.id async for record, _ in self._all()]
        for start in range(0, len(ids), HISTORY_BATCH):
            pruned += await upkeep.prune_history(ids[start : start + HISTORY_BATCH], keep, before)
        return pruned

    # -- helpers --

    def _id(self, name: str, application: str | None) -> str:
        of = self._harbor.application if application is None else checked_name("application", application)
        return schedule_id(of, checked_name("schedule", name))

    async def _record(self, job_id: str, name: str) -> tuple[JobRecord, Recurrence]:
        [record] = await self._driver.get([job_id])
        recurrence = None if record is None else record.options.recurrence
        if record is None or recurrence is None:
            raise JobNotFound(
                job_id,
                f"no schedule of this application is called {name!r}; `taskharbor schedule list` has them all",
            )
        return record, recurrence

    async def _all(self) -> AsyncIterator[tuple[JobRecord, Recurrence]]:
        async for page in self._matching(JobFilter(tag=SCHEDULE_TAG)):
            for record in page:
                if record.options.recurrence is not None:
                    yield record, record.options.recurrence

    def _schedule_of(self, record: JobRecord, recurrence: Recurrence) -> Schedule:
        orphaned: bool | None = None
        known = self._harbor.tasks.keys() - set(
            BUILT_IN
        )  # a worker with only built-in tasks has no application
        if known and recurrence.application == self._harbor.application:
            orphaned = recurrence.declared and recurrence.name not in self._declared()
        shown = replace(record, payload=self._harbor.sealing.shown(record.payload))
        return Schedule.of(shown, orphaned=orphaned)

    async def _change(
        self,
        name: str,
        application: str | None,
        verb: Verb,
        called: str,
        change: Change,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        refuse_inside_transaction(self._harbor, called)
        job_id = self._id(name, application)
        action = new_action(verb, job_id=job_id, subject=name, details=details)
        for _ in range(ROUNDS_MAX):
            await self._harbor._collect_expired(job_id)
            record, _recurrence = await self._record(job_id, name)
            update = change(record, await self._driver.now())
            if update is None:
                return
            answer = await self._update(record, update, action)
            if answer.verdict is OperationVerdict.DONE:
                return
        raise _too_quick(name)

    async def _update(self, record: JobRecord, update: Update, action: Action | None) -> OperationResult:
        """Apply an update only if the job is unchanged since it was read, and in the same place, running or not."""
        update = replace(update, version=record.version, seen=_seen(record), while_running=True)
        [answer] = await self._apply(update, [record.id], action)
        return answer


# -- comparing -----------------------------------------------------------------------------------


def _desired(
    record: JobRecord, checked: dict[str, Any], recurrence: Recurrence, task: str | None, payload: str | None
) -> NewJob:
    """Return the existing schedule with the given changes."""
    options = replace(record.options, **checked.get("options", {}), recurrence=recurrence)
    if SCHEDULE_TAG not in options.tags:
        options = replace(options, tags=(SCHEDULE_TAG, *options.tags))
    return NewJob(
        record.id,
        record.task if task is None else task,
        record.payload if payload is None else payload,
        checked.get("queue", record.queue),
        checked.get("priority", record.priority),
        delivery=checked.get("delivery", record.delivery),
        options=options,
        meta=checked.get("meta", record.meta),
    )


def _difference(record: JobRecord, desired: NewJob, now: int) -> Update | None:
    """Return what has to change for the schedule to be as desired; a pause stays as it is."""
    old, new = record.options.recurrence, desired.options.recurrence
    assert new is not None, "what is desired recurs"
    if old is not None:
        new = replace(new, paused=old.paused, again_after=old.again_after)
    options = replace(desired.options, recurrence=new)
    delivery = record.delivery if desired.delivery is None else desired.delivery
    there = (
        record.task,
        record.payload,
        record.queue,
        record.priority,
        record.delivery,
        record.options,
        record.meta,
    )
    if there == (
        desired.task,
        desired.payload,
        desired.queue,
        desired.priority,
        delivery,
        options,
        desired.meta,
    ):
        return None
    update = Update(
        task=desired.task, payload=desired.payload, queue=desired.queue, priority=desired.priority,
        delivery=delivery, options=options, meta=desired.meta,
    )  # fmt: skip
    if old is not None and (old.schedule, old.timezone) == (new.schedule, new.timezone):
        return update
    if _has_come(record, now):
        return update  # the end of this run computes the next occurrence
    update = replace(update, due_at=recurring(new).next_micros(now))
    has_extra_run = record.due_at is not None and record.run_at < record.due_at
    return update if new.paused or has_extra_run else replace(update, at_due=True)


def _has_come(record: JobRecord, now: int) -> bool:
    """Whether its occurrence is due already, or its run waits for a retry or sleeps."""
    if record.attempts or record.due_at is None:
        return record.attempts > 0
    return record.due_at <= now or record.due_at < record.run_at < PARKED_AT


def _seen(record: JobRecord) -> Seen:
    return Seen(record.number, record.state is State.RUNNING)


def _declared_job(task: Task[Any, Any, Any, Any], now: int) -> NewJob:
    assert task.recurrence is not None, "only such a task is asked for its schedule"
    return recurring_job(task.name, "{}", task._options, task.recurrence, now)


def _with(options: Options, **changes: Any) -> Options:
    assert options.recurrence is not None, "only of a recurring job"
    return replace(options, recurrence=replace(options.recurrence, **changes))


def _name_of(job: NewJob | JobRecord) -> str:
    return job.options.recurrence.name if job.options.recurrence is not None else job.id


def _too_quick(name: str) -> StoreUnavailable:
    return StoreUnavailable(f"the schedule {name!r} changed faster than it could be read; try again")


__all__ = ["Schedule", "Schedules"]
