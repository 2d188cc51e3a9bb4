"""Operations of `harbor.jobs` and `harbor.dlq`: on one job, or on all that match."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING

from taskharbor.client.options import checked_id, checked_instant
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.drivers.base import (
    Cancel,
    Delete,
    Discard,
    Driver,
    Operation,
    OperationResult,
    OperationVerdict,
    Requeue,
    RunNow,
    Update,
)
from taskharbor.errors import JobConflict, JobNotFound
from taskharbor.records import JobFilter, JobRecord, State
from taskharbor.rules.lifecycle import CANCELLABLE, DELETABLE, REQUEUEABLE

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

BULK_PAGE = 500

_DONE: dict[type[Operation], str] = {
    Cancel: "cancelled",
    Delete: "deleted",
    Discard: "discarded: only a dead one can",
    Requeue: "requeued: only a dead or cancelled one can",
    RunNow: "run now: only a scheduled one can",
    Update: "changed",
}

# What to do instead, by the operation and the state that forbids it.
_INSTEAD: dict[type[Operation], dict[State, str]] = {
    Cancel: {State.DEAD: "discard it instead"},
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

    async def _operate(self, operation: Operation, id: object, verb: str) -> OperationResult:
        """Apply an operation to one job, or raise why the store refused it."""
        job_id = checked_id(id)
        refuse_inside_transaction(self._harbor, verb)
        # A job whose lease has expired only looks running: settle the loss first.
        await self._harbor._collect_expired(job_id)
        [answer] = await self._driver.operate(operation, [job_id])
        if answer.verdict is OperationVerdict.NOT_FOUND:
            raise not_found(job_id)
        if answer.verdict is OperationVerdict.CONFLICT:
            raise conflict(job_id, answer.state, type(operation))
        return answer

    async def _matching(self, where: JobFilter) -> AsyncIterator[list[JobRecord]]:
        cursor: str | None = None
        while True:
            page = await self._driver.list(where, cursor=cursor, limit=BULK_PAGE)
            if page.jobs:
                yield page.jobs
            cursor = page.next_cursor
            if cursor is None:
                return


def requeue_operation(run_at: datetime | None, reset_attempts: bool = True) -> Requeue:
    return Requeue(None if run_at is None else checked_instant(run_at, "run_at"), reset_attempts)


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
