"""Dead and cancelled jobs: their rows, and the dead ones by cause."""

from __future__ import annotations

from typing import Any

import msgspec

from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import Reading
from taskharbor.records import GroupRecord, JobFilter
from taskharbor.rules.grouping import listed
from taskharbor.rules.standing import Standing, shown_fingerprint

ENDINGS = statements("endings")


def insert_ended(session: Session, job_id: str, to: Standing) -> None:
    """Store that a job has ended, in place of whatever a row says of an end before."""
    session.execute(ENDINGS["insert_ended"], _ended_row(session, job_id, to, None))


def set_aside(session: Session, job_id: str, to: Standing, raw: str) -> bool:
    """Store that a job is dead because its place could not be read; False if a row says of it that it has ended."""
    return bool(session.execute(ENDINGS["set_aside"], _ended_row(session, job_id, to, raw)).rowcount)


def _ended_row(session: Session, job_id: str, to: Standing, raw: str | None) -> tuple[object, ...]:
    """The row, with what it copies of the job and of its latest attempt, which are stored already."""
    queue, task, fingerprint, error, code_version = session.one(ENDINGS["ending"], (job_id,))
    read = Reading()
    task = read.text("task", task)
    fingerprint = shown_fingerprint(task, to, read.optional_text("fingerprint", fingerprint))
    return (
        job_id, to.state, to.reason, to.finished_at, to.number, to.attempts, to.delivery, raw,
        read.text("queue", queue), task, fingerprint, read.optional_text("error", error),
        read.optional_text("code_version", code_version),
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
    return [_group(session, *row) for row in session.execute(ENDINGS["groups"], asked).fetchall()]


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
