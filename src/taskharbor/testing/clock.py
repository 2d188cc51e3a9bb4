"""`TestingClock`: the clock of a test. It moves when the test says so."""

from __future__ import annotations

from datetime import datetime, timedelta

from taskharbor.clock import (
    MICROS_PER_SECOND,
    ManualClock,
    check_seconds,
    duration_seconds,
    from_micros,
    to_micros,
)
from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

Duration = str | float | timedelta
"""`"1h"`, `"30s"`, `90` (seconds), or a timedelta."""


class TestingClock(ManualClock):
    """The time of a test's harbor: `clock.tick("1h")` moves schedules, backoffs, leases, timeouts and expiries.

    It is a `ManualClock`.
    """

    __test__ = False  # pytest takes a class of this name for tests otherwise

    def tick(self, duration: Duration) -> None:
        """Move time forward. What falls due runs at the next `drain()`."""
        self.advance(seconds_of(duration, "tick()"))

    async def atick(self, duration: Duration) -> None:
        """Move time forward in an asynchronous test, and let the tasks of its loop react to each timer on the way."""
        await self.jump(seconds_of(duration, "atick()"))

    def move_to(self, instant: datetime) -> None:
        """Move time forward to this instant, an aware datetime."""
        ahead = to_micros(instant, "move_to()'s instant") - self.now()
        if ahead < 0:
            raise ConfigurationError(
                f"time does not go back: it is {self.datetime.isoformat()}, later than {instant.isoformat()}; "
                "move to a later instant, or set where the clock starts: taskharbor_clock in pytest's settings"
            )
        self.advance(ahead / MICROS_PER_SECOND)

    def next_timer(self) -> int | None:
        """Return when the next timer is due, in microseconds since the epoch; None without one."""
        with self._lock:
            return min((due for due, _, timer in self._timers if not timer.cancelled), default=None)

    @property
    def datetime(self) -> datetime:
        """The time, as an aware datetime in UTC."""
        return from_micros(self.now())


def seconds_of(duration: Duration, name: str) -> float:
    """Return the duration in seconds; `name` names what takes it in an error."""
    if isinstance(duration, str):
        seconds = duration_seconds(duration)
        if seconds is None:
            raise ConfigurationError(
                f"{name} takes a duration such as '30s', '5m', '2h' or '7d', or seconds, not {shorten(duration)}"
            )
        return check_seconds(seconds, name)
    return check_seconds(duration, name)
