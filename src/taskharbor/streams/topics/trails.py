"""What a retry record says about its message: where it stood first, how often it failed, when it is due.

A record of a retry topic is the message as its producer wrote it, body, key and headers, with more headers. Only the
group that wrote it may execute it: two groups that read one topic share its retry topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import from_micros, to_micros
from taskharbor.codec import clean_text
from taskharbor.drivers.base import Transition
from taskharbor.records import FAILURES, AttemptRecord, AttemptStatus
from taskharbor.streams.messages import CORRELATION_HEADER, Place

Headers = list[tuple[str, bytes | None]]

PREFIX = "taskharbor-retry-"
# Of the latest attempts: more than any rule that weighs losses and put-backs looks at.
ROWS_MAX = 50
ERROR_MAX = 1_000  # characters


class Row(Struct, frozen=True, array_like=True):
    """An attempt, as far as the rules ask for it."""

    number: int
    status: AttemptStatus
    started_at: int | None
    finished_at: int
    failures: int  # before it
    detail: str | None = None
    fingerprint: str | None = None


class Trail(Struct, frozen=True):
    """What has happened to a message so far."""

    first: Place  # where its producer put it
    number: int = 0  # of its latest attempt
    attempts: int = 0  # failures that count
    due_at: int = 0
    wait_until: int = 0  # how long it stays in its retry topic; not longer than until it is due
    first_failed_at: int | None = None
    error: str | None = None
    fingerprint: str | None = None
    rows: tuple[Row, ...] = ()  # oldest first

    def after(self, t: Transition, now: int) -> Trail:
        """Return the trail with one attempt more, which ended now."""
        row = Row(t.number, t.status, t.started_at, now, self.attempts, t.detail, t.fingerprint)
        is_failure = t.status in FAILURES
        return replace(
            self,
            number=t.number,
            attempts=t.attempts,
            due_at=now + (t.delay or 0),
            first_failed_at=now if is_failure and self.first_failed_at is None else self.first_failed_at,
            error=self.error if t.error is None else clean_text(t.error, ERROR_MAX),
            fingerprint=t.fingerprint or self.fingerprint,
            rows=(*self.rows, row)[-ROWS_MAX:],
        )

    def history(self, limit: int) -> list[AttemptRecord]:
        """The attempts as the rules read them, newest first."""
        return [
            AttemptRecord(
                self.first.job_id,
                row.number,
                row.status,
                row.failures,
                "stream",
                row.started_at,
                row.finished_at,
                detail=row.detail,
                fingerprint=row.fingerprint,
            )
            for row in self.rows[: -limit - 1 : -1]
        ]

    @property
    def rows_json(self) -> bytes:
        """The attempts for people and programs that read a dead letter."""
        attempts = [
            {
                "number": row.number,
                "status": row.status,
                "finishedAt": from_micros(row.finished_at).isoformat(),
                "fingerprint": row.fingerprint,
            }
            for row in self.rows
        ]
        return msgspec.json.encode(attempts)


def headers_of(trail: Trail, group: str, given: Headers, correlation: str | None) -> Headers:
    """The headers of a retry record: those of the message, then the trail."""
    first = trail.first
    error_type, _, error = (trail.error or "").partition(": ")
    texts = {
        "group": group,
        "topic": first.topic,
        "partition": str(first.partition),
        "offset": str(first.offset),
        "timestamp": str(first.timestamp),
        "attempts": str(trail.attempts),
        "number": str(trail.number),
        "due-at": from_micros(trail.due_at).isoformat(),
        "wait-until": from_micros(trail.wait_until).isoformat(),
        "first-failed-at": None
        if trail.first_failed_at is None
        else from_micros(trail.first_failed_at).isoformat(),
        "error-type": error_type or None,
        "error": error or None,
        "fingerprint": trail.fingerprint,
        "history": msgspec.json.encode(trail.rows).decode(),
    }
    headers = [*given, *((PREFIX + name, text.encode()) for name, text in texts.items() if text is not None)]
    if correlation is not None and all(name != CORRELATION_HEADER for name, _ in given):
        headers.append((CORRELATION_HEADER, correlation.encode()))
    return headers


class Foreign(Struct, frozen=True):
    """A retry record of another group, or one that no worker wrote."""

    group: str | None


def read(
    headers: Sequence[tuple[str, bytes | None]] | None, group: str, log: bytes
) -> tuple[Trail, Headers] | Foreign:
    """Take the headers of a retry record apart: the trail, and those of the message.

    Raises a ValueError if it is one of this group, and cannot be read.
    """
    given = [(name, value) for name, value in headers or ()]
    own = {
        name.removeprefix(PREFIX): value.decode(errors="replace")
        for name, value in given
        if name.startswith(PREFIX) and value is not None
    }
    if own.get("group") != group:
        return Foreign(own.get("group"))
    error_type, error = own.get("error-type"), own.get("error")
    try:
        trail = Trail(
            Place(log, own["topic"], int(own["partition"]), int(own["offset"]), int(own["timestamp"])),
            int(own["number"]),
            int(own["attempts"]),
            _instant(own["due-at"]),
            _instant(own["wait-until"]),
            _instant(own["first-failed-at"]) if "first-failed-at" in own else None,
            error_type if error is None else f"{error_type}: {error}",
            own.get("fingerprint"),
            msgspec.json.decode(own["history"], type=tuple[Row, ...]),
        )
    except (KeyError, ValueError, OverflowError, msgspec.MsgspecError) as wrong:
        raise ValueError(f"the headers of a retry record cannot be read: {wrong!r}") from wrong
    return trail, [(name, value) for name, value in given if not name.startswith(PREFIX)]


def _instant(text: str) -> int:
    return to_micros(datetime.fromisoformat(text))


def first_trail(place: Place, headers: Any) -> tuple[Trail, Headers]:
    """The trail of a message that has just come. Headers that only a retry record has are dropped."""
    given = [(name, value) for name, value in headers or () if not name.startswith(PREFIX)]
    return Trail(place), given
