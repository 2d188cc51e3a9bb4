"""Schedules: when a recurring job is due. Pure arithmetic; nothing here knows a store or a clock.

An expression is parsed by cronsim and evaluated on wall time, without a zone. What a zone does to wall time is
decided here: a time that a clock skips, and a time that it shows twice.
"""

from __future__ import annotations

import re
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from taskharbor.clock import (
    EPOCH,
    MICROS_PER_SECOND,
    check_seconds,
    from_micros,
    seconds_to_micros,
    to_micros,
)
from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

# Cron and time zones are imported when the first schedule is parsed: most producers have none.
if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

EXPRESSION_MAX = 200  # characters: more than any sensible expression has
INTERVAL_SECONDS_MIN = 0.1
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EXAMPLES = '"*/5 * * * *" (five fields), "*/10 * * * * *" (six, seconds first), "@daily" or "@every 90s"'

_SECOND = timedelta(seconds=1)
_EVERY_HOUR = frozenset(range(24))
_PROBE = datetime(2024, 1, 1)  # noqa: DTZ001 - wall time; from a leap year on, forty years have every date and weekday
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d{1,6})?)s)?")


class Schedule:
    """The times at which a job recurs. `parse` and `every` make one."""

    expression: str  # `parse` makes the same schedule of it again
    timezone: str = "UTC"

    def next_after(self, instant: datetime, anchor: datetime | None = None) -> datetime:
        """Return the first occurrence after the instant, in UTC; never the instant itself.

        An interval counts from `anchor`, an occurrence of its own, else from the instant; cron needs none.
        """
        begin = to_micros(instant, "the instant")
        return from_micros(self.next_micros(begin, None if anchor is None else to_micros(anchor, "anchor")))

    def next_micros(self, after: int, anchor: int | None = None) -> int:
        """`next_after` for instants in microseconds."""
        raise NotImplementedError

    def latest_micros(self, after: int, until: int, anchor: int | None = None) -> int | None:
        """Return the last occurrence later than `after` and not later than `until`, if there is one."""
        latest = self.next_micros(after, anchor)
        if latest > until:
            return None
        # A binary search over time: few steps, however many occurrences there are.
        begin, end = latest, until
        while begin < end:
            middle = (begin + end) // 2
            following = self.next_micros(middle, anchor)
            if following > until:
                end = middle
            else:
                begin = latest = following
        return latest

    def __repr__(self) -> str:
        zone = "" if self.timezone == "UTC" else f" in {self.timezone}"
        return f"<{type(self).__name__} {self.expression!r}{zone}>"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Schedule)
            and (self.expression, self.timezone) == (other.expression, other.timezone)
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.expression, self.timezone))


# -- intervals -----------------------------------------------------------------------------------


class Interval(Schedule):
    """A fixed interval, counted from the last due time: it does not drift, and ignores time zones."""

    def __init__(self, period: int) -> None:
        self.period = period  # microseconds
        self.expression = f"@every {_seconds_text(period)}s"

    def next_micros(self, after: int, anchor: int | None = None) -> int:
        if anchor is None:
            anchor = after
        return anchor + ((after - anchor) // self.period + 1) * self.period


def every(seconds: float | timedelta) -> Interval:
    """Make a schedule with a fixed interval in seconds."""
    if check_seconds(seconds, "every(seconds)") < INTERVAL_SECONDS_MIN:
        raise ConfigurationError(
            f"every(seconds) takes an interval of at least {INTERVAL_SECONDS_MIN:g} s, not {shorten(seconds)}"
        )
    return Interval(seconds_to_micros(seconds))


def _seconds_text(micros: int) -> str:
    whole, rest = divmod(micros, MICROS_PER_SECOND)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)


