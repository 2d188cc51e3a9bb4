"""Workflows: jobs that are stored, ended, restored, kept and pruned as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from taskharbor.drivers.base import WorkflowEnqueued, WorkflowPage, member_exists, text_size
from taskharbor.drivers.sqlite import moving, places
from taskharbor.drivers.sqlite.enqueue import enqueue
from taskharbor.drivers.sqlite.leases import SETTLE
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import DELIVERIES, Reading, is_text
from taskharbor.records import MemberResult, NewJob, NewWorkflow, Reason, State, WorkflowRecord
from taskharbor.rules.operating import new_run
from taskharbor.rules.standing import Standing

WORKFLOWS = statements("workflows")
OPERATE = statements("operate")
FORGOTTEN_AT_ONCE = 500


def enqueue_workflow(session: Session, workflow: NewWorkflow, jobs: Sequence[NewJob]) -> WorkflowEnqueued:
    known = session.one(WORKFLOWS["known_workflow"], (workflow.id, workflow.idempotency_key))
    if known is not None:
        return WorkflowEnqueued(known[0], True, known[1])
    last_id = jobs[-1].id if jobs else workflow.id
    row = (workflow.id, last_id, len(jobs), session.now, workflow.idempotency_key, workflow.about)
    session.execute(WORKFLOWS["insert_workflow"], row)
    for answer in enqueue(session, jobs):
        if answer.existed:
            raise member_exists(answer.id)
    return WorkflowEnqueued(workflow.id, False, session.now)


# -- reads -----------------------------------------------------------------------------------------


def get(session: Session, workflow_id: str) -> WorkflowRecord | None:
    row = session.one(WORKFLOWS["workflow"], (workflow_id,))
    return None if row is None else _record(session, row)


def page(session: Session, cursor: str | None, limit: int) -> WorkflowPage:
    rows = session.execute(WORKFLOWS["workflows"], (cursor or "~", limit + 1)).fetchall()
    found = [_record(session, row) for row in rows[:limit] if type(row[0]) is str and is_text(row[0])]
    return WorkflowPage(found, found[-1].id if found and len(rows) > limit else None)


def _record(session: Session, row: tuple[Any, ...]) -> WorkflowRecord:
    read = Reading()
    workflow_id = row[0]
    last_id = read.text("last_id", row[1])
    total = read.integer("total", row[2])
    enqueued_at = read.instant("enqueued_at", row[3])
    key, about = read.optional_text("idempotency_key", row[4]), read.text("about", row[5])
    kept, succeeded, dead, cancelled, waiting = session.one(WORKFLOWS["numbers"], (workflow_id, last_id))
    active = kept - succeeded - dead - cancelled - waiting
    return WorkflowRecord(
        workflow_id, about, enqueued_at, total, key, succeeded, dead, cancelled, waiting, active
    )


def range_of(session: Session, workflow_id: str) -> tuple[str, str]:
    """The id before its first job's, and its last one's; a range of nothing if there is no such workflow."""
    row = session.one(WORKFLOWS["workflow"], (workflow_id,))
    return (workflow_id, workflow_id) if row is None else (row[0], row[1])


def results(session: Session, ids: Sequence[str], bytes_limit: int | None) -> list[list[MemberResult]]:
    answers: list[list[MemberResult]] = []
    left = bytes_limit
    for job_id in ids:
        members: list[MemberResult] = []
        for member, succeeded, result in session.execute(WORKFLOWS["results"], (job_id,)):
            if left is not None and (left := left - text_size(result)) < 0:
                break
            members.append(MemberResult(member, bool(succeeded), result))
        if left is not None and left < 0:
            rows = session.execute(WORKFLOWS["results_left_out"], (job_id,)).fetchall()
            members = [MemberResult(member, bool(succeeded), left_out=True) for member, succeeded in rows]
        answers.append(members)
    return answers


# -- ending and beginning again with others --------------------------------------------------------


def cancel_dependants(session: Session, ended: Iterable[str]) -> tuple[str, ...]:
    """Cancel the jobs that wait for one that ended without success and end with it, and their dependants in turn."""
    ends = list(ended)
    cancelled: list[str] = []
    while ends:
        doomed = session.execute(WORKFLOWS["doomed_dependants"], (ends.pop(),)).fetchall()
        for job_id, number, attempts, delivery, queue in doomed:
            if type(job_id) is not str or not is_text(job_id):
                continue
            read = Reading()
            session.execute(SETTLE["delete_waiting"], (job_id,))
            to = Standing(
                State.CANCELLED,
                0,
                read.integer("number", number),
                read.integer("attempts", attempts),
                delivery=read.one_of("delivery", delivery, DELIVERIES),
                reason=Reason.DEPENDENCY,
                finished_at=session.now,
            )
            moving.insert_ended(session, job_id, read.text("queue", queue), to)
            ends.append(job_id)
            cancelled.append(job_id)
    return tuple(sorted(cancelled))


def restore_dependants(session: Session, requeued: Iterable[str]) -> None:
    """Let jobs that were cancelled because of these wait again, unless another dependency has ended without success."""
    again = list(requeued)
    while again:
        restorable = session.execute(WORKFLOWS["restorable_dependants"], (again.pop(),)).fetchall()
        for (job_id,) in restorable:
            found = places.surely(session, job_id)
            waits = bool(session.one(OPERATE["unfinished_members"], (job_id,))[0])
            change = new_run(found.job, found.at, found.job.run_at, session.now, waits=waits)
            moving.move(session, found, change)
            again.append(job_id)


# -- being kept ------------------------------------------------------------------------------------


def around(session: Session, job_id: str) -> tuple[str, str] | None:
    """The range of the workflow that a job is a member of."""
    row = session.one(WORKFLOWS["workflow_around"], (job_id,))
    return row if row is not None and type(row[1]) is str and row[1] >= job_id else None


def is_unfinished(session: Session, span: tuple[str, str]) -> bool:
    kept, succeeded, dead, cancelled, _waiting = session.one(WORKFLOWS["numbers"], span)
    return bool(kept > succeeded + dead + cancelled)


def forget(session: Session, before: dict[State, int]) -> None:
    """Those of which nothing has to stay: from here on their jobs are old ones like any other."""
    if not before:
        return
    bounds = [before.get(state) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)]
    arguments = (max(before.values()), *bounds, FORGOTTEN_AT_ONCE)
    forgettable = session.execute(WORKFLOWS["forgettable_workflows"], arguments).fetchall()
    known = [row for row in forgettable if type(row[0]) is str and is_text(row[0])]
    session.executemany(WORKFLOWS["forget_workflow"], known)
