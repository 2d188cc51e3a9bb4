"""What operators do to jobs, and what age does."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import UNSET, structs

from taskharbor.drivers.base import (
    NOT_BEGUN,
    OPERATOR,
    Cancel,
    Delete,
    Discard,
    Occurrence,
    Operated,
    Operation,
    Requeue,
    RunNow,
    Seen,
    Update,
    Verdict,
    with_dependants,
)
from taskharbor.drivers.sqlite import leases, places, workflows
from taskharbor.drivers.sqlite.enqueue import ENQUEUE, encoded_options
from taskharbor.drivers.sqlite.leases import SETTLE
from taskharbor.drivers.sqlite.places import Place, Stored
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.settle import add_to_tally, insert_ready, rearm
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.job import Reason, State, TokenRecord
from taskharbor.lifecycle import TERMINAL, allows, check_prunable

OPERATE = statements("operate")


def operate(session: Session, operation: Operation, ids: Sequence[str]) -> list[Operated]:
    answers = [_operate_one(session, operation, job_id) for job_id in ids]
    done = sorted(answer.job_id for answer in answers if answer.verdict is Verdict.DONE)
    # When all that was asked for has been done: what is named has what was asked, not what follows from another.
    if isinstance(operation, Cancel) and operation.occurrence is None:
        cancelled = {job_id: workflows.cancel_dependants(session, [job_id]) for job_id in done}
        return with_dependants(answers, cancelled)
    if isinstance(operation, Requeue):
        workflows.restore_dependants(session, done)
    return answers


def _operate_one(session: Session, operation: Operation, job_id: str) -> Operated:
    job = places.stored(session, job_id)
    if job is None:
        return Operated(job_id, Verdict.NOT_FOUND)
    place = places.find(session, job, places.latest_attempt(session, job_id))
    if not allows(place.state, operation):
        return Operated(job_id, Verdict.CONFLICT, place.state)
    return Operated(job_id, _do(session, operation, job, place), place.state)


def _do(session: Session, operation: Operation, job: Stored, place: Place) -> Verdict:
    match operation:
        case Cancel():
            return _cancel(session, job, place, operation)
        case Discard():
            return _discard(session, job, place)
        case Delete():
            return _delete(session, job, place)
        case RunNow():
            return _run_now(session, job, place)
        case Requeue():
            return _requeue(session, job, place, operation)
        case Update():
            return _update(session, job, place, operation)


def _cancel(session: Session, job: Stored, place: Place, cancel: Cancel) -> Verdict:
    if place.lease is not None:
        leases.request_cancel(session, place.lease, job.id)
        return Verdict.REQUESTED
    if cancel.occurrence is not None:
        return _cancel_occurrence(session, job, place, cancel.occurrence, cancel.seen)
    _leave_place(session, job, place)
    _end(session, job, place, Reason.CANCELLED)
    return Verdict.DONE


def _cancel_occurrence(
    session: Session, job: Stored, place: Place, occurrence: Occurrence, seen: Seen | None
) -> Verdict:
    if place.state is State.WAITING:
        return Verdict.CONFLICT
    if occurrence.version != job.version or _has_moved_on(place, seen):
        return Verdict.CHANGED
    _leave_place(session, job, place)
    number = place.number + 1
    run_at = rearm(session, job.id, number, occurrence)
    row = (job.id, number, place.attempts, place.attempts, OPERATOR, session.now, run_at, NOT_BEGUN)
    session.execute(OPERATE["cancelled_occurrence"], row)
    return Verdict.DONE


def _discard(session: Session, job: Stored, place: Place) -> Verdict:
    if place.nowhere:
        return Verdict.CONFLICT  # it can be brought back, or deleted
    session.execute(OPERATE["discard"], (session.now, job.id))
    add_to_tally(session, job.queue, State.DEAD, -1)
    add_to_tally(session, job.queue, State.CANCELLED, 1)
    return Verdict.DONE


def _delete(session: Session, job: Stored, place: Place) -> Verdict:
    if _somebody_needs(session, job.id):
        return Verdict.CONFLICT
    workflow = workflows.around(session, job.id)
    if workflow is not None and workflows.is_unfinished(session, workflow):
        return Verdict.CONFLICT
    _leave_place(session, job, place)
    _erase(session, [job], {} if place.nowhere else {job.id: place.state})
    return Verdict.DONE


def _run_now(session: Session, job: Stored, place: Place) -> Verdict:
    session.execute(OPERATE["set_run_at"], (session.now, job.expires_at, job.id))
    _move(session, job, place, structs.replace(place, run_at=session.now))
    return Verdict.DONE


def _requeue(session: Session, job: Stored, place: Place, requeue: Requeue) -> Verdict:
    """A new run: the attempt number goes on, the failures begin anew."""
    run_at = session.now if requeue.run_at is None else requeue.run_at
    expires_at = job.expires_at if job.expires_at is None or job.expires_at > session.now else None
    session.execute(OPERATE["set_run_at"], (run_at, expires_at, job.id))
    _leave_place(session, job, place)
    session.execute(OPERATE["delete_ended"], (job.id,))
    session.execute(SETTLE["delete_progress"], (job.id,))
    if not place.nowhere:
        add_to_tally(session, job.queue, place.state, -1)
    session.execute(OPERATE["move_latest_attempt"], (job.id, run_at))
    attempts = 0 if requeue.reset_attempts else place.attempts
    if session.one(OPERATE["unfinished_members"], (job.id,))[0]:
        row = (job.id, place.number, attempts, place.number + 1, expires_at, place.delivery)
        session.execute(ENQUEUE["insert_waiting"], row)
        return Verdict.DONE
    insert_ready(
        session,
        job.id,
        run_at=run_at,
        number=place.number,
        attempts=attempts,
        first_number=place.number + 1,
        expires_at=expires_at,
        delivery=place.delivery,
    )
    return Verdict.DONE


def _update(session: Session, job: Stored, place: Place, update: Update) -> Verdict:
    if update.version not in (None, job.version) or _has_moved_on(place, update.seen):
        return Verdict.CHANGED
    if update.queue not in (UNSET, job.queue) and job.idempotency_key is not None:
        return Verdict.CONFLICT
    if place.lease is not None:
        update = structs.replace(update, run_at=UNSET, due_at=UNSET, expires_at=UNSET, at_due=False)
    due_at = place.due_at if update.due_at is UNSET or place.state is State.WAITING else update.due_at
    if update.at_due and due_at is not None:
        update = structs.replace(update, run_at=due_at)
    changed_options = {
        name: value
        for name in ("max_attempts", "timeout", "tags")
        if (value := getattr(update, name)) is not UNSET
    }
    new_options = job.options if update.options is UNSET else update.options
    new_options = structs.replace(new_options, **changed_options)
    options = encoded_options(new_options)
    # What cannot be read stays as it is, unless it is said what shall stand there.
    if not changed_options and update.options is UNSET and job.unreadable_options is not None:
        options = job.unreadable_options
    changed = structs.replace(
        job,
        **{
            name: value
            for name in ("queue", "task", "delivery", "priority", "run_at", "payload", "expires_at")
            if (value := getattr(update, name)) is not UNSET
        },
    )
    row = (
        changed.queue,
        changed.task,
        changed.delivery,
        changed.priority,
        changed.run_at,
        changed.payload,
        changed.expires_at,
        options,
        job.id,
    )
    session.execute(OPERATE["update_job"], row)
    if new_options.tags != job.options.tags:
        session.executemany(OPERATE["delete_tag"], [(tag, job.id) for tag in job.options.tags])
        session.executemany(ENQUEUE["insert_tag"], [(tag, job.id) for tag in new_options.tags])
    if place.lease is not None:
        return Verdict.DONE  # it stays where it is
    new_place = structs.replace(
        place,
        run_at=place.run_at if update.run_at is UNSET else update.run_at,
        due_at=due_at,
        delivery=place.delivery if update.delivery is UNSET else update.delivery,
        expires_at=place.expires_at
        if update.expires_at is UNSET or _has_begun(session, job, place)
        else update.expires_at,
    )
    _move(session, job, place, new_place)
    return Verdict.DONE


def _has_moved_on(place: Place, seen: Seen | None) -> bool:
    return seen is not None and seen != Seen(place.number, place.lease is not None)


def _has_begun(session: Session, job: Stored, place: Place) -> bool:
    """Whether the current run has been begun: an expiry concerns only the first begin."""
    return bool(session.one(OPERATE["run_has_begun"], (job.id, place.first_number))[0])


# -- moving ----------------------------------------------------------------------------------------


def _move(session: Session, job: Stored, place: Place, to: Place) -> None:
    """Rewrite the ready row under its new key; the jobs row has been changed already."""
    session.execute(OPERATE["move_latest_attempt"], (job.id, to.run_at))
    if place.state is State.WAITING:
        session.execute(OPERATE["update_waiting"], (to.expires_at, to.delivery, job.id))
        return
    _leave_place(session, job, place)
    insert_ready(
        session,
        job.id,
        run_at=to.run_at,
        number=to.number,
        attempts=to.attempts,
        first_number=to.first_number,
        due_at=to.due_at,
        expires_at=to.expires_at,
        delivery=to.delivery,
        suspect=to.suspect,
    )


def _leave_place(session: Session, job: Stored, place: Place) -> None:
    """Take a job that is not running out of wherever it is."""
    if place.state is State.WAITING:
        session.execute(SETTLE["delete_waiting"], (job.id,))
    elif place.state in (State.READY, State.SCHEDULED):
        key = (int(place.suspect), job.queue, -job.priority, place.run_at, job.id)
        session.execute(OPERATE["delete_ready"], key)
    elif place.nowhere:  # perhaps under another key than its own
        session.execute(leases.CLAIM["delete_strays"], (job.id,))


def _end(session: Session, job: Stored, place: Place, reason: Reason) -> None:
    row = (job.id, State.CANCELLED, reason, session.now, place.number, place.attempts, place.delivery)
    session.execute(SETTLE["insert_ended"], row)
    add_to_tally(session, job.queue, State.CANCELLED, 1)


def _somebody_needs(session: Session, job_id: str) -> bool:
    """Whether an unfinished job depends on this one."""
    for (dependant,) in session.execute(OPERATE["dependants"], (job_id,)).fetchall():
        record = places.record(session, dependant)
        if record is not None and record.state not in TERMINAL:
            return True
    return False


def _erase(session: Session, jobs: Sequence[Stored], states: dict[str, State]) -> None:
    leases.strike(session, {job.id for job in jobs})
    keys = [(job.id,) for job in jobs]
    for statement in (
        SETTLE["mark_member_done"],  # nobody unfinished depends on it: a later requeue must not wait for ever
        OPERATE["delete_job"],
        OPERATE["delete_attempts"],
        OPERATE["delete_ended"],
        OPERATE["delete_dependencies"],
        SETTLE["delete_steps"],
        SETTLE["delete_progress"],
    ):
        session.executemany(statement, keys)
    for job in jobs:
        session.executemany(OPERATE["delete_tag"], [(tag, job.id) for tag in job.options.tags])
        if states.get(job.id) in TERMINAL:
            add_to_tally(session, job.queue, states[job.id], -1)


# -- queues and age --------------------------------------------------------------------------------


def pause(session: Session, queue: str, paused: bool) -> None:
    session.execute(OPERATE["pause" if paused else "resume"], (queue,))


def add_token(session: Session, token: TokenRecord) -> None:
    session.execute(OPERATE["insert_token"], structs.astuple(token))


def remove_token(session: Session, token_id: str) -> bool:
    return bool(session.execute(OPERATE["delete_token"], (token_id,)).rowcount)


def expire(session: Session, limit: int) -> list[str]:
    """Cancel what was not begun by its expires_at."""
    overdue = [
        (expires_at, job_id)
        for *_, job_id, _n, _a, _d, expires_at in session.execute(
            OPERATE["overdue_ready"], (session.now, limit)
        )
    ]
    overdue += [
        (expires_at, job_id)
        for job_id, *_, expires_at in session.execute(OPERATE["overdue_waiting"], (session.now, limit))
    ]
    overdue.sort()
    expired = [job_id for _, job_id in overdue[:limit]]
    for job_id in list(expired):
        job = places.stored(session, job_id)
        if job is None:  # a place without a job, written by hand
            session.execute(leases.CLAIM["delete_strays"], (job_id,))
            expired.remove(job_id)
            continue
        place = places.find(session, job, places.latest_attempt(session, job_id))
        _leave_place(session, job, place)
        _end(session, job, place, Reason.EXPIRED)
    return [*expired, *workflows.cancel_dependants(session, expired)]


def prune(session: Session, before: dict[State, int], limit: int) -> int:
    check_prunable(before)
    workflows.forget(session, before)
    doomed = list(islice(_prunable(session, before), max(limit, 0)))
    _erase(session, [job for job, _ in doomed], {job.id: state for job, state in doomed})
    return len(doomed)


def prune_history(session: Session, ids: Sequence[str], keep: int, before: int) -> int:
    pruned = 0
    named = leases.first_named(session, set(ids))
    for job_id in ids:
        job = places.stored(session, job_id)
        if job is None:
            continue
        place = places.find(session, job, places.latest_attempt(session, job_id))
        if place.state not in TERMINAL:
            bound = min(place.first_number, named.get(job_id, place.first_number))
            row = (job_id, bound, max(keep, 0), before)
            pruned += session.execute(OPERATE["prune_history"], row).rowcount
    return pruned


def _prunable(session: Session, before: dict[State, int]) -> Iterator[tuple[Stored, State]]:
    """Oldest ending first, without members of workflows and jobs that an unfinished one still depends on."""
    endings = [_endings(session, state, instant) for state, instant in before.items()]
    for _, job_id, state in heapq.merge(*endings):
        if workflows.around(session, job_id) is None and not _somebody_needs(session, job_id):
            job = places.stored(session, job_id)
            assert job is not None, "its ending is in the same transaction"
            yield job, state


def _endings(session: Session, state: State, before: int) -> Iterator[tuple[int, str, State]]:
    after = (-(2**62), "")
    while True:
        if state is State.SUCCEEDED:
            rows = session.execute(OPERATE["prunable_succeeded"], (before, *after, 200)).fetchall()
        else:
            rows = session.execute(OPERATE["prunable_ended"], (state, before, *after, 200)).fetchall()
        if not rows:
            return
        for finished_at, job_id in rows:
            yield finished_at, job_id, state
        after = rows[-1]
