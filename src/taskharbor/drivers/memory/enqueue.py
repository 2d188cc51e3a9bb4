"""Enqueue: all of the jobs or none, and one job for each id and each (queue, idempotency key)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.base import Enqueued, WorkflowEnqueued, member_exists
from taskharbor.drivers.memory.store import Attempt, Job, Store, Workflow
from taskharbor.errors import ConfigurationError
from taskharbor.job import NO_OPTIONS, NewJob, NewWorkflow, Options, Reason, State


class _Batch:
    """Which job each of those given stands for; worked out before anything is stored."""

    def __init__(self, store: Store, jobs: Sequence[NewJob]) -> None:
        self.fresh: list[NewJob] = []
        self.answers: list[tuple[str, bool]] = []  # (id, existed)
        self.standing: dict[str, str] = {}  # the id given → the id of the job that stands for it
        self._ids: set[str] = set()  # what the batch has stored so far, and under which keys
        self._keys: dict[tuple[str, str], str] = {}
        for new in jobs:
            self._resolve(store, new)

    def _resolve(self, store: Store, new: NewJob) -> None:
        existing = self._existing(store, new)
        if existing is None:
            self.fresh.append(new)
            self._ids.add(new.id)
            if new.idempotency_key is not None:
                self._keys[new.queue, new.idempotency_key] = new.id
            self.standing[new.id] = new.id
        else:
            self.standing.setdefault(new.id, existing)
        self.answers.append((existing or new.id, existing is not None))

    def _existing(self, store: Store, new: NewJob) -> str | None:
        if new.id in store.jobs or new.id in self._ids:
            return new.id
        if new.idempotency_key is None:
            return None
        key = (new.queue, new.idempotency_key)
        return store.keys.get(key) or self._keys.get(key)


def enqueue(store: Store, jobs: Sequence[NewJob], now: int) -> list[Enqueued]:
    batch = _Batch(store, jobs)
    refuse_unknown_dependencies(store, batch.fresh, jobs)
    for new in batch.fresh:
        store.add(_job(store, new, batch.standing, now))
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
                raise ConfigurationError(
                    f"job {new.id} depends on {dependency}, which is neither stored nor enqueued with it; "
                    "enqueue that one first, or both in one call"
                )


def _answer(job: Job, existed: bool, now: int) -> Enqueued:
    return Enqueued(job.id, existed, job.state_at(now), job.shown_run_at, job.enqueued_at)


def _job(store: Store, new: NewJob, standing: dict[str, str], now: int) -> Job:
    run_at = _run_at(new, now)
    # A dependency that turned out to exist already under another id means that one.
    depends_on = tuple(standing.get(dependency, dependency) for dependency in new.depends_on)
    unmet = frozenset(job_id for job_id in depends_on if not _has_succeeded(store, job_id))
    return Job(
        id=new.id,
        task=new.task,
        payload=new.payload,
        queue=new.queue,
        priority=new.priority,
        enqueued_at=now,
        run_at=run_at,
        place=run_at,
        state=State.WAITING if depends_on else State.READY,
        expires_at=new.expires_at,
        begin_by=new.expires_at,
        idempotency_key=new.idempotency_key,
        delivery=new.delivery,
        options=new.options,
        options_json=options_json(new.options),
        depends_on=depends_on,
        ends_with_members=new.ends_with_members,
        unmet=unmet,
        due_at=None if unmet else new.due_at,
    )


def insert_dead(
    store: Store, new: NewJob, reason: Reason | None, of: Job, first_number: int, now: int
) -> None:
    """A copy of a run that failed for good: dead from the start, with that run's history."""
    copy = _job(store, new, {}, now)
    copy.state = State.DEAD
    copy.reason, copy.finished_at = reason, now
    copy.attempts, copy.number, copy.first_number = of.attempts, of.number, first_number
    copy.history = {
        number: Attempt(row.token, replace(row.record, job_id=new.id))
        for number, row in of.history.items()
        if number >= first_number
    }
    store.add(copy)


def _run_at(new: NewJob, now: int) -> int:
    if new.delay is not None:
        return now + new.delay
    return now if new.run_at is None else new.run_at


def _has_succeeded(store: Store, job_id: str) -> bool:
    # One that is not stored comes later in this very batch.
    return job_id in store.jobs and store.jobs[job_id].state is State.SUCCEEDED


def options_json(options: Options) -> str | None:
    return None if options == NO_OPTIONS else msgspec.json.encode(options).decode()
