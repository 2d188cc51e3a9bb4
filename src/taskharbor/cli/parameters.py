"""Parses what users write: durations, instants, payloads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from taskharbor.clock import duration_seconds

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


def duration(value: str) -> float:
    """Seconds, from `90`, `1.5`, `500ms`, `30s`, `5m`, `2h`, `7d` or `2w`."""
    seconds = duration_seconds(value)
    if seconds is None:
        raise click.BadParameter(
            f"{value!r} is not a duration; write seconds, or a number and a unit: 500ms, 30s, 5m, 2h, 7d"
        )
    return seconds


def instant(value: str) -> datetime:
    """An aware datetime, from ISO 8601."""
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a time in ISO 8601; write for example 2026-01-31T08:00:00Z"
        ) from None
    if found.utcoffset() is None:
        raise click.BadParameter(f"{value!r} has no time zone; add Z for UTC, or an offset such as +02:00")
    return found


def host_and_port(value: str) -> tuple[str, int]:
    """Parse `8080`, `0.0.0.0:8080` or `[::]:8080`; without a host, it is 127.0.0.1."""
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise click.BadParameter(f"{value!r} is not [HOST:]PORT; write for example 8080 or 0.0.0.0:8080")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _meta(
    _context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]
) -> dict[str, str] | None:
    """A map from NAME=TEXT words; None if there are none."""
    entries: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise click.BadParameter(f"{word!r} is not NAME=TEXT; write for example tenant=acme")
        if name in entries:
            raise click.BadParameter(f"{name!r} is given twice")
        entries[name] = text
    return entries or None


with_meta = click.option(
    "--meta",
    metavar="NAME=TEXT",
    multiple=True,
    callback=_meta,
    help="Text that travels with the job and that operators see; may be given several times.",
)


def _failure_task(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
    """The name of a task, or a JSON object that describes the failure task."""
    return _object(text, "a failure task", '{"task": "alert"}') if text and text.lstrip()[:1] == "{" else text


with_failure_task = click.option(
    "--failure-task",
    metavar="TASK|JSON",
    callback=_failure_task,
    help="The task of a job that is enqueued if this one dies: its name, or "
    '{"task": …, "payload": {…}, "parameter": …, "queue": …}.',
)


class Payload(NamedTuple):
    """A payload as a person wrote it: its values, and the names of those that are text which the task may read."""

    values: dict[str, Any]
    texts: frozenset[str] = frozenset()

    def for_task(self, harbor: Harbor, name: str) -> dict[str, Any]:
        """The values, each text as its parameter takes it; texts stay texts where the harbor does not know the task."""
        task = harbor._known(name) if self.texts else None
        if task is None:
            return self.values
        return {
            key: task.plan.value_of(key, value) if key in self.texts else value
            for key, value in self.values.items()
        }


def parse_payload(words: Sequence[str]) -> Payload:
    """A payload from one JSON object, from `-` (standard input), or from `name=text` and `name:=json` words."""
    if not words:
        return Payload({})
    if len(words) == 1 and words[0] == "-":
        return Payload(_object(sys.stdin.read()))
    if len(words) == 1 and (words[0].lstrip()[:1] in ("{", "[", '"', "") or "=" not in words[0]):
        return Payload(_object(words[0], instead='; write to=a@b.c or {"to": "a@b.c"}'))
    values: dict[str, Any] = {}
    texts = set()
    for word in words:
        name, value, is_json = named_value(word)
        if name in values:
            raise click.UsageError(f"the payload names {name!r} twice")
        values[name] = value
        if not is_json:
            texts.add(name)
    return Payload(values, frozenset(texts))


def named_value(word: str) -> tuple[str, Any, bool]:
    """The name, the value, and whether it is JSON."""
    left, equals, right = word.partition("=")
    is_json = left.endswith(":")
    name = left.removesuffix(":")
    if not equals or not name:
        raise click.UsageError(f"{word!r} is neither name=text nor name:=json")
    return name, _decoded(right, f"the value of {name}") if is_json else right, is_json


def _object(
    text: str, what: str = "the payload", example: str = '{"to": "a@b.c"}', instead: str = ""
) -> dict[str, Any]:
    payload = _decoded(text, what, instead)
    if not isinstance(payload, dict):
        raise click.UsageError(
            f"{what} must be a JSON object such as {example}, not a {type(payload).__name__}"
        )
    return payload


def _decoded(text: str, what: str, instead: str = "") -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise click.UsageError(f"{what} is not valid JSON ({error}): {text[:60]!r}{instead}") from None
