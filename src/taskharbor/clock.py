"""Time: instants, durations, and the clock that a worker waits by.

Inside TaskHarbor an instant is an `int`, microseconds since the Unix epoch in UTC: exact, ordered, and the
precision every store keeps. At the surface instants are aware datetimes and durations are seconds.

asyncio is imported where it is used: a producer that never runs a loop need not wait for it to load.
"""

from __future__ import annotations

import heapq
import math
import re
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

MICROS_PER_SECOND = 1_000_000
# A hundred years: beyond any use, and far from where datetimes end.
MAX_SECONDS = 100 * 365 * 86_400.0

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|w)?\s*")


# -- instants and durations ----------------------------------------------------------------------


def to_micros(instant: datetime, name: str = "the time") -> int:
    """Return the instant in microseconds since the epoch; `name` names the option in an error."""
    if not isinstance(instant, datetime):
        raise ConfigurationError(
            f"{name} must be an aware datetime, not {shorten(instant)}; for example datetime.now(UTC)"
        )
    if instant.utcoffset() is None:
        raise ConfigurationError(
            f"{name} must be an aware datetime, but {shorten(instant)} has no time zone, so it names no instant; "
            "give it one: datetime.now(UTC), or value.replace(tzinfo=UTC) if it is in UTC"
        )
    since = instant - EPOCH
    return (since.days * 86_400 + since.seconds) * MICROS_PER_SECOND + since.microseconds


def from_micros(micros: int) -> datetime:
    """Return the instant as an aware datetime in UTC, exact to the microsecond."""
    return EPOCH + timedelta(microseconds=micros)


def check_seconds(value: float | timedelta, name: str, *, least: str = "from 0 to") -> float:
    """Return a caller's duration as a float, or raise a ConfigurationError that names the option.

    A caller that refuses 0 itself says so with `least`.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_SECONDS:  # NaN compares as neither
        raise ConfigurationError(
            f"{name} must be a number of seconds {least} {MAX_SECONDS:.0f}, not {shorten(value)}"
        )
    return float(value)


def duration_seconds(text: str) -> float | None:
    """Read `90`, `1.5`, `500ms`, `30s`, `5m`, `2h`, `7d` or `2w` as seconds; None if it is none of these."""
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found[1]) * _UNITS[found[2] or "s"]


def seconds_to_micros(value: float | timedelta, name: str = "the duration") -> int:
    """Convert seconds to microseconds, rounded to the nearest one."""
    return round(check_seconds(value, name) * MICROS_PER_SECOND)


# -- clocks --------------------------------------------------------------------------------------


class Timer(Protocol):
    """A callback that has yet to be called."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The clock that a worker reads and waits by. Timers belong to the running event loop."""

    def now(self) -> int:
        """The wall time, in microseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` on the running loop's thread once `seconds` have passed."""

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed."""


async def wait_for(clock: Clock, awaitable: Awaitable[T], seconds: float | None) -> T:
    """Await `awaitable`, or raise TimeoutError after `seconds` by `clock`; None waits without limit.

    As with `asyncio.wait_for`, the awaitable is cancelled at the timeout.
    """
    import asyncio

    if seconds is None:
        return await awaitable
    loop = asyncio.get_running_loop()
    # asyncio's timeout scope can tell its own cancellation from one from outside; our clock only has to
    # trigger it at the right moment.
    async with asyncio.timeout(None) as scope:
        timer = clock.call_later(seconds, lambda: scope.reschedule(loop.time()))
        try:
            return await awaitable
        finally:
            timer.cancel()


class SystemClock:
    """The clock of this machine."""

    def now(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        import asyncio

        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    def __repr__(self) -> str:
        return "SystemClock()"


class ManualClock:
    """A clock for tests: its time moves only when a test moves it, from any thread.

        clock = ManualClock()
        clock.call_later(5, ring)
        clock.advance(5)            # ring() has been called

    A callback runs on the thread of the loop that asked for it: at once when `advance` is called there,
    otherwise as soon as that loop gets to it.
    """

    DEFAULT_START = datetime(2026, 1, 1, tzinfo=UTC)

    def __init__(self, start: datetime | int = DEFAULT_START) -> None:
        self._start = start if isinstance(start, int) else to_micros(start, "start")
        self._now = self._start
        self._goal = self._start  # where the moves under way will end: moves made at once add up
        self._lock = threading.Lock()
        self._timers: list[tuple[int, int, _ManualTimer]] = []  # a heap: due, then order of creation
        self._created = 0

    def now(self) -> int:
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        return (self.now() - self._start) / MICROS_PER_SECOND

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        import asyncio

        loop = asyncio.get_running_loop()
        if seconds <= 0:
            return loop.call_soon(callback)
        timer = _ManualTimer(loop, callback, copy_context())
        # Rounded up, so that a timer is never early, nor due before time has moved at all.
        delay = math.ceil(min(seconds, MAX_SECONDS) * MICROS_PER_SECOND)
        with self._lock:
            self._created += 1
            heapq.heappush(self._timers, (self._now + delay, self._created, timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        import asyncio

        if seconds <= 0:
            await asyncio.sleep(0)
            return
        over = asyncio.Event()
        timer = self.call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> None:
        """Move time forward, firing what falls due in order, each timer at its own instant."""
        target = self._aim(seconds_to_micros(seconds, "advance"))
        while (timer := self._step(target)) is not None:
            timer.fire()

    async def jump(self, seconds: float) -> None:
        """Move time forward and let the running loop react to each timer before the next one fires.

        A task that wakes and sleeps again does so as often as it would in real time.
        """
        target = self._aim(seconds_to_micros(seconds, "jump"))
        await self.settle()
        while (timer := self._step(target)) is not None:
            timer.fire()
            await self.settle()
        await self.settle()

    async def settle(self, rounds: int = 50) -> None:
        """Let the running loop run its ready tasks until they wait again.

        It does not wait for other threads; use an event that they set.
        """
        import asyncio

        for _ in range(rounds):
            await asyncio.sleep(0)

    def _aim(self, micros: int) -> int:
        with self._lock:
            self._goal += micros
            return self._goal

    def _step(self, target: int) -> _ManualTimer | None:
        """Move to the next timer due by `target` and take it; without one, move to `target`."""
        with self._lock:
            while self._timers and self._timers[0][0] <= target:
                due, _, timer = heapq.heappop(self._timers)
                if not timer.cancelled:
                    # Another thread may have moved time past this instant: it never goes back.
                    self._now = max(self._now, due)
                    return timer
            self._now = max(self._now, target)
            return None

    def __repr__(self) -> str:
        return f"ManualClock({from_micros(self.now()).isoformat()})"


class _ManualTimer:
    __slots__ = ("_callback", "_context", "_loop", "cancelled")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object], context: Context
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._context = context  # of its caller, as with a loop's own timers
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        if _running_loop() is self._loop:
            self._run()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        if self.cancelled:  # between falling due and its loop's getting to it
            return
        try:
            self._context.run(self._callback)
        except Exception as error:  # noqa: BLE001 - a loop reports its callbacks' errors; it never raises them
            self._loop.call_exception_handler(
                {"message": f"Exception in timer callback {self._callback!r}", "exception": error}
            )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