def _parsed_interval(expression: str) -> Interval:
    duration = expression.removeprefix("@every").strip()
    match = _DURATION.fullmatch(duration)
    if not duration or match is None:
        raise ConfigurationError(
            f"{shorten(expression)} is no interval; write it as @every 90s, @every 15m, @every 1h30m or @every 1d"
        )
    amounts = zip(match.groups(), _UNITS.values(), strict=True)
    return every(sum(float(amount) * unit for amount, unit in amounts if amount is not None))


# -- cron ----------------------------------------------------------------------------------------


class Cron(Schedule):
    """A cron expression in a time zone.

    Its hour field decides what it means when clocks change. One that takes every hour means "every hour" or
    something finer, and follows real time: what matches is due whenever a clock on the wall shows it. Any other
    names times of day, and each of them is due once: the first time if it comes twice, and at the end of the gap
    if it is skipped.
    """

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        from cronsim import CronSim, CronSimError

        self.expression = expression
        self.timezone = zone.key
        self._zone = _Zone(zone)
        try:
            self._cron = CronSim(ALIASES.get(expression, expression), _PROBE)
        except (CronSimError, AssertionError, TypeError, ValueError) as error:
            said = f" ({error})" if isinstance(error, CronSimError) else ""
            raise ConfigurationError(
                f"{shorten(expression)} is no cron expression{said}; for example {EXAMPLES}"
            ) from None
        self.follows_real_time = self._cron.hours >= _EVERY_HOUR
        if self._next_wall(_PROBE) is None:
            raise ConfigurationError(
                f"{shorten(expression)} never comes: no date fits its day, month and weekday fields; "
                "write one that exists, such as 0 0 28 2 *"
            )

    def next_micros(self, after: int, anchor: int | None = None) -> int:
        second = after // MICROS_PER_SECOND  # occurrences are whole seconds, so the rest makes no difference
        try:
            found = self._next_shown(second) if self.follows_real_time else self._next_named(second)
        except OverflowError:
            found = None
        if found is None:
            raise ConfigurationError(
                f"{self.expression!r} has no occurrence between {from_micros(after).isoformat()} and the end of "
                "the calendar; give an earlier instant"
            )
        return found * MICROS_PER_SECOND

    def _next_wall(self, wall: datetime) -> datetime | None:
        """Return the first matching time after `wall`, as if clocks were never changed."""
        cron = copy(self._cron)
        cron.dt = wall
        return next(cron, None)

    def _next_named(self, second: int) -> int | None:
        """Return the next named time of day: the first time it occurs, or the end of the gap that skips it."""
        zone = self._zone
        wall = zone.wall(second)
        if wall.fold:  # the times that occur twice have all occurred once
            wall = zone.end_of_repetition(second, wall) - _SECOND
        while (found := self._next_wall(wall)) is not None:
            instants = zone.instants(found)
            due = instants[0] if instants else zone.end_of_gap(found)
            if due > second:
                return due
            wall = found
        return None

    def _next_shown(self, second: int) -> int | None:
        """Return the next instant at which a wall clock shows a matching time."""
        zone = self._zone
        wall = zone.wall(second)
        again = zone.begin_of_repetition(second, wall)
        once_more = None if again is None else self._next_shown_from(again)
        while (found := self._next_wall(wall)) is not None:
            instants = [instant for instant in zone.instants(found) if instant > second]
            if instants:
                return instants[0] if once_more is None else min(instants[0], once_more)
            wall = zone.wall(zone.end_of_gap(found)) - _SECOND  # clocks do not show the times of a gap
        return once_more

    def _next_shown_from(self, second: int) -> int | None:
        """Return the same as `_next_shown`, from this instant on, at which a repeated hour begins."""
        wall = self._next_wall(self._zone.wall(second) - _SECOND)
        if wall is None:
            return None
        return next((instant for instant in self._zone.instants(wall) if instant >= second), None)


