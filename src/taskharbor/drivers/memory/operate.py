"""What operators and maintenance do to jobs: cancel, requeue, change, delete, expire, prune."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from msgspec import UNSET
from msgspec.structs import replace

from taskharbor.drivers.base import (
    NOT_BEGUN,
    OPERATOR,
    Cancel,
    Delete,
    Discard,
    Operated,
    Operation,
    Requeue,
    RunNow,
    Seen,
    Update,
    Verdict,
    with_dependants,
    worker_of,
)
from taskharbor.drivers.memory.enqueue import options_json
from taskharbor.drivers.memory.settle import rearm
from taskharbor.drivers.memory.store import Attempt, Job, Placed, Store, begin_new_run, must_begin
from taskharbor.job import AttemptRecord, AttemptStatus, Reason, State
from taskharbor.lifecycle import TERMINAL, allows, check_prunable

# -- operators -----------------------------------------------------------------------------------


def operate(store: Store, operation: Operation, ids: Sequence[str], now: int) -> list[Operated]:
    answers = [_operate(store, operation, job_id, now) for job_id in ids]
    done = sorted(answer.job_id for answer in answers if answer.verdict is Verdict.DONE)
    # When all that was asked for has been done: what is named has what was asked, not what follows from another.
    if isinstance(operation, Cancel) and operation.occurrence is None:
        cancelled = {job_id: store.cancel_dependants([job_id], now) for job_id in done}
        return with_dependants(answers, cancelled)
    if isinstance(operation, Requeue):
        store.restore_dependants(done, now)
    return answers


def _operate(store: Store, operation: Operation, job_id: str, now: int) -> Operated:
    job = store.jobs.get(job_id)
    if job is None:
        return Operated(job_id, Verdict.NOT_FOUND)
    state = job.state_at(now)
    if not allows(state, operation):
        return Operated(job_id, Verdict.CONFLICT, state)
    return Operated(job_id, _do(store, operation, job, now), state)


def _do(store: Store, operation: Operation, job: Job, now: int) -> Verdict:
    match operation:
        case Cancel():
            return _cancel(store, job, operation, now)
        case Delete():
            return _delete(store, job)
        case Discard():
            store.finish(job, State.CANCELLED, Reason.DISCARDED, now)
        case RunNow():
            _change(store, job, lambda: _set_run_at(job, now))
        case Requeue():
            _change(store, job, lambda: _begin_new_run(job, operation, now))
        case Update():
            if operation.version not in (None, job.version) or _has_moved_on(job, operation.seen):
                return Verdict.CHANGED
            if operation.queue not in (UNSET, job.queue) and job.idempotency_key is not None:
                return Verdict.CONFLICT
            if job.lease is None:
                _change(store, job, lambda: _update(job, operation))
            else:
                _change_running(store, job, operation)
    return Verdict.DONE


def _has_moved_on(job: Job, seen: Seen | None) -> bool:
    return seen is not None and seen != Seen(job.number, job.lease is not None)


def _change(store: Store, job: Job, change: Callable[[], None]) -> None:
    store.leave(job)
    change()
    store.place_again(job)


def _change_running(store: Store, job: Job, update: Update) -> None:
    """It stays where it is, under its lease; only what its next run takes from the job itself changes."""
    store.tally[job.queue][State.RUNNING] -= 1
    _update(job, replace(update, run_at=UNSET, due_at=UNSET, expires_at=UNSET, at_due=False))
    store.tally[job.queue][State.RUNNING] += 1


def _cancel(store: Store, job: Job, cancel: Cancel, now: int) -> Verdict:
    if job.lease is not None:
        # Kept in the lease: the heartbeat tells the worker, and whoever settles next obeys.
        job.lease.cancel_requested.add(job.id)
        store.cancel_requests += 1
        return Verdict.REQUESTED
    if cancel.occurrence is not None and job.state is State.WAITING:
        return Verdict.CONFLICT
    if cancel.occurrence is None:
        store.finish(job, State.CANCELLED, Reason.CANCELLED, now)
        return Verdict.DONE
    if cancel.occurrence.version != job.version or _has_moved_on(job, cancel.seen):
        return Verdict.CHANGED
    job.number += 1
    record = AttemptRecord(
        job.id,
        job.number,
        AttemptStatus.CANCELLED,
        job.attempts,
        worker_of(OPERATOR),
        None,
        now,
        detail=NOT_BEGUN,
    )
    job.history[job.number] = Attempt(OPERATOR, record)
    rearm(store, job, cancel.occurrence)
    return Verdict.DONE


def _delete(store: Store, job: Job) -> Verdict:
    if store.is_needed(job) or _is_of_unfinished_workflow(store, job):
        return Verdict.CONFLICT
    store.delete(job)
    return Verdict.DONE


def _is_of_unfinished_workflow(store: Store, job: Job) -> bool:
    workflow = job.workflow
    return workflow is not None and any(each.state not in TERMINAL for each in store.members(workflow))


def _begin_new_run(job: Job, requeue: Requeue, now: int) -> None:
    run_at = now if requeue.run_at is None else requeue.run_at
    begin_new_run(job, run_at, now, reset_attempts=requeue.reset_attempts)


def _update(job: Job, update: Update) -> None:
    if update.task is not UNSET:
        job.task = update.task
    if update.queue is not UNSET:
        job.queue = update.queue
    if update.delivery is not UNSET:
        job.delivery = update.delivery
    if update.priority is not UNSET:
        job.priority = update.priority
    if update.due_at is not UNSET and not job.unmet:
        job.due_at = update.due_at
    if update.run_at is not UNSET:
        _set_run_at(job, update.run_at)
    if update.at_due and job.due_at is not None:
        _set_run_at(job, job.due_at)
    if update.payload is not UNSET:
        job.payload = update.payload
    if update.expires_at is not UNSET:
        job.expires_at = update.expires_at
        if not job.begun:
            job.begin_by = update.expires_at
    _update_options(job, update)
    job.version += 1


def _update_options(job: Job, update: Update) -> None:
    if update.options is not UNSET:
        job.options = update.options
    if update.max_attempts is not UNSET:
        job.options = replace(job.options, max_attempts=update.max_attempts)
    if update.timeout is not UNSET:
        job.options = replace(job.options, timeout=update.timeout)
    if update.tags is not UNSET:
        job.options = replace(job.options, tags=update.tags)
    job.options_json = options_json(job.options)


def _set_run_at(job: Job, run_at: int) -> None:
    job.run_at = job.place = run_at


# -- maintenance ---------------------------------------------------------------------------------


def expire(store: Store, limit: int, now: int) -> list[str]:
    expired: list[str] = []
    while len(expired) < limit and store.deadlines and store.deadlines[0][0] <= now:
        begin_by, job_id = heapq.heappop(store.deadlines)
        job = store.jobs.get(job_id)
        if job is None or job.begin_by != begin_by or not must_begin(job):
            continue  # it has begun, ended or been changed meanwhile; where it still counts, it stands anew
        store.finish(job, State.CANCELLED, Reason.EXPIRED, now)
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
            and number < job.first_number
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
        if members:
            over = all(_is_over(job, before) for job in members)
        else:  # it was empty, which is a success
            over = workflow.enqueued_at < before.get(State.SUCCEEDED, workflow.enqueued_at)
        if over:
            for job in members:
                job.workflow = None
            del store.workflows[workflow.id]
            if workflow.idempotency_key is not None:
                del store.workflow_keys[workflow.idempotency_key]


def _is_over(job: Job, before: dict[State, int]) -> bool:
    return job.state in before and job.finished_at is not None and job.finished_at < before[job.state]


def _prunable(store: Store, before: dict[State, int]) -> Iterator[Job]:
    """Oldest ending first, without members of workflows and jobs that an unfinished one still depends on."""
    endings: list[Iterator[Placed]] = [
        store.endings[state].before((instant, "")) for state, instant in before.items()
    ]
    for _, job_id in heapq.merge(*endings):
        job = store.jobs[job_id]
        if job.workflow is None and not store.is_needed(job):
            yield job
