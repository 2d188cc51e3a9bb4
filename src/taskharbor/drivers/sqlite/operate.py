"""What operators do to jobs, and what age does."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter

from msgspec import UNSET

from taskharbor.drivers.base import (
    NOT_BEGUN,
    OPERATOR,
    Delete,
    Discard,
    Operation,
    OperationResult,
    OperationVerdict,
    Requeue,
    Update,
    with_dependants,
)
from taskharbor.drivers.sqlite import leases, moving, places, workflows
from taskharbor.drivers.sqlite.leases import SETTLE
from taskharbor.drivers.sqlite.moving import OPERATE
from taskharbor.drivers.sqlite.places import Found
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.stored import Reading
from taskharbor.records import Reason, State
from taskharbor.rules import operating as rules
from taskharbor.rules.lifecycle import TERMINAL, check_prunable
from taskharbor.rules.settling import finished
from taskharbor.rules.standing import Standing

# Jobs of one settle that are deleted at once: then it is pruning, which comes back for the rest, and shortens the list.
SHORTENED_MIN = 50


def operate(session: Session, operation: Operation, ids: Sequence[str]) -> list[OperationResult]:
    answers = [_operate_one(session, operation, job_id) for job_id in ids]
    done = sorted(answer.job_id for answer in answers if answer.verdict is OperationVerdict.DONE)
    # When all that was asked for has been done: what is named has what was asked, not what follows from another.
    if rules.ends_dependants(operation):
        cancelled = {job_id: workflows.cancel_dependants(session, [job_id]) for job_id in done}
        return with_dependants(answers, cancelled)
    if isinstance(operation, Requeue):
        workflows.restore_dependants(session, done)
    return answers


def _operate_one(session: Session, operation: Operation, job_id: str) -> OperationResult:
    found = places.find(session, job_id)
    if found is None:
        return OperationResult(job_id, OperationVerdict.NOT_FOUND)
    job, at = found.job, found.at
    answer = rules.change(
        operation,
        job,
        at,
        session.now,
        has_begun=_sets_expiry(operation) and _has_begun(session, job_id, at),
        waits=isinstance(operation, Requeue) and _waits(session, job_id),
    )
    if found.is_nowhere and isinstance(operation, Discard):
        answer = OperationVerdict.CONFLICT  # it can be brought back or deleted; there is nothing to discard
    if isinstance(answer, rules.Change):
        _apply(session, found, answer)
        answer = OperationVerdict.DONE
    elif answer is OperationVerdict.REQUESTED and found.lease is not None:
        leases.request_cancel(session, found.lease, job_id)
    elif isinstance(operation, Delete) and answer is OperationVerdict.DONE:
        answer = _delete(session, found)
    return OperationResult(job_id, answer, at.state)


def _apply(session: Session, found: Found, change: rules.Change) -> None:
    if found.lease is not None:  # it stays where it is
        moving.store_row(session, found.job, change.job)
        return
    if change.is_rearmed:
        attempts, to = found.at.attempts, change.to
        row = (found.job.id, to.number, attempts, attempts, OPERATOR, session.now, to.run_at, NOT_BEGUN)
        session.execute(OPERATE["cancelled_occurrence"], row)
    moving.move(session, found, change)


def _sets_expiry(operation: Operation) -> bool:
    return isinstance(operation, Update) and operation.expires_at is not UNSET


def _has_begun(session: Session, job_id: str, at: Standing) -> bool:
    return bool(session.one(OPERATE["run_has_begun"], (job_id, at.first_number))[0])


def _waits(session: Session, job_id: str) -> bool:
    return bool(session.one(OPERATE["unfinished_members"], (job_id,))[0])


def _delete(session: Session, found: Found) -> OperationVerdict:
    job_id = found.job.id
    if _is_needed(session, job_id):
        return OperationVerdict.CONFLICT
    workflow = workflows.around(session, job_id)
    if workflow is not None and workflows.is_unfinished(session, workflow):
        return OperationVerdict.CONFLICT
    _erase(session, [found])
    return OperationVerdict.DONE


def _is_needed(session: Session, job_id: str) -> bool:
    """Whether an unfinished job depends on this one."""
    for (dependant,) in session.execute(OPERATE["dependants"], (job_id,)).fetchall():
        record = places.record(session, dependant)
        if record is not None and record.state not in TERMINAL:
            return True
    return False


def _erase(session: Session, doomed: Sequence[Found]) -> None:
    leases.strike(session, {found.job.id for found in doomed})
    for found in doomed:
        moving.leave(session, found)
    keys = [(found.job.id,) for found in doomed]
    named = [row for key in keys for row in session.execute(OPERATE["settles_of"], key)]
    for statement in (
        SETTLE[
            "mark_member_done"
        ],  # no unfinished job depends on it: a later requeue must not wait without end
        OPERATE["delete_job"],
        OPERATE["delete_attempts"],
        OPERATE["delete_dependencies"],
        SETTLE["delete_steps"],
        SETTLE["delete_progress"],
    ):
        session.executemany(statement, keys)
    for found in doomed:
        job = found.job
        session.executemany(OPERATE["delete_tag"], [(tag, job.id) for tag in job.options.tags])
    _count_off(session, named)


def _count_off(session: Session, named: Sequence[tuple[int]]) -> None:
    """Count the rows of history that were deleted off the settles that they named."""
    for (settle_id,), count in Counter(named).items():
        session.execute(OPERATE["count_off_settle"], (count, settle_id))
        left = session.one(OPERATE["settle_attempts"], (settle_id,))
        if left is not None and left[0] <= 0:
            session.execute(OPERATE["delete_settle"], (settle_id,))
            session.execute(OPERATE["delete_settled"], (settle_id,))
        elif count >= SHORTENED_MIN:
            session.execute(OPERATE["shorten_settled"], (settle_id,))


# -- age --------------------------------------------------------------------------------


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
        found = places.find(session, job_id)
        if found is None:  # a place without a job, from a hand in the tables
            session.execute(leases.CLAIM["delete_strays"], (job_id,))
            expired.remove(job_id)
            continue
        ended = finished(found.at, State.CANCELLED, Reason.EXPIRED, session.now)
        moving.move(session, found, rules.Change(found.job, ended))
    return [*expired, *workflows.cancel_dependants(session, expired)]


def prune(session: Session, before: dict[State, int], limit: int) -> int:
    check_prunable(before)
    workflows.forget(session, before)
    doomed = list(islice(_prunable(session, before), max(limit, 0)))
    _erase(session, doomed)
    return len(doomed)


def prune_history(session: Session, ids: Sequence[str], keep: int, before: int) -> int:
    pruned = 0
    named = leases.first_named(session, set(ids))
    for job_id in ids:
        found = places.find(session, job_id)
        if found is not None and not found.at.is_finished:
            first_number = found.at.first_number
            bound = min(first_number, named.get(job_id, first_number))
            row = (job_id, bound, max(keep, 0), before)
            doomed = session.execute(OPERATE["prunable_history"], row).fetchall()
            named_settles = [row for key in doomed for row in session.execute(OPERATE["settle_of"], key)]
            session.executemany(OPERATE["delete_attempt"], doomed)
            _count_off(session, named_settles)
            pruned += len(doomed)
    return pruned


def _prunable(session: Session, before: dict[State, int]) -> Iterator[Found]:
    """Oldest ending first, without members of workflows and jobs that an unfinished one still depends on."""
    endings = [_endings(session, state, instant) for state, instant in before.items()]
    if State.SUCCEEDED in before:
        endings.append(_shared_endings(session, before[State.SUCCEEDED]))
    for finished_at, job_id, state in heapq.merge(*endings):
        if workflows.around(session, job_id) is None and not _is_needed(session, job_id):
            job = places.stored(session, job_id, Reading())
            assert job is not None, "its ending is in the same transaction"
            yield Found(job, Standing(state, job.run_at, finished_at=finished_at))


def _shared_endings(session: Session, before: int) -> Iterator[tuple[int, str, State]]:
    """Of successes that name a settle."""
    for finished_at, settles in groupby(_settles(session, before), itemgetter(0)):
        rows = [row for _, each in settles for row in session.execute(OPERATE["prunable_settled"], (each,))]
        for (job_id,) in sorted(rows):
            yield finished_at, job_id, State.SUCCEEDED


def _settles(session: Session, before: int) -> Iterator[tuple[int, int]]:
    after = (-(2**62), 0)
    while rows := session.execute(OPERATE["prunable_settles"], (before, *after, 20)).fetchall():
        yield from rows
        after = rows[-1]


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
