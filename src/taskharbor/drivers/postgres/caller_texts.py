"""Values as text on the way to the server, and from JSON on the way back.

A caller may have taught its library anything about timestamps, arrays, JSON or UUIDs. Text is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from taskharbor.clock import from_micros, to_micros

_ARGUMENT = re.compile(r"\$(\d+)::(\w+(?:\[\])?)")
_QUOTED = re.compile(r'(["\\])')
# The calendar repeats itself after this time.
_CYCLE_YEARS = 400
_CYCLE_MICROS = 146_097 * 86_400 * 1_000_000


@cache
def rewritten(statement: str, placeholder: Callable[[int], str]) -> tuple[str, dict[int, str]]:
    """The statement with every argument as text, cast by the server, and the type each is cast to."""
    kinds = {int(number): kind for number, kind in _ARGUMENT.findall(statement)}
    assert len(kinds) == len(set(re.findall(r"\$\d+", statement))), f"an argument has no type: {statement}"
    text = _ARGUMENT.sub(lambda found: f"{placeholder(int(found[1]))}::text::{found[2]}", statement)
    return text, kinds


def encoded(value: Any, kind: str) -> str | None:
    """A value as PostgreSQL reads it from text of this type."""
    if value is None:
        return None
    if kind.endswith("[]"):
        return "{" + ",".join(_element(each, kind.removesuffix("[]")) for each in value) + "}"
    if kind == "timestamptz":
        return _timestamp(value)
    return str(value)


def _timestamp(micros: int) -> str:
    try:
        return from_micros(micros).isoformat(" ", "microseconds")
    except OverflowError:
        assert micros > 0
        earlier = from_micros(micros - _CYCLE_MICROS).isoformat(" ", "microseconds")
        return f"{int(earlier[:4]) + _CYCLE_YEARS}{earlier[4:]}"


def _element(value: Any, kind: str) -> str:
    text = encoded(value, kind)
    return "NULL" if text is None else '"' + _QUOTED.sub(r"\\\1", text) + '"'


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the driver's own connections give it: instants as integers."""
    return {
        name: instant(value) if isinstance(value, str) and _is_instant(name) else value
        for name, value in row.items()
    }


def _is_instant(column: str) -> bool:
    return column.endswith("_at") or column in ("now", "lease_begin_by")


def instant(text: str) -> int:
    """Microseconds, from a timestamp in JSON. In the session's time zone even an instant that has a date in UTC may
    lie just outside of the years that Python knows."""
    if text.endswith(" BC"):
        assert text.startswith("0001-")
        return to_micros(datetime.fromisoformat(f"{_CYCLE_YEARS:04}{text[4:-3]}")) - _CYCLE_MICROS
    year, dash, rest = text.partition("-")
    if len(year) > 4:
        return to_micros(datetime.fromisoformat(f"{int(year) - _CYCLE_YEARS}{dash}{rest}")) + _CYCLE_MICROS
    return to_micros(datetime.fromisoformat(text))
