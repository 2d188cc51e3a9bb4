"""The occurrences of a schedule, worked out anew: nothing here is shared with the code that is watched."""

from __future__ import annotations

from collections.abc import Iterator

MICROS_PER_SECOND = 1_000_000
MINUTE = 60 * MICROS_PER_SECOND


class Grid:
    """When a schedule is due: every so often, counted from one of its occurrences, or at seconds of the minute."""

    def __init__(self, schedule: str, occurrence: int) -> None:
        if schedule.startswith("@every "):
            self._period = round(float(schedule[7:-1]) * MICROS_PER_SECOND)
            self._offsets = [occurrence % self._period]
            return
        seconds = schedule.split(maxsplit=1)[0]
        step = 1 if seconds == "*" else int(seconds.removeprefix("*/")) if "/" in seconds else 0
        named = range(0, 60, step) if step else [int(each) for each in seconds.split(",")]
        self._period, self._offsets = MINUTE, [each * MICROS_PER_SECOND for each in named]

    def after(self, instant: int) -> int:
        base = instant // self._period * self._period
        found = [base + turn + each for turn in (0, self._period) for each in self._offsets]
        return min(each for each in found if each > instant)

    def between(self, after: int, until: int) -> Iterator[int]:
        while (after := self.after(after)) <= until:
            yield after

    def has(self, instant: int) -> bool:
        return self.after(instant - 1) == instant
