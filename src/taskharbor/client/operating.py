"""Operations of `harbor.jobs` and `harbor.dlq`: on one job, or on all that match."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taskharbor.client.actions import details_of, new_action
from taskharbor.client.filters import COUNT_MAX, Count
from taskharbor.client.options import checked_id, checked_instant
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.drivers.base import (
    Action,
    Cancel,
    DeadLetter,
    Delete,
    Discard,
    Driver,
    Operation,
    OperationResult,
    OperationVerdict,
    Requeue,
    RunNow,
    Update,
    Verb,
)
from taskharbor.drivers.capabilities import Audit
from taskharbor.errors import JobConflict, JobNotFound
from taskharbor.records import JobFilter, JobRecord, State
from taskharbor.rules.lifecycle import CANCELLABLE, DELETABLE, REQUEUEABLE

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

BULK_PAGE = 500

# Set by what wants to know how many jobs a bulk operation has acted on so far.
seen_jobs: ContextVar[Callable[[int], None] | None] = ContextVar("seen_jobs", default=None)

_DONE: dict[type[Operation], str] = {
    Cancel: "cancelled",
    DeadLetter: "dead-lettered: only one that has not finished, and is not running, can",
    Delete: "deleted",
    Discard: "discarded: only a dead one can",
    Requeue: "requeued: only a dead or cancelled one can",
    RunNow: "run now: only a scheduled one can",
    Update: "changed",
}

# What each operation on jobs is recorded as.
VERBS: dict[type[Operation], Verb] = {
    Cancel: Verb.CANCEL,
    DeadLetter: Verb.DEAD_LETTER,
    Delete: Verb.DELETE,
    Discard: Verb.DISCARD,
    Requeue: Verb.REQUEUE,
    RunNow: Verb.RUN_NOW,
    Update: Verb.UPDATE,
}

# What to do instead, by the operation and the state that forbids it.
_INSTEAD: dict[type[Operation], dict[State, str]] = {
    Cancel: {State.DEAD: "discard it instead"},
    DeadLetter: {
        State.RUNNING: "let its attempt end, or cancel it",
        State.CANCELLED: "requeue it first",
        State.SUCCEEDED: "enqueue another one",
    },
    Delete: {State.RUNNING: "cancel it first"},
    Discard: {
        **dict.fromkeys(CANCELLABLE, "cancel it instead"),
        **dict.fromkeys((State.SUCCEEDED, State.CANCELLED), "delete it instead"),
    },
    Requeue: {
        **dict.fromkeys(CANCELLABLE, "let it end first, or cancel it"),
        State.SUCCEEDED: "enqueue another one",
    },
    RunNow: {
        State.WAITING: "it runs once those that it depends on have succeeded",
        State.READY: "it runs as soon as a worker is free",
        State.SUCCEEDED: "enqueue another one",
        **dict.fromkeys(REQUEUEABLE, "requeue it instead"),
    },
    Update: {
        State.RUNNING: "wait until its attempt has ended, or cancel it",
        State.SUCCEEDED: "enqueue another one",
        **dict.fromkeys(REQUEUEABLE, "requeue it first"),
    },
}


class Operator:
    def __init__(self, harbor: Harbor) -> None:
        self._harbor = harbor

    @property
    def _driver(self) -> Driver:
        return self._harbor.driver

    async def _apply(
        self, operation: Operation, ids: Sequence[str], action: Action | None
    ) -> list[OperationResult]:
        """Apply an operation, recorded as this action where the store keeps an audit."""
        if action is None or Audit.offered_by(self._driver) is None:
            return await self._driver.operate(operation, ids)
        return await self._driver.operate(operation, ids, action=action)

    async def _operate(
        self, operation: Operation, id: object, verb: str, details: Mapping[str, Any] | None = None
    ) -> OperationResult:
        """Apply an operation to one job, or raise why the store refused it."""
        job_id = checked_id(id)
        refuse_inside_transaction(self._harbor, verb)
        # A job whose lease has expired only looks running: settle the loss first.
        await self._harbor._collect_expired(job_id)
        action = new_action(
            VERBS[type(operation)], job_id=job_id, details=details_of(operation) | dict(details or {})
        )
        [answer] = await self._apply(operation, [job_id], action)
        if answer.verdict is OperationVerdict.NOT_FOUND:
            raise not_found(job_id)
        if answer.verdict is OperationVerdict.CONFLICT:
            raise conflict(job_id, answer.state, type(operation))
        return answer

    async def _matching(self, where: JobFilter) -> AsyncIterator[list[JobRecord]]:
        """Each matching job once, in the store's order, however far back the search has to go."""
        cursor: str | None = None
        while True:
            page = await self._driver.list(where, cursor=cursor, limit=BULK_PAGE)
            if page.jobs:
                yield page.jobs
                if (tell := seen_jobs.get()) is not None:
                    tell(len(page.jobs))
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _count_matching(self, where: JobFilter, is_meant: Callable[[JobRecord], bool]) -> Count:
        """Count what a bulk operation would act on, without acting."""
        # As the operation itself does: a job whose lease has expired only looks running.
        await self._harbor._collect_all_expired()
        found = 0
        async for jobs in self._matching(where):
            found += sum(map(is_meant, jobs))
            if found > COUNT_MAX:
                return Count(COUNT_MAX, more=True)
        return Count(found)

    def _refuse_schedule_job(self, job: JobRecord, instead: str) -> None:
        if job.options.recurrence is not None:
            name = job.options.recurrence.name
            raise JobConflict(job.id, f"job {job.id} is the schedule {name!r}; {instead.format(name=name)}")
        if is_of_schedule(job):
            raise JobConflict(
                job.id,
                f"job {job.id} is a schedule of a newer version of TaskHarbor; change it with that version",
            )


def is_of_schedule(job: JobRecord) -> bool:
    """Whether it belongs to a schedule, even if a newer version wrote options that cannot be read here."""
    return job.options.recurrence is not None or (
        job.due_at is not None and job.unreadable_options is not None
    )


def requeue_operation(
    run_at: datetime | None, reset_attempts: bool = True, *, only_dead: bool = False
) -> Requeue:
    due = None if run_at is None else checked_instant(run_at, "run_at")
    return Requeue(due, reset_attempts, only_dead)


def conflict(job_id: str, state: State | None, operation: type[Operation]) -> JobConflict:
    """Build the error: why the operation was refused, and what to do about it."""
    if operation is Delete and state in DELETABLE:
        return JobConflict(
            job_id,
            f"job {job_id} is {state}, but an unfinished job depends on it, or it is a member of an unfinished "
            "workflow, so it cannot be deleted; let that end first, or cancel it",
        )
    refusal = f"job {job_id} is {state}, so it cannot be {_DONE[operation]}"
    instead = None if state is None else _INSTEAD[operation].get(state)
    return JobConflict(job_id, refusal if instead is None else f"{refusal}; {instead}")


def not_found(job_id: str) -> JobNotFound:
    return JobNotFound(job_id, f"no job has the id {job_id}; it never existed, or it was deleted or pruned")
