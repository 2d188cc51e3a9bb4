"""Filters of lists and bulk operations. A misspelt filter is an error, so that none matches more than intended."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict, TypeVar

import msgspec

from taskharbor.client.options import checked_id, checked_instant, refuse_unknown
from taskharbor.clock import from_micros
from taskharbor.codec import checked_name, shorten
from taskharbor.codec.text import SURROGATES
from taskharbor.errors import ConfigurationError
from taskharbor.records import JobFilter, Reason, ReasonName, State, StateName
from taskharbor.rules.fingerprint import ERROR_SHOWN

FILTERS = frozenset(JobFilter.__struct_fields__)
PAGE_MAX = 1_000
IDS_MAX = 1_000
COUNT_MAX = 10_000  # jobs that a count counts; of more it says so
PREFIX_MIN = 4  # characters of an id
PATHS_MAX, PATH_MAX, VALUE_MAX = (
    10,
    200,
    1_000,
)  # of a payload: values, and the characters of each path and text
CURSOR_MARK = "id:"  # before the digits of an id that is no UUID
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
Member = TypeVar("Member", bound=StrEnum)


class DeadWhere(TypedDict, total=False):
    """Selects dead jobs for a list or a bulk operation; a field left out matches any."""

    queue: str | None
    task: str | None
    tag: str | None
    workflow: object
    reason: Reason | ReasonName | None
    error: str | None
    fingerprint: str | None
    correlation_id: str | None
    enqueued_after: datetime | None
    enqueued_before: datetime | None
    finished_after: datetime | None
    finished_before: datetime | None
    ids: Iterable[object] | None
    payload: Mapping[str, Any] | str | None


class JobWhere(DeadWhere, total=False):
    """Selects jobs for a list or a bulk operation; a field left out matches any."""

    state: State | StateName | None


class Count(int):
    """How many jobs match. If `more` is true, there are more than this; its text is then `10,000+`."""

    more: bool

    def __new__(cls, jobs: int, more: bool = False) -> Count:
        count = super().__new__(cls, jobs)
        count.more = more
        return count

    def __str__(self) -> str:
        return f"{int(self):,}{'+' if self.more else ''}"


def job_filter(**where: Any) -> JobFilter:
    """Build a filter from the caller's values, each checked."""
    refuse_unknown(where, FILTERS, "filter")
    checked = JobFilter(
        **{name: CHECKS[name](value, name) for name, value in where.items() if value is not None}
    )
    _refuse_reversed("enqueued", checked.enqueued_after, checked.enqueued_before)
    _refuse_reversed("finished", checked.finished_after, checked.finished_before)
    return checked


def _refuse_reversed(what: str, after: int | None, before: int | None) -> None:
    """Refuse a range that ends before it begins: it would look like a store without such jobs."""
    if after is not None and before is not None and after > before:
        raise ConfigurationError(
            f"{what}_after {from_micros(after).isoformat()} is later than {what}_before "
            f"{from_micros(before).isoformat()}, so no job could match; swap them"
        )


def asked_filter(filter: JobFilter | None, where: JobWhere | DeadWhere) -> JobFilter:
    """Return the filter of a bulk operation, given as one object or as keywords."""
    if filter is None:
        return job_filter(**where)
    if where:
        raise ConfigurationError("a filter and its parts as keywords were both given; give one of them")
    if not isinstance(filter, JobFilter):
        raise ConfigurationError(
            f"a filter is a JobFilter, not {shorten(filter)}; or give its parts: queue=…, task=…, tag=…"
        )
    return job_filter(**{name: getattr(filter, name) for name in JobFilter.__struct_fields__})


def dead_filter(filter: JobFilter | None, where: DeadWhere) -> JobFilter:
    """Return the filter of dead jobs that was asked for."""
    asked = asked_filter(filter, where)
    if asked.state not in (None, State.DEAD):
        raise ConfigurationError(f"only dead jobs are in the dead-letter queue, not {asked.state} ones")
    return job_filter(**{**{name: getattr(asked, name) for name in FILTERS}, "state": State.DEAD})


def checked_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise ConfigurationError(f"limit must be a whole number from 1 to {PAGE_MAX}, not {shorten(limit)}")
    return limit


# -- ids and cursors -------------------------------------------------------------------------------


def checked_prefix(prefix: object) -> str:
    """Return the beginning of an id as it is stored: lower case, with dashes where a UUID has them."""
    digits = prefix.replace("-", "").lower() if isinstance(prefix, str) else ""
    if not PREFIX_MIN <= len(digits) <= 32 or not re.fullmatch(r"[0-9a-f]+", digits):
        raise ConfigurationError(
            f"a job's id is a UUID such as 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10, or at least its first {PREFIX_MIN} "
            f"characters, not {shorten(prefix)}"
        )
    whole = str(uuid.UUID(digits.ljust(32, "0")))
    return whole[: len(digits) + sum(len(digits) > dash for dash in (8, 12, 16, 20))]


