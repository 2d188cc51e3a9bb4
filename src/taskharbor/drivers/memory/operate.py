"""What operators and maintenance do to jobs: cancel, requeue, change, delete, expire, prune."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

from taskharbor.drivers.base import (
    NOT_BEGUN,
    OPERATOR,
    Delete,
    Operation,
    OperationResult,
    OperationVerdict,
    Requeue,
    with_dependants,
    worker_of,
)
from taskharbor.drivers.memory.store import Attempt, Job, Placed, Store, must_begin
from taskharbor.records import AttemptRecord, AttemptStatus, Reason, State
from taskharbor.rules import operating as rules
from taskharbor.rules.lifecycle import TERMINAL, check_prunable
from taskharbor.rules.settling import finished

# -- operators -----------------------------------------------------------------------------------


def operate(store: Store, operation: Operation, ids: Sequence[str], now: int) -> list[OperationResult]:
    answers = [_operate(store, operation, job_id, now) for job_id in ids]
    done = sorted(answer.job_id for answer in answers if answer.verdict is OperationVerdict.DONE)
    # When all that was asked for has been done: what is named has what was asked, not what follows from another.
    if rules.ends_dependants(operation):
        cancelled = {job_id: store.cancel_dependants([job_id], now) for job_id in done}
        return with_dependants(answers, cancelled)
    if isinstance(operation, Requeue):
        store.restore_dependants(done, now)
    return answers


def _operate(store: Store, operation: Operation, job_id: str, now: int) -> OperationResult:
    job = store.jobs.get(job_id)
    if job is None:
        return OperationResult(job_id, OperationVerdict.NOT_FOUND)
    at = job.standing_at(now)
    answer = rules.change(operation, job.row, at, now, has_begun=job.begun, waits=bool(job.unmet))
    if isinstance(answer, rules.Change):
        _apply(store, job, answer, now)
        answer = OperationVerdict.DONE
    elif answer is OperationVerdict.REQUESTED and job.lease is not None:
        # The heartbeat brings it to the worker, and the next settle obeys.
        job.lease.cancel_requested.add(job_id)
        store.cancel_requests += 1
    elif isinstance(operation, Delete) and answer is OperationVerdict.DONE:
        answer = _delete(store, job)
    return OperationResult(job_id, answer, at.state)


def _apply(store: Store, job: Job, change: rules.Change, now: int) -> None:
    if job.lease is not None:
        store.change_running(job, change.job)
    elif change.is_rearmed:
        number = change.to.number
        record = AttemptRecord(
            job.id,
            number,
            AttemptStatus.CANCELLED,
            job.at.attempts,
            worker_of(OPERATOR),
            None,
            now,
            detail=NOT_BEGUN,
        )
        job.history[number] = Attempt(OPERATOR, record)
        store.rearm(job, change.to)
    elif change.is_new_run:
        store.begin_new_run(job, change)
    else:
        store.move(job, change.to, change.job)


def _delete(store: Store, job: Job) -> OperationVerdict:
    if store.is_needed(job) or _is_of_unfinished_workflow(store, job):
        return OperationVerdict.CONFLICT
    store.delete(job)
    return OperationVerdict.DONE


def _is_of_unfinished_workflow(store: Store, job: Job) -> bool:
    workflow = job.workflow
    return workflow is not None and any(each.state not in TERMINAL for each in store.members(workflow))


# -- maintenance ---------------------------------------------------------------------------------


def expire(store: Store, limit: int, now: int) -> list[str]:
    expired: list[str] = []
    while len(expired) < limit and store.deadlines and store.deadlines[0][0] <= now:
        begin_by, job_id = heapq.heappop(store.deadlines)
        job = store.jobs.get(job_id)
        if job is None or job.at.begin_by != begin_by or not must_begin(job):
            continue  # it has begun, ended or been changed meanwhile; where it still counts, it stands anew
        store.move(job, finished(job.at, State.CANCELLED, Reason.EXPIRED, now))
        expired.append(job_id)
    return [*expired, *store.cancel_dependants(expired, now)]


def prune(store: Store, before: dict[State, int], limit: int) -> int:
    check_prunable(before)
    _forget_workflows(store, before)
    prunable = list(islice(_prunable(store, before), max(limit, 0)))
    for job in prunable:
        store.delete(job)
    return len(prunable)


def prune_history(store: Store, ids: Sequence[str], keep: int, before: int) -> int:
    pruned = 0
    for job in filter(None, map(store.jobs.get, ids)):
        if job.state in TERMINAL:
            continue
        numbers = list(job.history)
        doomed = [
            number
            for position, number in enumerate(reversed(numbers))
            if position > 0
            and number < job.at.first_number
            and (position >= keep or job.history[number].record.finished_at < before)
        ]
        for number in doomed:
            del job.history[number]
        pruned += len(doomed)
    return pruned


def _forget_workflows(store: Store, before: dict[State, int]) -> None:
    """Those of which nothing has to stay: from here on their jobs are old ones like any other."""
    for workflow in list(store.workflows.values()):
        members = list(store.members(workflow))
        if not workflow.members:  # it was stored without any, which is a success
            bound = before.get(State.SUCCEEDED, workflow.enqueued_at)
        else:
            bound = max(before.values(), default=workflow.enqueued_at)
        if workflow.enqueued_at < bound and all(_is_over(job, before) for job in members):
            for job in members:
                job.workflow = None
            del store.workflows[workflow.id]
            if workflow.idempotency_key is not None:
                del store.workflow_keys[workflow.idempotency_key]


def _is_over(job: Job, before: dict[State, int]) -> bool:
    at = job.at
    return at.state in before and at.finished_at is not None and at.finished_at < before[at.state]


def _prunable(store: Store, before: dict[State, int]) -> Iterator[Job]:
    """Oldest ending first, without members of workflows and jobs that an unfinished one still depends on."""
    endings: list[Iterator[Placed]] = [
        store.endings[state].before((instant, "")) for state, instant in before.items()
    ]
    for _, job_id in heapq.merge(*endings):
        job = store.jobs[job_id]
        if job.workflow is None and not store.is_needed(job):
            yield job
