"""Values as people write them: durations, instants, payloads."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|w)?\s*")


def duration(value: str) -> float:
    """Seconds, from `90`, `1.5`, `500ms`, `30s`, `5m`, `2h`, `7d` or `2w`."""
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is no duration; write seconds, or a number and a unit: 500ms, 30s, 5m, 2h, 7d"
        )
    return float(found[1]) * _UNITS[found[2] or "s"]


def instant(value: str) -> datetime:
    """An aware datetime, from ISO 8601."""
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no time in ISO 8601; write for example 2026-01-31T08:00:00Z"
        ) from None
    if found.utcoffset() is None:
        raise click.BadParameter(f"{value!r} has no time zone; add Z for UTC, or an offset such as +02:00")
    return found


def host_and_port(value: str) -> tuple[str, int]:
    """From `8080`, `0.0.0.0:8080` or `[::]:8080`; this machine alone where no host is named."""
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise click.BadParameter(f"{value!r} is no [HOST:]PORT; write for example 8080 or 0.0.0.0:8080")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def parse_payload(words: Sequence[str]) -> dict[str, Any]:
    """A payload from one JSON object, from `-` (standard input), or from `name=text` and `name:=json` words."""
    if not words:
        return {}
    if len(words) == 1 and words[0] == "-":
        return _object(sys.stdin.read())
    if len(words) == 1 and (words[0].lstrip()[:1] in ("{", "[", '"', "") or "=" not in words[0]):
        return _object(words[0])
    payload: dict[str, Any] = {}
    for word in words:
        name, value = _pair(word)
        if name in payload:
            raise click.UsageError(f"the payload names {name!r} twice")
        payload[name] = value
    return payload


@contextmanager
def explaining_text(words: Sequence[str]) -> Iterator[None]:
    """Where a task wanted something else than the text of a `name=text` word, say how that is written."""
    from taskharbor.errors import PayloadError

    try:
        yield
    except PayloadError as error:
        for word in words:
            name, equals, value = word.partition("=")
            if equals and f"at {name}: " in str(error) and "got `str`" in str(error):
                raise PayloadError(
                    f"{error}; {name}=… gives text, so write {name}:={value[:40]} for JSON"
                ) from None
        raise


def _pair(word: str) -> tuple[str, Any]:
    left, equals, right = word.partition("=")
    is_json = left.endswith(":")
    name = left.removesuffix(":")
    if not equals or not name:
        raise click.UsageError(f"{word!r} is neither name=text nor name:=json")
    return (name, _decoded(right, f"the value of {name}")) if is_json else (name, right)


def _object(text: str) -> dict[str, Any]:
    payload = _decoded(text, "the payload")
    if not isinstance(payload, dict):
        raise click.UsageError(
            f'the payload must be a JSON object such as {{"to": "a@b.c"}}, not a {type(payload).__name__}'
        )
    return payload


def _decoded(text: str, what: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise click.UsageError(f"{what} is not valid JSON ({error}): {text[:60]!r}") from None
