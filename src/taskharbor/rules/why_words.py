"""The words of `taskharbor.rules.why`: instants, spans of time, and how a job may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.clock import MICROS_PER_SECOND, from_micros

if TYPE_CHECKING:
    from taskharbor.rules.why_facts import Facts

ERROR_MAX = 200  # characters

# By the reason of a dead or cancelled job. `exhausted` has a sentence of its own, with the number.
ENDINGS = {
    "exhausted": "it failed as often as it may",
    "unrecoverable": "its handler said that no retry would help, or its result could not be stored",
    "not_retryable": "its error is one that is not retried",
    "lost": "its worker, or its own process, disappeared while it ran",
    "interrupted": "it was cut off, and it may run at most once",
    "poison": "it ended its worker, or its own process, too often",
    "invalid_payload": "its payload fitted no handler that a worker had",
    "unknown_task": "no worker knew its task",
    "unsettleable": "a bug in TaskHarbor kept it from being settled",
    "unreadable": "its stored row cannot be read",
    "operator": "an operator dead-lettered it",
    "cancelled": "a caller or an operator cancelled it",
    "expired": "no worker had begun it in time",
    "discarded": "an operator discarded it from the dead-letter queue",
    "dependency": "a job that it depends on ended without success",
}

_UNITS = (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800), ("d", 86_400, None))


def span(micros: int) -> str:
    """A span of time as a person says it: `0.5 s`, `42 s`, `3 min`, `5 h`, `12 d`."""
    seconds = micros / MICROS_PER_SECOND
    if 0 < seconds < 1:
        return f"{seconds:.1g} s"
    for unit, length, below in _UNITS:
        if below is None or round(seconds) < below:
            return f"{round(seconds / length):,} {unit}"
    raise AssertionError("the last unit has no end")


def ago(micros: int) -> str:
    """How long ago an instant was, or in how long it comes."""
    if abs(micros) < MICROS_PER_SECOND // 2:
        return "now"
    return f"in {span(micros)}" if micros > 0 else f"{span(-micros)} ago"


def at(facts: Facts, instant: int | None) -> str:
    """An instant to the second in UTC, and how far it is from now: `2026-01-31T08:00:00Z (in 42 s)`."""
    if instant is None:
        return "an unknown time"
    return f"{from_micros(instant):%Y-%m-%dT%H:%M:%SZ} ({ago(instant - facts.now)})"


def first_line(error: str | None) -> str:
    """The first line of an error, shortened."""
    line = next((line.strip() for line in (error or "").splitlines() if line.strip()), "none was recorded")
    return line if len(line) <= ERROR_MAX else f"{line[: ERROR_MAX - 1]}…"
