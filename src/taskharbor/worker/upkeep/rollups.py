"""`RollupWriter`: appends what this worker has counted to the store's roll-ups, every ten seconds, and folds them.

A roll-up is the difference of two readings of the same cells that the metrics are read from. Readings are taken at ten
seconds' boundaries of the store's time, so that no row spans two minutes. No job waits for it, and what is not written
when the process is killed is lost: roll-ups are not exact counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from operator import sub

from taskharbor.clock import MICROS_PER_SECOND, Clock
from taskharbor.drivers.base import Driver
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.errors import StoreError
from taskharbor.rules.rollups import MINUTE, added, begin_of
from taskharbor.settle_batch import log_bug
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics import buckets, catalogue
from taskharbor.telemetry.metrics.catalogue import Metric
from taskharbor.telemetry.metrics.cells import JOB_METRICS, JOB_WORDS, Pair
from taskharbor.telemetry.metrics.meter import Meter

logger = logging.getLogger("taskharbor.worker")

FLUSH = 10 * MICROS_PER_SECOND
FOLD_BATCH = 1_000  # rows in one transaction
FOLD_BATCHES_MAX = 5
FOLD_EVERY = MINUTE  # while this worker appends
IDLE_FOLD_EVERY = 60 * MINUTE  # rows grow old also while no job runs
PENDING_MAX = 2_000  # rows that could not be appended yet; the oldest are dropped
STOP_SECONDS = 0.5  # how long a stopping worker waits for the store

_OFFSETS = catalogue.offsets(JOB_METRICS)
_COUNTS = {
    "enqueued": _OFFSETS[catalogue.ENQUEUED.name],
    "started": _OFFSETS[catalogue.STARTED.name],
    "succeeded": _OFFSETS[catalogue.SUCCEEDED.name],
    "failed": _OFFSETS[catalogue.FAILED.name],
    "retried": _OFFSETS[catalogue.RETRIED.name],
    "dead": _OFFSETS[catalogue.DEAD.name],
    "lost": _OFFSETS[catalogue.LOST.name],
    "cancelled": _OFFSETS[catalogue.CANCELLED.name],
}
_NOTHING = [0] * JOB_WORDS


class RollupWriter:
    """Writes what one process counts with its meter, and nothing without one. `now` is the store's time.

    A meter that an earlier run of the same worker has used has counted that run as well: `since` is how it stood then.
    """

    def __init__(
        self,
        driver: Driver,
        clock: Clock,
        *,
        meter: Meter | None,
        now: Callable[[], int],
        since: Mapping[Pair, list[int]] | None = None,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._meter = meter if Rollups.offered_by(driver) else None
        self._now = now
        self._read_until = now()  # all before it has been taken
        self._words = dict(since or {})  # as they were read last
        self._pending: dict[tuple[int, Pair], Figures] = {}
        self._folded_at = self._read_until

    async def run(self) -> None:
        while self._meter is not None:
            await self._wait_for_boundary()
            self._take()
            has_appended = bool(self._pending)
            await self._attempt(self._append)
            pause = FOLD_EVERY if has_appended else IDLE_FOLD_EVERY
            if self._read_until - self._folded_at >= pause:
                self._folded_at = self._read_until
                await self._attempt(self._fold)

    async def stop(self) -> None:
        """Append the rest; once, and not for long."""
        self._take()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._attempt(self._append)

    async def _wait_for_boundary(self) -> None:
        due = self._read_until - self._read_until % FLUSH + FLUSH
        while (left := due - self._now()) > 0:
            if left > FLUSH:  # the estimate of the store's time went back
                self._read_until = self._now()
                due = self._read_until - self._read_until % FLUSH + FLUSH
                continue
            await self._clock.sleep(left / MICROS_PER_SECOND)

    def _take(self) -> None:
        """Keep what was counted since the last reading, under the minute in which that was."""
        at = begin_of(self._read_until, Period.MINUTE)
        for pair, words in self._meter.cells.jobs() if self._meter is not None else ():
            earlier = self._words.get(pair, _NOTHING)
            if words == earlier:
                continue
            self._words[pair] = words
            figures = figures_of(list(map(sub, words, earlier)))
            if figures == _NO_FIGURES:
                continue  # only what roll-ups leave out has changed
            present = self._pending.get((at, pair))
            self._pending[at, pair] = figures if present is None else added(present, figures)
        for key in list(self._pending)[:-PENDING_MAX]:
            del self._pending[key]
        self._read_until = max(self._read_until, self._now())

    async def _append(self) -> None:
        rows = [Rollup(at, *pair, figures) for (at, pair), figures in self._pending.items()]
        if not rows:
            return
        pending, self._pending = (
            self._pending,
            {},
        )  # a cancelled append is not repeated: it may have been done
        try:
            await Rollups.of(self._driver).append_rollups(rows)
        except StoreError:
            self._pending = pending
            raise

    async def _fold(self) -> None:
        for _ in range(FOLD_BATCHES_MAX):
            if await Rollups.of(self._driver).fold_rollups(FOLD_BATCH) < FOLD_BATCH:
                return

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        """Try a step once: no job depends on it, and the next boundary tries again."""
        try:
            await step()
        except StoreError as error:
            log_line(logger, logging.DEBUG, "the roll-ups have to wait: {error}", {"error": str(error)})
        except Exception as error:  # noqa: BLE001 - a bug of ours, or of a driver, must not end the worker
            log_bug(logger, "writing roll-ups failed", error)


def figures_of(words: list[int]) -> Figures:
    """Return the words of a queue and task, or the difference of two readings of them, as figures."""
    counts = {name: words[offset] for name, offset in _COUNTS.items()}
    times = {"wait": _times(words, catalogue.WAIT), "duration": _times(words, catalogue.DURATION)}
    return Figures(**counts, **times)  # type: ignore[arg-type]  # one has numbers, the other one tuples


def _times(words: list[int], metric: Metric) -> tuple[int, ...]:
    start = _OFFSETS[metric.name]
    end = start + len(buckets.TIMES) + 1
    total, last = words[end], end
    while last > start and not words[last - 1]:
        last -= 1
    return (total, *words[start:last]) if last > start else ()


_NO_FIGURES = Figures()