def cursor_above(prefix: str) -> str | None:
    """Return the cursor from which a list begins with the ids of this prefix; None if that is its very beginning."""
    last = int(prefix.replace("-", "").ljust(32, "f"), 16)
    return None if last == 2**128 - 1 else str(uuid.UUID(int=last + 1))


def cursor_after(last_id: str | None) -> str | None:
    """The cursor of a page that ends with this id: the id itself, or, where a hand has stored one that is no UUID, its
    bytes as hexadecimal digits."""
    if last_id is None or _is_id(last_id):
        return last_id
    return CURSOR_MARK + last_id.encode().hex()


def checked_cursor(cursor: str | None) -> str | None:
    """The id that a page ended with, from the cursor that it gave."""
    if cursor is None:
        return None
    try:
        return _marked_id(cursor) or checked_id(cursor)
    except (ConfigurationError, ValueError):
        raise ConfigurationError(
            f"a cursor is the next_cursor of an earlier page, a UUID, not {shorten(cursor)}"
        ) from None


def _marked_id(cursor: object) -> str | None:
    if not isinstance(cursor, str) or not cursor.startswith(CURSOR_MARK):
        return None
    last_id = bytes.fromhex(cursor.removeprefix(CURSOR_MARK)).decode()
    if cursor_after(last_id) != cursor:  # there is one way to write it
        raise ValueError(cursor)
    return last_id


def is_whole_id(text: str) -> bool:
    """Whether this is an id as `checked_id` takes it, not the beginning of one."""
    try:
        checked_id(text)
    except ConfigurationError:
        return False
    return True


def _is_id(text: str) -> bool:
    try:
        return checked_id(text) == text
    except ConfigurationError:
        return False


# -- each part -------------------------------------------------------------------------------------


def _one_of(kind: type[Member], called: str, them: str) -> Callable[[object, str], Member]:
    def check(value: object, name: str) -> Member:
        try:
            return kind(str(value))
        except ValueError:
            raise ConfigurationError(
                f"no {called} is called {shorten(value)}; the {them} are {', '.join(kind)}"
            ) from None

    return check


def _id(value: object, name: str) -> str:
    return checked_id(value, of=name)


def _ids(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(f"ids takes several ids, such as a list, not {shorten(value)}")
    ids = tuple(checked_id(each) for each in value)
    if len(ids) > IDS_MAX:
        raise ConfigurationError(
            f"a filter takes at most {IDS_MAX:,} ids, not {len(ids):,}; give them in parts"
        )
    return ids


def _name(value: object, name: str) -> str:
    return checked_name(name.replace("_", " "), value)


def _error(value: object, name: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= ERROR_SHOWN:
        raise ConfigurationError(
            f"error is a part of the error's text, 1 to {ERROR_SHOWN} characters, not {shorten(value)}"
        )
    if "\0" in value or SURROGATES.search(value):
        raise ConfigurationError(
            f"error {shorten(value)} holds a NUL or a lone surrogate, which no stored error has; remove it"
        )
    return value


def _fingerprint(value: object, name: str) -> str:
    digits = value.lower() if isinstance(value, str) else ""
    if not _FINGERPRINT.fullmatch(digits):
        raise ConfigurationError(
            f"a fingerprint has 16 hexadecimal digits, as in the list of groups, not {shorten(value)}"
        )
    return digits


def _instant(value: Any, name: str) -> int:
    """Return microseconds, from a datetime, or from a `JobFilter`, which has microseconds."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            value = from_micros(value)
        except (OverflowError, ValueError):
            raise ConfigurationError(f"{name} must be between the years 1 and 9999, not {value}") from None
    return checked_instant(value, name)


def _payload(value: object, name: str) -> dict[str, Any]:
    """Return values of a payload by their paths, given as a dict or as its JSON."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise _no_payload(value) from None
    if not isinstance(value, Mapping) or not 1 <= len(value) <= PATHS_MAX:
        raise _no_payload(value)
    for path, wanted in value.items():
        if not isinstance(path, str) or not 1 <= len(path) <= PATH_MAX:
            raise _no_payload(value)
        if not (wanted is None or isinstance(wanted, str | int | float)) or len(str(wanted)) > VALUE_MAX:
            raise ConfigurationError(
                f"payload {path} is compared with a text of at most {VALUE_MAX:,} characters, a number, true, false or "
                f"null, not with {shorten(wanted)}"
            )
    return dict(value)


def _no_payload(value: object) -> ConfigurationError:
    return ConfigurationError(
        f'payload takes 1 to {PATHS_MAX} values by their paths, such as {{"user.id": 42}}, not {shorten(value)}'
    )


CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "state": _one_of(State, "state", "states"),
    "queue": _name,
    "task": _name,
    "tag": _name,
    "workflow": _id,
    "reason": _one_of(Reason, "reason", "reasons"),
    "error": _error,
    "fingerprint": _fingerprint,
    "correlation_id": _name,
    "enqueued_after": _instant,
    "enqueued_before": _instant,
    "finished_after": _instant,
    "finished_before": _instant,
    "ids": _ids,
    "payload": _payload,
}
