"""Reading what a store holds, whatever that is.

A newer version may have written a row, or a person by hand. One value that is not what belongs there must hide neither
its job nor the jobs beside it: it is read as a stand-in, and reported as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from taskharbor.clock import to_micros
from taskharbor.codec import counted
from taskharbor.drivers.base import Check, worker_of
from taskharbor.records import AttemptRecord, AttemptStatus, Delivery, Reason, State
from taskharbor.rules.meta import is_readable
from taskharbor.rules.standing import Standing

E = TypeVar("E", bound=StrEnum)

# The limits of what can be read. Statements get them from here; a test compares the migrations' literals with them.
INSTANT_MIN = to_micros(datetime.min.replace(tzinfo=UTC))
INSTANT_MAX = to_micros(datetime.max.replace(tzinfo=UTC))
NUMBER_MAX = 2_000_000_000  # of attempts and versions: leaves room to be raised
FIRST_NUMBER_MAX = NUMBER_MAX + 1  # of the first attempt of a run that has not begun
TOLD_MAX = 1_000  # characters of one value

STATES: Mapping[object, State] = {str(each): each for each in State}
REASONS: Mapping[object, Reason] = {str(each): each for each in Reason}
STATUSES: Mapping[object, AttemptStatus] = {str(each): each for each in AttemptStatus}
DELIVERIES: Mapping[object, Delivery] = {str(each): each for each in Delivery}

_encode = msgspec.json.Encoder().encode


class Reading:
    """Reads the values of one job, and remembers by name those that cannot be what they should."""

    __slots__ = ("odd",)

    def __init__(self) -> None:
        self.odd: dict[str, str] = {}

    def text(self, name: str, value: Any) -> str:
        if type(value) is str and is_text(value):
            return value
        return self.report(name, value)

    def optional_text(self, name: str, value: Any) -> str | None:
        return None if value is None else self.text(name, value)

    def integer(self, name: str, value: Any, least: int = 0, most: int = NUMBER_MAX) -> int:
        if type(value) is int and least <= value <= most:
            return value
        self.report(name, value)
        return min(max(value, least), most) if type(value) is int else max(least, 0)

    def instant(self, name: str, value: Any) -> int:
        return self.integer(name, value, INSTANT_MIN, INSTANT_MAX)

    def optional_instant(self, name: str, value: Any) -> int | None:
        return None if value is None else self.instant(name, value)

    def optional_span(self, name: str, value: Any) -> int | None:
        return None if value is None else self.integer(name, value, 0, INSTANT_MAX - INSTANT_MIN)

    def meta(self, value: Any) -> str | None:
        """Return a job's meta as it is stored; readers take one that cannot be read for none."""
        text = self.optional_text("meta", value)
        if not is_readable(text):
            self.report("meta", value)
        return text

    def one_of(self, name: str, value: Any, known: Mapping[object, E]) -> E | None:
        if value is None:
            return None
        found = known.get(value) if isinstance(value, str) else None
        if found is None:
            self.report(name, value)
        return found

    def report(self, name: str, value: object) -> str:
        self.odd[name] = shown = as_shown(value)
        return shown

    def unreadable(self, raw: str | None = None) -> str | None:
        """Report all of it as JSON, with the row that was kept when the job was set aside; None if all is well."""
        if not self.odd and raw is None:
            return None
        odd: dict[str, object] = dict(self.odd)
        if raw is not None:
            try:
                odd["row"] = msgspec.json.decode(raw)
            except (ValueError, RecursionError):
                odd["row"] = raw
        return _encode(odd).decode()


def is_text(text: str) -> bool:
    """Whether it was valid UTF-8: bytes that were not are read as lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_told(value: object) -> object:
    """A stored value as JSON can hold it."""
    return value if value is None or type(value) in (int, float) else as_shown(value)


def as_shown(value: object) -> str:
    """A stored value of any kind as text: bytes as SQL writes them."""
    if isinstance(value, str):
        if is_text(value):
            return value[:TOLD_MAX]
        value = value.encode(errors="surrogateescape")
    if isinstance(value, bytes):
        return f"x'{value[: TOLD_MAX // 2].hex()}'"
    return repr(value)[:TOLD_MAX]


def attempt_of(
    job_id: str,
    number: Any,
    status: Any,
    retry_count: Any,
    token: Any,
    worker: Any,
    started_at: Any,
    finished_at: Any,
    error: Any,
    traceback: Any,
    detail: Any,
    worker_survived: Any,
    retry_delay: Any,
    fingerprint: Any,
    code_version: Any,
) -> AttemptRecord:
    """Read a row of history. One that cannot be read counts for nothing: `released`, and its detail says why."""
    read = Reading()
    attempt = AttemptRecord(
        job_id=job_id,
        number=read.integer("number", number),
        status=read.one_of("status", status, STATUSES) or AttemptStatus.RELEASED,
        retry_count=read.integer("retry_count", retry_count),
        worker=read.optional_text("worker", worker) or worker_of(read.text("token", token)),
        started_at=read.optional_instant("started_at", started_at),
        finished_at=read.instant("finished_at", finished_at),
        error=read.optional_text("error", error),
        traceback=read.optional_text("traceback", traceback),
        detail=read.optional_text("detail", detail),
        worker_survived=bool(worker_survived),
        retry_delay=read.optional_span("retry_delay", retry_delay),
        fingerprint=read.optional_text("fingerprint", fingerprint),
        code_version=read.optional_text("code_version", code_version),
    )
    unreadable = read.unreadable()
    return attempt if unreadable is None else replace(attempt, detail=f"unreadable: {unreadable}")


def nowhere(read: Reading, run_at: int, number: int, attempts: int) -> Standing:
    """Show a job without a place, after a change by hand or in a damaged file: it can be requeued or deleted."""
    read.report("place", "none: it is neither ready, waiting, leased nor ended")
    return Standing(State.DEAD, run_at, number, attempts, reason=Reason.UNREADABLE)


def unreadable_check(jobs: int) -> Check:
    """What `taskharbor doctor` says of jobs that were set aside because they could not be read."""
    if not jobs:
        return Check("unreadable", True, "every job that was to be claimed could be read")
    return Check(
        "unreadable",
        False,
        f"{counted(jobs, 'job')} could not be read: something else writes to TaskHarbor's tables. "
        "`taskharbor list --state dead` finds them, `taskharbor inspect ID` shows what is stored",
        severe=False,
    )
