"""`harbor.stats`: what workers have counted, by minute or hour, and how many slots a queue needs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import reduce
from typing import Literal

from msgspec import Struct

from taskharbor.client.operating import Operator
from taskharbor.client.sync_methods import sync_method
from taskharbor.clock import MICROS_PER_SECOND, check_seconds, from_micros, to_micros
from taskharbor.codec import checked_name, shorten
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Figures, Period
from taskharbor.errors import ConfigurationError
from taskharbor.rules.autoscale import Load, slots_wanted
from taskharbor.rules.rollups import COUNTS, DAY, HOUR, LENGTHS, added, begin_of, first_kept
from taskharbor.telemetry.autoscale import loads_of, mean_seconds
from taskharbor.telemetry.metrics.buckets import quantile

StepName = Literal["minute", "hour"]

SINCE = {Period.MINUTE: HOUR, Period.HOUR: DAY}  # unless the caller says since when
WINDOWS = {
    Period.MINUTE: 2 * HOUR,
    Period.HOUR: 5 * DAY,
}  # that are read at once, so that a long series blocks nothing
AGE_SECONDS_MAX = 86_400.0


class Times(Struct, frozen=True):
    """Times in seconds, by their mean and percentiles; None without any. Percentiles are interpolated in buckets."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, histogram: tuple[int, ...]) -> Times:
        counts = histogram[1:]
        shares = (quantile(counts, share) for share in (0.5, 0.95, 0.99))
        return cls(sum(counts), mean_seconds(histogram), *shares)


class Point(Struct, frozen=True):
    """What workers counted in one minute or hour. These are not exact counts: see `Stats.series`."""

    at: datetime  # its begin
    seconds: int  # its length
    enqueued: int
    started: int
    succeeded: int
    failed: int
    retried: int
    dead: int
    lost: int
    cancelled: int
    wait: Times
    duration: Times


class QueueDemand(Struct, frozen=True):
    """How many slots a queue needs, and what that follows from."""

    queue: str
    slots: int
    ready: int
    running: int
    oldest_ready_seconds: float
    arrivals_per_second: float
    mean_seconds: float | None
    paused: bool


class Demand(Struct, frozen=True):
    """How many slots are needed so that no ready job waits for longer than `age` seconds."""

    age: float
    slots: int
    queues: list[QueueDemand]


class Stats(Operator):
    """`harbor.stats`"""

    async def aseries(
        self,
        queue: str | None = None,
        task: str | None = None,
        *,
        since: datetime | timedelta | None = None,
        step: StepName = "minute",
    ) -> list[Point]:
        """Return what workers counted in each minute or hour since then, of all jobs or of a queue or task.

        The last point is not over yet. Minutes are kept for a day, hours for 30 days. The counts are not exact: workers
        write them every ten seconds, and a worker that is killed loses what it has counted since. `since` is an
        instant, or how long ago; by default an hour for minutes, a day for hours.
        """
        points, _ = await self._series_and_total(queue, task, since, step)
        return points

    async def _series_and_total(
        self, queue: str | None, task: str | None, since: datetime | timedelta | None, step: StepName
    ) -> tuple[list[Point], Point]:
        """Read a series, and all of its periods together as one point: percentiles cannot be added up."""
        of_step = _checked_step(step)
        queue = None if queue is None else checked_name("queue", queue)
        task = None if task is None else checked_name("task", task)
        store = Rollups.of(self._driver)
        now = await self._driver.now()
        begin = max(_begin(since, of_step, now), first_kept(of_step, now))
        length = LENGTHS[of_step]
        end = begin_of(now, of_step) + length
        sums: dict[int, Figures] = {}
        for start in range(begin, end, WINDOWS[of_step]):
            until = min(start + WINDOWS[of_step], end)
            for row in await store.rollups(start, until, of_step, queue=queue, task=task):
                sums[row.at] = added(sums[row.at], row.figures) if row.at in sums else row.figures
        points = [_point(at, length, sums.get(at, Figures())) for at in range(begin, end, length)]
        return points, _point(begin, end - begin, reduce(added, sums.values(), Figures()))

    series = sync_method(aseries)

    async def aslots_wanted(self, queue: str | None = None, *, age: float = 30.0) -> Demand:
        """Return how many slots keep the oldest ready job younger than `age` seconds, of one queue or of each.

        It follows from the jobs that are ready and running now, and from arrivals and durations of the last minutes,
        which are not exact counts.
        """
        queue = None if queue is None else checked_name("queue", queue)
        seconds = check_seconds(age, "age")
        if not 1 <= seconds <= AGE_SECONDS_MAX:
            raise ConfigurationError(
                f"age must be from 1 to {AGE_SECONDS_MAX:.0f} seconds, not {shorten(age)}"
            )
        now = await self._driver.now()
        loads = await loads_of(self._driver, await self._driver.queues(), now, queue)
        return demand_of(loads.items(), seconds)

    slots_wanted = sync_method(aslots_wanted)


def demand_of(loads: Iterable[tuple[str, Load]], age_seconds: float) -> Demand:
    queues = [
        QueueDemand(
            name,
            slots_wanted(load, age_seconds),
            load.ready,
            load.running,
            load.oldest_seconds,
            load.arrivals_per_second,
            load.mean_seconds,
            load.is_paused,
        )
        for name, load in loads
    ]
    return Demand(age_seconds, sum(each.slots for each in queues), queues)


def _point(at: int, length: int, figures: Figures) -> Point:
    return Point(
        at=from_micros(at),
        seconds=length // MICROS_PER_SECOND,
        wait=Times.of(figures.wait),
        duration=Times.of(figures.duration),
        **{name: getattr(figures, name) for name in COUNTS},
    )


def _begin(since: datetime | timedelta | None, step: Period, now: int) -> int:
    """Return the begin of the first period."""
    if isinstance(since, datetime):
        instant = to_micros(since, "since")
        if instant > now:
            raise ConfigurationError(f"since must be in the past, not {since.isoformat()}")
        return begin_of(instant, step)
    ago = SINCE[step] if since is None else round(check_seconds(since, "since") * MICROS_PER_SECOND)
    return begin_of(now - ago, step)


def _checked_step(step: object) -> Period:
    if step not in list(Period):
        raise ConfigurationError(f'step must be "minute" or "hour", not {shorten(step)}')
    return Period(step)  # type: ignore[arg-type]