class _Zone:
    """What wall clocks show in a zone. Instants are whole seconds since the epoch, wall times are naive datetimes."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone

    def wall(self, second: int) -> datetime:
        """Return the wall time at an instant; `fold` is 1 the second time it is shown."""
        return (EPOCH + timedelta(seconds=second)).astimezone(self._zone).replace(tzinfo=None)

    def instants(self, wall: datetime) -> list[int]:
        """Return the instants of a wall time: one, two, or none if clocks skip it."""
        first, second = self._offsets(wall)
        if first < second:
            return []
        seconds = _seconds(wall)
        return [seconds - first] if first == second else [seconds - first, seconds - second]

    def end_of_gap(self, wall: datetime) -> int:
        """Return the first instant after the gap that contains this wall time."""
        before, after = self._offsets(wall)
        seconds = _seconds(wall)
        return self._change(seconds - after, seconds - before)

    def begin_of_repetition(self, second: int, wall: datetime) -> int | None:
        """Return when clocks are put back, if they will show the present wall time again."""
        before, after = self._offsets(wall)
        return self._change(second, second + before - after) if before > after and not wall.fold else None

    def end_of_repetition(self, second: int, wall: datetime) -> datetime:
        """Return the wall time at which the repetition ends."""
        before, after = self._offsets(wall)
        put_back_at = self._change(second - (before - after), second)
        return datetime(1970, 1, 1) + timedelta(seconds=put_back_at + before)  # noqa: DTZ001 - wall time

    def _offsets(self, wall: datetime) -> tuple[int, int]:
        """Return the offsets from UTC before and after the change that makes this time ambiguous, mostly equal."""
        aware = wall.replace(tzinfo=self._zone, fold=0)
        return _offset(aware), _offset(aware.replace(fold=1))

    def _change(self, before: int, after: int) -> int:
        """Return the first instant whose offset differs from that at `before`; the offset at `after` does."""
        old = _offset((EPOCH + timedelta(seconds=before)).astimezone(self._zone))
        while after - before > 1:
            middle = (before + after) // 2
            if _offset((EPOCH + timedelta(seconds=middle)).astimezone(self._zone)) == old:
                before = middle
            else:
                after = middle
        return after


def _offset(aware: datetime) -> int:
    offset = aware.utcoffset()
    assert offset is not None, "it has a zone"
    return offset.days * 86_400 + offset.seconds


def _seconds(wall: datetime) -> int:
    since = wall.replace(tzinfo=UTC) - EPOCH
    return since.days * 86_400 + since.seconds


# -- parsing -------------------------------------------------------------------------------------


@lru_cache(4096)
def _parsed(expression: str, timezone: str) -> Schedule:
    zone = checked_zone(timezone)
    if expression.startswith("@every"):
        return _parsed_interval(expression)
    return Cron(expression, zone)


def parse(expression: str | Schedule, timezone: str = "UTC") -> Schedule:
    """Parse an expression: cron, or `@every 90s`.

    Cron has five fields (minute, hour, day, month, weekday), or six with seconds first.
    """
    if isinstance(expression, Schedule):
        if timezone not in ("UTC", expression.timezone) and isinstance(expression, Cron):
            raise ConfigurationError(
                f"{expression!r} has its time zone already, and {shorten(timezone)} was given beside it; give one"
            )
        return expression
    if not isinstance(expression, str) or not expression.strip() or len(expression) > EXPRESSION_MAX:
        raise ConfigurationError(
            f"a schedule is a text of at most {EXPRESSION_MAX} characters such as {EXAMPLES}, "
            f"or every(seconds), not {shorten(expression)}"
        )
    if not isinstance(timezone, str):
        raise ConfigurationError(
            f"timezone must be a name such as Europe/Berlin or UTC, not {shorten(timezone)}"
        )
    return _parsed(" ".join(expression.split()), timezone)


def checked_zone(timezone: str) -> ZoneInfo:
    """Return the time zone of an IANA name."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"no time zone is called {shorten(timezone)} here; give an IANA name such as Europe/Berlin or UTC "
            "(a system without a time zone database needs the package tzdata)"
        ) from None


__all__ = ["Cron", "Interval", "Schedule", "every", "parse"]
