"""Reads what `rules.autoscale` needs to know: the queues as they are, and what the roll-ups say of the last minutes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.rules.autoscale import Load
from taskharbor.rules.rollups import HOUR, MINUTE, added, begin_of

if TYPE_CHECKING:
    from taskharbor.drivers.base import Driver
    from taskharbor.records import QueueRecord

WINDOW = 5 * MINUTE  # over which arrivals and durations are averaged
LONG_WINDOW = HOUR  # for the durations, if no attempt has ended in the other one


async def loads_of(
    driver: Driver, queues: Iterable[QueueRecord], now: int, queue: str | None = None
) -> dict[str, Load]:
    """Return the load of each queue, or of this one, even if it holds nothing; `queues` is how they are now."""
    standing = {each.name: each for each in queues if queue in (None, each.name)}
    begin = begin_of(now - WINDOW, Period.MINUTE)
    recent = await _figures(driver, begin, now, queue)
    names = sorted(standing.keys() | recent.keys() | ({queue} if queue is not None else set()))
    earlier: dict[str, Figures] = {}
    if any(not recent.get(name, Figures()).duration for name in names):
        earlier = await _figures(driver, begin_of(now - LONG_WINDOW, Period.MINUTE), now, queue)
    seconds = (now - begin) / MICROS_PER_SECOND
    return {
        name: _load(
            standing.get(name), recent.get(name, Figures()), earlier.get(name, Figures()), seconds, now
        )
        for name in names
    }


def _load(queue: QueueRecord | None, recent: Figures, earlier: Figures, seconds: float, now: int) -> Load:
    arrivals = (recent.enqueued + recent.retried) / seconds
    mean = mean_seconds(recent.duration) or mean_seconds(earlier.duration)
    if queue is None:
        return Load(arrivals_per_second=arrivals, mean_seconds=mean)
    oldest = 0 if queue.oldest_ready_at is None else max(0, now - queue.oldest_ready_at)
    return Load(queue.ready, queue.running, oldest / MICROS_PER_SECOND, arrivals, mean, queue.paused)


async def _figures(driver: Driver, begin: int, now: int, queue: str | None) -> dict[str, Figures]:
    end = begin_of(now, Period.MINUTE) + MINUTE  # with the present minute
    rows: list[Rollup] = await Rollups.of(driver).rollups(begin, end, Period.MINUTE, queue=queue)
    sums: dict[str, Figures] = {}
    for row in rows:
        sums[row.queue] = added(sums.get(row.queue, Figures()), row.figures)
    return sums


def mean_seconds(times: tuple[int, ...]) -> float | None:
    """Return the mean of a histogram of `Figures`, in seconds; None without a time."""
    count = sum(times[1:])
    return times[0] / count / MICROS_PER_SECOND if count else None
