"""Rows of the order that cannot be read: a claim takes them out of it and makes their jobs dead."""

from __future__ import annotations

from typing import Any

from taskharbor.drivers.sqlite import endings
from taskharbor.drivers.sqlite.leases import as_json
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import DELIVERIES, FIRST_NUMBER_MAX, Reading, as_told, is_text
from taskharbor.records import Reason, State
from taskharbor.rules.standing import Standing

CLAIM = statements("claim")
SETTLE = statements("settle")

ODD_AT_ONCE = 100
READY_COLUMNS = (
    "suspect", "queue", "rank", "run_at", "id", "number", "attempts", "first_number", "due_at", "expires_at",
    "delivery",
)  # fmt: skip


def set_due_aside(session: Session, where: tuple[Any, ...], aside: list[str]) -> int:
    """Make those of the rows there dead that cannot be handed out, and keep them as they were; how many there were."""
    found = 0
    for row in session.execute(CLAIM["due_values"], where).fetchall():
        key, place, job = row[:5], row[5:11], row[11:]
        if not is_readable(key, place, job):
            session.execute(CLAIM["delete_place"], (*key[:4], _bytes_of(key[4]).hex().upper()))
            _set_aside(session, key, place, aside)
            found += 1
    return found


def is_readable(key: tuple[Any, ...], place: tuple[Any, ...], job: tuple[Any, ...]) -> bool:
    task, payload, priority, enqueued_at, options, version, meta = job
    number, attempts, first_number, due_at, expires_at, delivery = place
    read = Reading()
    read.text("id", key[4])
    read.instant("run_at", key[3])
    read.integer("number", number)
    read.integer("attempts", attempts)
    read.integer("first_number", first_number, most=FIRST_NUMBER_MAX)
    read.optional_instant("due_at", due_at)
    read.optional_instant("expires_at", expires_at)
    read.one_of("delivery", delivery, DELIVERIES)
    read.text("task", task)
    read.text("payload", payload)
    read.integer("priority", priority, -(2**63), 2**63)
    read.instant("enqueued_at", enqueued_at)
    read.optional_text("options", options)
    read.integer("version", version, -(2**63), 2**63)
    read.optional_text("meta", meta)
    return not read.odd


def set_odd_keys_aside(session: Session, aside: list[str], queue: Any) -> int:
    """Take rows out of the order whose place in it cannot be one; `queue` is such a one that was met."""
    rows = session.execute(CLAIM["odd_keys"], (_bytes_of(queue), ODD_AT_ONCE)).fetchall()
    for row in rows:
        session.execute(CLAIM["delete_odd_key"], row[:5])
        _set_aside(session, row[5:10], row[10:], aside)
    return len(rows)


def _bytes_of(value: Any) -> bytes:
    """What is stored: text of any bytes, or bytes."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogateescape")


def _set_aside(session: Session, key: tuple[Any, ...], place: tuple[Any, ...], aside: list[str]) -> None:
    """Make the job of this row dead, reason `unreadable`, if the row names one."""
    job_id = key[4]
    if type(job_id) is not str or not is_text(job_id):
        return
    job = session.one(SETTLE["job_place"], (job_id,))
    if job is None:
        return
    number, attempts, *_, delivery = place
    read = Reading()
    raw = dict(zip(READY_COLUMNS, map(as_told, (*key, *place)), strict=True))
    to = Standing(
        State.DEAD,
        0,
        read.integer("number", number),
        read.integer("attempts", attempts),
        delivery=read.one_of("delivery", delivery, DELIVERIES),
        reason=Reason.UNREADABLE,
        finished_at=session.now,
    )
    if endings.set_aside(session, job_id, to, as_json(raw)):
        session.execute(SETTLE["add_to_tally"], (read.text("queue", job[0]), State.DEAD, 1))
        aside.append(job_id)
