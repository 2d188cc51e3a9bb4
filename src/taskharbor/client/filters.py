"""Filters of lists and bulk operations. A misspelt filter is an error, so that none matches more than intended."""

from __future__ import annotations

from typing import TypedDict

from taskharbor.client.options import checked_id, refuse_unknown
from taskharbor.codec import checked_name, shorten
from taskharbor.errors import ConfigurationError
from taskharbor.records import JobFilter, State, StateName

FILTERS = frozenset(JobFilter.__struct_fields__)
PAGE_MAX = 1_000
CURSOR_MARK = "id:"  # before the digits of an id that is no UUID


class DeadWhere(TypedDict, total=False):
    """Selects dead jobs for a bulk operation; a field left out matches any."""

    queue: str | None
    task: str | None
    tag: str | None
    workflow: object


class JobWhere(DeadWhere, total=False):
    """Selects jobs for a bulk operation; a field left out matches any."""

    state: State | StateName | None


def job_filter(
    *,
    state: str | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    workflow: object = None,
) -> JobFilter:
    """Build a filter from the caller's values, each checked."""
    return JobFilter(
        None if state is None else _checked_state(state),
        None if queue is None else checked_name("queue", queue),
        None if task is None else checked_name("task", task),
        None if tag is None else checked_name("tag", tag),
        None if workflow is None else checked_id(workflow),
    )


def asked_filter(filter: JobFilter | None, where: JobWhere | DeadWhere) -> JobFilter:
    """Return the filter of a bulk operation, given as one object or as keywords."""
    if filter is None:
        refuse_unknown(where, FILTERS, "filter")
        return job_filter(**where)
    if where:
        raise ConfigurationError("a filter and its parts as keywords were both given; give one of them")
    if not isinstance(filter, JobFilter):
        raise ConfigurationError(
            f"a filter is a JobFilter, not {shorten(filter)}; or give its parts: queue=…, task=…, tag=…"
        )
    return job_filter(
        state=filter.state, queue=filter.queue, task=filter.task, tag=filter.tag, workflow=filter.workflow
    )


def checked_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise ConfigurationError(f"limit must be a whole number from 1 to {PAGE_MAX}, not {shorten(limit)}")
    return limit


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


def _is_id(text: str) -> bool:
    try:
        return checked_id(text) == text
    except ConfigurationError:
        return False


def _checked_state(value: object) -> State:
    try:
        return State(str(value))
    except ValueError:
        raise ConfigurationError(
            f"no state is called {shorten(value)}; the states are {', '.join(State)}"
        ) from None
