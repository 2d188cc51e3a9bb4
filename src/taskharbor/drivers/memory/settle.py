"""Settle and note: the writes that a lease and an attempt number must prove."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.base import (
    Answer,
    Note,
    Occurrence,
    ProgressNote,
    Settled,
    Transition,
    worker_of,
)
from taskharbor.drivers.memory.enqueue import enqueue, insert_dead, refuse_unknown_dependencies
from taskharbor.drivers.memory.store import Attempt, Job, Store
from taskharbor.job import AttemptRecord, AttemptStatus, Reason, State, StepRecord
from taskharbor.lifecycle import TERMINAL

# -- the fence -----------------------------------------------------------------------------------


def fence(job: Job | None, token: str, number: int, now: int) -> Answer:
    """May this lease and number write to the job? The refusals in their order of precedence."""
    if job is None or job.lease is None or number in job.history:
        return Answer.NOT_RUNNING
    if job.lease.token != token or job.number != number:
        return Answer.LEASE_MISMATCH
    if job.lease.expired(now):
        return Answer.LEASE_EXPIRED
    return Answer.DONE


# -- settle --------------------------------------------------------------------------------------


def settle(store: Store, transitions: Sequence[Transition], now: int) -> list[Settled]:
    return [_settle(store, transition, now) for transition in transitions]


def _settle(store: Store, transition: Transition, now: int) -> Settled:
    job = store.jobs.get(transition.job_id)
    row = job.history.get(transition.number) if job is not None else None
    if row is not None:
        return _repeated(row, transition, now)
    answer = fence(job, transition.token, transition.number, now)
    if job is None or answer is not Answer.DONE:
        return Settled(answer, at=now)
    if transition.relies_on not in (None, job.version):
        return Settled(Answer.CHANGED, at=now)
    return _apply(store, job, transition, now)


def _repeated(row: Attempt, transition: Transition, now: int) -> Settled:
    """The attempt has its row already: this may be the settle that wrote it, asked again."""
    recorded = row.record.status
    same = row.token == transition.token and recorded is transition.status
    return Settled(Answer.DONE if same else Answer.NOT_RUNNING, recorded=recorded, at=now)


def _apply(store: Store, job: Job, transition: Transition, now: int) -> Settled:
    cancelled = turned_into_cancellation(job, transition)
    inserts = () if cancelled else transition.inserts
    refuse_unknown_dependencies(store, inserts, inserts)  # before anything has changed
    _record(job, transition, now)
    job.attempts = transition.attempts
    released: tuple[str, ...] = ()
    dependants: tuple[str, ...] = ()
    if transition.to is State.READY and not cancelled:
        _put_back(store, job, transition, now)
    elif transition.occurrence is not None:
        if transition.dead_letter is not None and transition.to is State.DEAD and not cancelled:
            reason, first = transition.reason, job.first_number
            insert_dead(store, transition.dead_letter, reason, job, first, now)
        rearm(store, job, transition.occurrence)
    elif cancelled:
        store.finish(job, State.CANCELLED, Reason.CANCELLED, now)
        dependants = store.cancel_dependants([job.id], now)
    else:
        job.result = transition.result if transition.to is State.SUCCEEDED else None
        store.finish(job, transition.to, transition.reason, now)
        released = _release_dependants(store, job)
        if job.state is not State.SUCCEEDED:
            dependants = store.cancel_dependants([job.id], now)
    enqueue(store, inserts, now)
    run_at = None if job.state in TERMINAL else job.place
    return Settled(Answer.DONE, job.state_at(now), run_at, released=released, at=now, cancelled=dependants)


def turned_into_cancellation(job: Job, transition: Transition) -> bool:
    """Only a success wins over a request to cancel; any other end of the attempt makes it cancelled."""
    requested = job.lease is not None and job.id in job.lease.cancel_requested
    return requested and transition.to is not State.SUCCEEDED


def _record(job: Job, transition: Transition, now: int) -> None:
    record = AttemptRecord(
        job_id=job.id,
        number=transition.number,
        status=transition.status,
        retry_count=job.attempts,  # still what it was when the attempt began
        worker=transition.worker or worker_of(transition.token),
        started_at=transition.started_at,
        finished_at=now,
        error=transition.error,
        traceback=transition.traceback,
        detail=transition.detail,
        # Its worker may have shown itself alive while the collector was deciding.
        outlived=transition.outlived
        or (transition.status is AttemptStatus.LOST and job.lease is not None and job.lease.outlived),
    )
    job.history[transition.number] = Attempt(transition.token, record)


def _put_back(store: Store, job: Job, transition: Transition, now: int) -> None:
    store.leave(job)
    if transition.delay is not None:  # otherwise it keeps the place it had
        job.place = now + transition.delay
    job.suspect = transition.suspect
    if transition.started_at is not None or transition.status is AttemptStatus.LOST:
        job.begun = True  # a lost one may have begun, so it has no longer a time to begin by
        job.begin_by = None
    store.enter(job, State.READY)


def rearm(store: Store, job: Job, occurrence: Occurrence) -> None:
    """The next run of a recurring job: nothing of the one before is left but its history."""
    store.leave(job)
    job.due_at = occurrence.due_at
    job.place = occurrence.due_at if occurrence.run_at is None else occurrence.run_at
    job.attempts = 0
    job.first_number = job.number + 1
    job.begun = False
    job.begin_by = None
    job.suspect = False
    job.progress = None
    job.steps.clear()
    store.enter(job, State.READY)


def _release_dependants(store: Store, job: Job) -> tuple[str, ...]:
    """A success satisfies those that depend on it; the ones for which it was the last stop waiting."""
    released: list[str] = []
    if job.state is not State.SUCCEEDED:
        return ()
    for job_id in sorted(store.dependants.get(job.id, ())):
        dependant = store.jobs[job_id]
        dependant.unmet -= {job.id}
        if dependant.state is State.WAITING and not dependant.unmet:
            store.leave(dependant)
            store.place_again(dependant)
            released.append(job_id)
    return tuple(released)


# -- progress and steps --------------------------------------------------------------------------


def note(store: Store, notes: Sequence[Note], now: int) -> list[Answer]:
    return [_note(store, one, now) for one in notes]


def _note(store: Store, note: Note, now: int) -> Answer:
    job = store.jobs.get(note.job_id)
    answer = fence(job, note.token, note.number, now)
    if job is not None and answer is Answer.DONE:
        if isinstance(note, ProgressNote):
            job.progress = note.progress
        else:
            job.steps.setdefault(
                note.name, StepRecord(note.result, note.number)
            )  # a step's first result is its result
    return answer
