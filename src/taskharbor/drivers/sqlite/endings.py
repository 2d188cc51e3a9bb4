"""Dead and cancelled jobs: their rows, and the dead ones by cause."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import Reading
from taskharbor.records import GroupRecord, JobFilter
from taskharbor.rules.fingerprint import ERROR_SHOWN
from taskharbor.rules.grouping import is_kept, listed
from taskharbor.rules.standing import Standing, shown_fingerprint

ENDINGS = statements("endings")


class Ending(NamedTuple):
    """What the row copies of the job and of its latest attempt."""

    queue: str
    task: str
    fingerprint: str | None
    error: str | None
    code_version: str | None


def insert_ended(session: Session, job_id: str, to: Standing, about: Ending | None = None) -> None:
    """Store that a job has ended, in place of whatever a row says of an end before.

    A settle knows what the row copies; others leave it to be read.
    """
    session.execute(
        ENDINGS["insert_ended"], _ended_row(job_id, to, about or _ending(session, job_id), raw=None)
    )


def set_aside(session: Session, job_id: str, to: Standing, raw: str) -> bool:
    """Store that a job is dead because its place could not be read; False if a row says of it that it has ended."""
    return bool(
        session.execute(ENDINGS["set_aside"], _ended_row(job_id, to, _ending(session, job_id), raw)).rowcount
    )


def _ending(session: Session, job_id: str) -> Ending:
    """What is stored already of the job and of its latest attempt."""
    queue, task, fingerprint, error, code_version = session.one(ENDINGS["ending"], (job_id,))
    read = Reading()
    return Ending(
        read.text("queue", queue),
        read.text("task", task),
        read.optional_text("fingerprint", fingerprint),
        read.optional_text("error", error),
        read.optional_text("code_version", code_version),
    )


def _ended_row(job_id: str, to: Standing, about: Ending, raw: str | None) -> tuple[object, ...]:
    return (
        job_id, to.state, to.reason, to.finished_at, to.number, to.attempts, to.delivery, raw, about.queue, about.task,
        shown_fingerprint(about.task, to, about.fingerprint),
        None if about.error is None else about.error[:ERROR_SHOWN], about.code_version,
    )  # fmt: skip


# -- groups ----------------------------------------------------------------------------------------


def groups(session: Session, where: JobFilter, limit: int) -> list[GroupRecord]:
    asked = {
        "fingerprint": where.fingerprint,
        "queue": where.queue,
        "task": where.task,
        "reason": where.reason,
        "finished_after": where.finished_after,
        "finished_before": where.finished_before,
        "limit": max(limit, 0),
    }
    statement = ENDINGS["groups" if is_kept(where) else "groups_by_filter"]
    return [_group(session, *row) for row in session.execute(statement, asked).fetchall()]


def _group(
    session: Session,
    fingerprint: Any,
    count: int,
    first: Any,
    last: Any,
    tasks: str,
    versions: str,
    sample: Any,
) -> GroupRecord:
    read = Reading()
    error = session.one(ENDINGS["ended_error"], (sample,))
    return GroupRecord(
        read.text("fingerprint", fingerprint),
        count,
        read.instant("finished_at", first),
        read.instant("finished_at", last),
        _names(tasks),
        _names(versions),
        read.text("job_id", sample),
        None if error is None else read.optional_text("error", error[0]),
    )


def _names(found: str) -> tuple[str, ...]:
    return listed(each for each in msgspec.json.decode(found) if isinstance(each, str))
