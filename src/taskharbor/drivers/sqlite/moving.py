"""Moving a job from one place to another: what the rules decided, written as rows."""

from __future__ import annotations

from taskharbor.drivers.sqlite import endings
from taskharbor.drivers.sqlite.enqueue import ENQUEUE
from taskharbor.drivers.sqlite.leases import CLAIM, SETTLE
from taskharbor.drivers.sqlite.places import Found
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.records import State
from taskharbor.rules.aside import lane_of
from taskharbor.rules.operating import Change
from taskharbor.rules.standing import Standing, StoredJob

OPERATE = statements("operate")


def move(session: Session, found: Found, change: Change) -> None:
    """Take a job that is not running to where the change says, with its row as the change says."""
    leave(session, found)
    if change.job is not found.job:
        store_row(session, found.job, change.job)
    if change.is_new_run or change.is_rearmed:
        session.execute(SETTLE["delete_progress"], (change.job.id,))
    if change.is_rearmed:
        session.execute(SETTLE["delete_steps"], (change.job.id,))
    enter(session, change.job, change.to)


def leave(session: Session, found: Found) -> None:
    job, at = found.job, found.at
    if found.is_nowhere:  # perhaps under another key than its own
        session.execute(CLAIM["delete_strays"], (job.id,))
    elif at.state is State.WAITING:
        session.execute(SETTLE["delete_waiting"], (job.id,))
    elif at.is_finished:
        session.execute(OPERATE["delete_ended"], (job.id,))
        add_to_tally(session, job.queue, at.state, -1)
    else:
        key = (int(at.suspect), lane_of(job.queue, at.aside), -job.priority, at.run_at, job.id)
        session.execute(OPERATE["delete_ready"], key)


def enter(session: Session, job: StoredJob, to: Standing) -> None:
    if to.is_finished:
        insert_ended(session, job.id, job.queue, to)
        return
    # The key of a ready row is computed from the latest attempt.
    session.execute(OPERATE["move_latest_attempt"], (job.id, to.run_at, to.aside))
    if to.state is State.WAITING:
        row = (job.id, to.number, to.attempts, to.first_number, to.begin_by, to.delivery)
        session.execute(ENQUEUE["insert_waiting"], row)
    else:
        insert_ready(session, job.id, job.queue, job.priority, to)


def insert_ready(session: Session, job_id: str, queue: str, priority: int, to: Standing) -> None:
    lane = lane_of(queue, to.aside)
    session.execute(
        ENQUEUE["insert_ready"],
        (int(to.suspect), lane, -priority, to.run_at, job_id, to.number, to.attempts, to.first_number, to.due_at,
         to.begin_by, to.delivery),
    )  # fmt: skip


def insert_ended(
    session: Session, job_id: str, queue: str, to: Standing, about: endings.Ending | None = None
) -> None:
    """A success has no such row: its latest attempt says it."""
    endings.insert_ended(session, job_id, to, about)
    add_to_tally(session, queue, to.state, 1)


def store_row(session: Session, before: StoredJob, job: StoredJob) -> None:
    """The job's own row, and its tags."""
    session.execute(
        OPERATE["update_job"],
        (job.queue, job.task, job.delivery, job.priority, job.run_at, job.payload, job.expires_at, job.options_text,
         job.version, job.meta, job.id),
    )  # fmt: skip
    if job.options.tags != before.options.tags:
        session.executemany(OPERATE["delete_tag"], [(tag, job.id) for tag in before.options.tags])
        session.executemany(ENQUEUE["insert_tag"], [(tag, job.id) for tag in job.options.tags])


def add_to_tally(session: Session, queue: str, state: State, count: int) -> None:
    session.execute(SETTLE["add_to_tally"], (queue, state, count))
