"""The search box: what a person types, read as a filter of jobs, and a filter written as what they would have typed.

    state:dead task:send_email error:"connection refused" payload.user_id:42

A word without a name before it is the beginning of an id, or a task or queue of that name, or else a part of the
error's text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from taskharbor.codec import shorten
from taskharbor.records import Reason, State

LENGTH_MAX = 2_000  # characters of a search

# What a person types before the colon, and the filter's name for it.
NAMES = {
    "state": "state",
    "queue": "queue",
    "task": "task",
    "tag": "tag",
    "id": "ids",
    "correlation": "correlation_id",
    "workflow": "workflow",
    "error": "error",
    "reason": "reason",
    "group": "fingerprint",
    "after": "enqueued_after",
    "before": "enqueued_before",
    "ended-after": "finished_after",
    "ended-before": "finished_before",
}
_TYPED = {name: typed for typed, name in NAMES.items()}
_TIMES = frozenset({"enqueued_after", "enqueued_before", "finished_after", "finished_before"})
PAYLOAD = "payload."

_PART = re.compile(r'(?:(?P<name>[A-Za-z][\w.-]*):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>\S+))')
_ID = re.compile(r"[0-9a-fA-F]{4}[0-9a-fA-F-]*")
_AGO = re.compile(r"(\d+)\s*([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PLAIN = re.compile(r"[^\s\"\\:]+")


class Searched(Struct, frozen=True):
    """What was asked for: parts of a filter by name, and what could not be understood, as sentences."""

    where: dict[str, Any]
    problems: list[str]


def read_search(
    text: str, *, now: datetime, tasks: Collection[str] = (), queues: Collection[str] = ()
) -> Searched:
    """Read what a person typed. `tasks` and `queues` are the known names, for words without a name before them."""
    where: dict[str, Any] = {}
    problems: list[str] = []
    if len(text) > LENGTH_MAX:
        return Searched({}, [f"a search has at most {LENGTH_MAX:,} characters, not {len(text):,}"])
    for part in _PART.finditer(text):
        value = part["plain"] if part["quoted"] is None else re.sub(r"\\(.)", r"\1", part["quoted"])
        typed = part["name"]
        if typed is None:
            name = _name_of_word(value, tasks, queues)
        elif typed.startswith(PAYLOAD):
            name = typed
        else:
            name = NAMES.get(typed.lower(), "")
            if not name:
                problems.append(f"{typed}: is not searched for; the names are {', '.join(NAMES)}, {PAYLOAD}…")
                continue
        _put(where, name, value, now, problems)
    return Searched(where, problems)


def has_bare_words(text: str) -> bool:
    """Whether a search has words without a name before them, which the known names decide about."""
    return any(part["name"] is None for part in _PART.finditer(text[:LENGTH_MAX]))


def _name_of_word(word: str, tasks: Collection[str], queues: Collection[str]) -> str:
    if word in tuple(State):
        return "state"
    if word in tasks:
        return "task"
    if word in queues:
        return "queue"
    return "ids" if _ID.fullmatch(word) else "error"


def _put(where: dict[str, Any], name: str, value: str, now: datetime, problems: list[str]) -> None:
    if name == "ids":
        where.setdefault("ids", []).append(value)
        return
    if name.startswith(PAYLOAD):
        path = name.removeprefix(PAYLOAD)
        if not path:
            problems.append(f"{PAYLOAD} needs the name of a value, such as payload.user_id:42")
        else:
            where.setdefault("payload", {})[path] = _value(value)
        return
    if name in where:
        problems.append(f"{_TYPED[name]}: was given twice; a search takes one")
        return
    if name in _TIMES:
        at = _time(value, now)
        if at is None:
            problems.append(
                f"{_TYPED[name]}: takes a time such as 2026-03-01T12:00 or 2h for two hours ago, not {shorten(value)}"
            )
            return
        where[name] = at
        return
    where[name] = value


def _value(text: str) -> Any:
    """Read a value of a payload: JSON if it is a number, true, false or null; else the text itself."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return value if value is None or isinstance(value, bool | int | float) else text


def _time(text: str, now: datetime) -> datetime | None:
    if ago := _AGO.fullmatch(text):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# -- the other way round -----------------------------------------------------------------------------


def write_search(where: Mapping[str, Any]) -> str:
    """Write a filter as a person would type it."""
    parts = []
    for name, value in where.items():
        if value is None:
            continue
        if name == "ids":
            parts += [_written("id", each) for each in value]
        elif name == "payload":
            parts += [_written(PAYLOAD + path, each) for path, each in value.items()]
        else:
            parts.append(_written(_TYPED[name], value))
    return " ".join(parts)


def _written(typed: str, value: object) -> str:
    if isinstance(value, datetime):
        text = value.astimezone(UTC).isoformat()
    elif value is None or isinstance(value, bool):
        text = msgspec.json.encode(value).decode()
    else:
        text = str(value)
    if not _PLAIN.fullmatch(text):
        text = '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
    return f"{typed}:{text}"


# -- completion --------------------------------------------------------------------------------------

SUGGESTED_MAX = 12


def suggestions(
    text: str, *, tasks: Iterable[str], queues: Iterable[str], tags: Iterable[str] = ()
) -> list[str]:
    """Return what the last word of a search may become: whole searches, the nearest first."""
    head, _, last = text.rpartition(" ")
    before = f"{head} " if head else ""
    typed, colon, begun = last.partition(":")
    if not colon:
        words = [f"{name}:" for name in NAMES if name.startswith(last.lower())]
        words += [_written("task", task) for task in tasks if last and last in task]
        words += [_written("queue", queue) for queue in queues if last and last in queue]
        return [before + word for word in words][:SUGGESTED_MAX]
    known: dict[str, Iterable[str]] = {
        "state": [str(state) for state in State],
        "reason": [str(reason) for reason in Reason],
        "queue": queues,
        "task": tasks,
        "tag": tags,
        "after": ["15m", "1h", "1d", "7d"],
        "before": ["15m", "1h", "1d", "7d"],
    }
    begun = begun.strip('"')
    near = sorted(
        (value for value in known.get(typed.lower(), ()) if begun in value),
        key=lambda value: (not value.startswith(begun), value),
    )
    return [before + _written(typed.lower(), value) for value in near][:SUGGESTED_MAX]
