"""Settle and note: the writes that a lease and an attempt number must prove."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from taskharbor.drivers.base import Note, ProgressNote, SettleAnswer, SettleResult, Transition, worker_of
from taskharbor.drivers.memory.enqueue import enqueue, insert_dead, refuse_unknown_dependencies
from taskharbor.drivers.memory.leases import mark_survived
from taskharbor.drivers.memory.store import Attempt, Job, Lease, Store
from taskharbor.records import AttemptRecord, State, StepRecord
from taskharbor.rules import settling as rules

# -- the fence -----------------------------------------------------------------------------------


def fence(job: Job | None, token: str, number: int, now: int) -> SettleAnswer:
    """May this lease and number write to the job?"""
    if job is None or job.lease is None:
        return SettleAnswer.NOT_RUNNING
    held = job.lease.token == token
    return rules.fence(
        number,
        now,
        is_recorded=number in job.history,
        held_number=job.at.number if held else None,
        expires_at=job.lease.expires_at,
        is_covered=True,
    )


# -- settle --------------------------------------------------------------------------------------


def settle(store: Store, transitions: Sequence[Transition], now: int) -> list[SettleResult]:
    answers = [_settle(store, transition, now) for transition in transitions]
    alive = {
        t.token
        for t, settled in zip(transitions, answers, strict=True)
        if rules.proves_survival(settled.answer, t.worker)
    }
    mark_survived(store, alive, now)
    repeated = [
        (index, *dependant)
        for index, (t, settled) in enumerate(zip(transitions, answers, strict=True))
        if settled.recorded is not None and settled.answer is SettleAnswer.DONE
        for dependant in _dependants_of(store, t)
    ]
    return rules.report_each_once(answers, repeated) if repeated else answers


def _dependants_of(store: Store, t: Transition) -> Iterator[tuple[str, bool]]:
    """What the end of this attempt, which is recorded, has released or cancelled: each id, and whether released."""
    job = store.jobs[t.job_id]
    ended_at = job.history[t.number].record.finished_at
    if not job.at.is_finished or (job.at.number, job.at.finished_at) != (t.number, ended_at):
        return
    if job.state is not State.SUCCEEDED:
        yield from ((job_id, False) for job_id in store.cancelled_with(job.id, ended_at))
        return
    for job_id in store.dependants.get(job.id, ()):
        dependant = store.jobs[job_id]
        ended_before = dependant.at.finished_at is not None and dependant.at.finished_at <= ended_at
        if dependant.unmet or dependant.row.enqueued_at > ended_at or ended_before:
            continue
        members = [store.jobs[member] for member in dependant.depends_on if member in store.jobs]
        if all((member.at.finished_at or 0) <= ended_at for member in members):
            yield job_id, True


def _settle(store: Store, transition: Transition, now: int) -> SettleResult:
    job = store.jobs.get(transition.job_id)
    row = job.history.get(transition.number) if job is not None else None
    if row is not None:
        return rules.repeated(transition, row.token, row.record.status, now)
    answer = fence(job, transition.token, transition.number, now)
    if job is None or answer is not SettleAnswer.DONE:
        return SettleResult(answer, at=now)
    if transition.relies_on not in (None, job.row.version):
        return SettleResult(SettleAnswer.CHANGED, at=now)
    return _apply(store, job, transition, now)


def _apply(store: Store, job: Job, t: Transition, now: int) -> SettleResult:
    lease = job.lease
    assert lease is not None, "the fence found it"
    requested = job.id in lease.cancel_requested
    move = rules.settle_move(job.at, t, now, cancel_requested=requested, declared=job.row.delivery)
    refuse_unknown_dependencies(store, move.inserts, move.inserts)  # before anything has changed
    _record(job, t, move, now, lease)
    if move.dead_letter is not None:
        insert_dead(store, move.dead_letter, t.reason, job, job.at.first_number, t.attempts, now)
    if move.is_rearmed:
        store.rearm(job, move.to)
    else:
        store.move(job, move.to)
        job.begun = job.begun or rules.has_begun(t.status, t.started_at)
    released: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    if move.to.state is State.SUCCEEDED:
        released = _release_dependants(store, job)
    elif move.to.is_finished:
        cancelled = store.cancel_dependants([job.id], now)
    enqueue(store, move.inserts, now)
    answer = move.answer(now)
    return replace(answer, released=released, cancelled=cancelled) if released or cancelled else answer


def _record(job: Job, t: Transition, move: rules.Move, now: int, lease: Lease) -> None:
    record = AttemptRecord(
        job_id=job.id,
        number=t.number,
        status=t.status,
        retry_count=job.at.attempts,
        worker=t.worker or worker_of(t.token),
        started_at=t.started_at,
        finished_at=now,
        error=t.error,
        traceback=t.traceback,
        detail=t.detail,
        worker_survived=rules.worker_survived(t, lease.worker_survived),
        retry_delay=rules.retry_delay(t, move),
        fingerprint=t.fingerprint,
        code_version=t.code_version,
    )
    origin = rules.collected_from(t, lease.token, lease.claimed_as)
    job.history[t.number] = Attempt(t.token, record, t.result, origin)


def _release_dependants(store: Store, job: Job) -> tuple[str, ...]:
    """A success satisfies those that depend on it; the ones for which it was the last stop waiting."""
    released: list[str] = []
    for job_id in sorted(store.dependants.get(job.id, ())):
        dependant = store.jobs[job_id]
        dependant.unmet -= {job.id}
        if dependant.state is State.WAITING and not dependant.unmet:
            store.move(dependant, replace(dependant.at, state=State.READY))
            released.append(job_id)
    return tuple(released)


# -- progress and steps --------------------------------------------------------------------------


def note(store: Store, notes: Sequence[Note], now: int) -> list[SettleAnswer]:
    answers = [_note(store, one, now) for one in notes]
    alive = {n.token for n, answer in zip(notes, answers, strict=True) if rules.proves_survival(answer)}
    mark_survived(store, alive, now)
    return answers


def _note(store: Store, note: Note, now: int) -> SettleAnswer:
    job = store.jobs.get(note.job_id)
    answer = fence(job, note.token, note.number, now)
    if job is not None and answer is SettleAnswer.DONE:
        if isinstance(note, ProgressNote):
            job.progress = note.progress
        else:
            job.steps.setdefault(
                note.name, StepRecord(note.result, note.number)
            )  # a step's first result is its result
    return answer
