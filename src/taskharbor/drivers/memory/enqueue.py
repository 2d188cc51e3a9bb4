"""Enqueue: all of the jobs or none, and one job for each id and each (queue, idempotency key)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from taskharbor.drivers.base import Enqueued, WorkflowEnqueued, member_exists, unknown_dependency
from taskharbor.drivers.memory.store import Attempt, Job, Store, Workflow
from taskharbor.records import NewJob, NewWorkflow, Reason, State
from taskharbor.rules.idempotency import resolve_batch
from taskharbor.rules.settling import finished
from taskharbor.rules.standing import Standing, stored_job


def enqueue(store: Store, jobs: Sequence[NewJob], now: int) -> list[Enqueued]:
    batch = resolve_batch(jobs, store.jobs, store.keys)
    refuse_unknown_dependencies(store, batch.fresh, jobs)
    for new in batch.fresh:
        store.add(new_job(store, new, batch.stands_for, now))
    return [_answer(store.jobs[job_id], existed, now) for job_id, existed in batch.answers]


def enqueue_workflow(store: Store, new: NewWorkflow, jobs: Sequence[NewJob], now: int) -> WorkflowEnqueued:
    known = new.id if new.id in store.workflows else store.workflow_keys.get(new.idempotency_key or "")
    if known is not None:
        return WorkflowEnqueued(known, True, store.workflows[known].enqueued_at)
    for job in jobs:
        if job.id in store.jobs:
            raise member_exists(job.id)
    enqueue(store, jobs, now)
    members = tuple(job.id for job in jobs)
    workflow = store.workflows[new.id] = Workflow(new.id, new.about, now, new.idempotency_key, members)
    if new.idempotency_key is not None:
        store.workflow_keys[new.idempotency_key] = new.id
    for job_id in members:
        store.jobs[job_id].workflow = workflow
    return WorkflowEnqueued(new.id, False, now)


def refuse_unknown_dependencies(store: Store, fresh: Sequence[NewJob], batch: Sequence[NewJob]) -> None:
    given = {new.id for new in batch}
    for new in fresh:
        for dependency in new.depends_on:
            if dependency not in store.jobs and dependency not in given:
                raise unknown_dependency(new.id, dependency)


def _answer(job: Job, existed: bool, now: int) -> Enqueued:
    at = job.standing_at(now)
    run_at = job.row.run_at if at.is_finished else at.run_at
    return Enqueued(job.id, existed, at.state, run_at, job.row.enqueued_at)


def new_job(store: Store, new: NewJob, stands_for: dict[str, str], now: int) -> Job:
    # A dependency that turned out to exist already under another id means that one.
    depends_on = tuple(stands_for.get(dependency, dependency) for dependency in new.depends_on)
    unmet = frozenset(job_id for job_id in depends_on if not _has_succeeded(store, job_id))
    row = stored_job(new, now)
    return Job(
        row=row,
        at=Standing(
            State.WAITING if unmet else State.READY,
            row.run_at,
            due_at=None if unmet else new.due_at,
            begin_by=new.expires_at,
            delivery=new.delivery,
        ),
        depends_on=depends_on,
        ends_with_members=new.ends_with_members,
        unmet=unmet,
    )


def insert_dead(
    store: Store, new: NewJob, reason: Reason | None, of: Job, first_number: int, attempts: int, now: int
) -> None:
    """A copy of a run that failed for good: dead from the start, with that run's history."""
    copy = new_job(store, new, {}, now)
    number = of.at.number
    copy.at = finished(copy.at, State.DEAD, reason, now, number=number, attempts=attempts)
    copy.history = {
        number: Attempt(row.token, replace(row.record, job_id=new.id))
        for number, row in of.history.items()
        if number >= first_number
    }
    store.add(copy)


def _has_succeeded(store: Store, job_id: str) -> bool:
    # One that is not stored comes later in this very batch.
    return job_id in store.jobs and store.jobs[job_id].state is State.SUCCEEDED
