"""Gauges that only the store knows: how many jobs stand where, since when, and which workers are there."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.capabilities import Records, Rollups
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.records import QueueRecord, State
from taskharbor.rules.autoscale import Load, slots_wanted
from taskharbor.stream_readings import readings_of
from taskharbor.telemetry.autoscale import loads_of
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.cells import OTHER_NAME, PAIRS, label

if TYPE_CHECKING:
    from taskharbor.drivers.base import Driver, WorkerRecord

logger = logging.getLogger("taskharbor.metrics")

CACHE_SECONDS = 1.0
READ_SECONDS = 5.0  # that a scrape waits for the store
PARTITIONS = 1_000  # of all topics, that have series of their own
AGE_SECONDS = 30.0  # that the slots wanted keep the oldest ready job below

# The value of a gauge, by the values of its labels.
Gauges = dict[str, dict[tuple[str, ...], float]]


class StoreReading(Struct, frozen=True):
    """What the store said at one moment."""

    now: int  # the store's time
    counts: dict[State, int]
    queues: Sequence[QueueRecord]
    workers: Sequence[WorkerRecord]
    loads: Mapping[str, Load] | None = None  # by queue; None without roll-ups


async def read_store(driver: Driver) -> StoreReading:
    """Read everything that the gauges show."""
    workers = await WORKERS.all(driver) if Records.offered_by(driver) else []
    now, queues = await driver.now(), await driver.queues()
    loads = await loads_of(driver, queues, now) if Rollups.offered_by(driver) else None
    return StoreReading(now, await driver.counts(), queues, workers, loads)


def gauges_of(reading: StoreReading | None) -> Gauges:
    """Return every gauge; without a reading, only that there is none."""
    gauges: Gauges = {catalogue.STORE_UP.name: {(): float(reading is not None)}}
    if reading is None:
        return gauges
    by_queue: tuple[catalogue.Metric, ...] = (
        catalogue.OLDEST_READY, catalogue.QUEUE_PAUSED, catalogue.QUEUE_WORKERS, catalogue.QUEUE_SLOTS,
    )  # fmt: skip
    gauges |= {metric.name: {} for metric in (catalogue.QUEUE_JOBS, *by_queue)}
    jobs = gauges[catalogue.QUEUE_JOBS.name]
    for index, queue in enumerate(reading.queues):
        name = label(queue.name) if index < PAIRS else OTHER_NAME
        for state in (State.READY, State.SCHEDULED, State.RUNNING):
            jobs[name, state] = jobs.get((name, state), 0) + getattr(queue, state)
        serving = [each for each in reading.workers if each.queues is None or queue.name in each.queues]
        age = 0 if queue.oldest_ready_at is None else max(0, reading.now - queue.oldest_ready_at)
        values = (age / MICROS_PER_SECOND, queue.paused, len(serving), sum(each.slots for each in serving))
        for metric, value in zip(by_queue, values, strict=True):
            of_metric = gauges[metric.name]  # of several queues with one label, the largest value counts
            of_metric[(name,)] = max(of_metric.get((name,), 0.0), float(value))
    wanted = gauges[catalogue.AUTOSCALE_SLOTS.name] = {}
    for index, (queue_name, load) in enumerate(sorted((reading.loads or {}).items())):
        name = label(queue_name) if index < PAIRS else OTHER_NAME
        wanted[(name,)] = wanted.get((name,), 0.0) + slots_wanted(load, AGE_SECONDS)
    gauges |= _stream_gauges(reading.workers)
    gauges[catalogue.WAITING_JOBS.name] = {(): reading.counts[State.WAITING]}
    gauges[catalogue.DEAD_JOBS.name] = {(): reading.counts[State.DEAD]}
    gauges[catalogue.WORKERS.name] = {(): len(reading.workers)}
    gauges[catalogue.SLOTS.name] = {(): sum(each.slots for each in reading.workers)}
    return gauges


def _stream_gauges(workers: Sequence[WorkerRecord]) -> Gauges:
    """Return the gauges of partitions. Of more than `PARTITIONS` of them, the rest shares the partition `_other`."""
    of_partitions: tuple[catalogue.Metric, ...] = (
        catalogue.STREAM_LAG, catalogue.STREAM_COMMITTED, catalogue.STREAM_INCOMPLETE, catalogue.STREAM_AHEAD,
        catalogue.STREAM_PAUSED,
    )  # fmt: skip
    gauges: Gauges = {metric.name: {} for metric in of_partitions}
    shown = 0
    for stream in readings_of(workers):
        for each in stream.partitions:
            shown += 1
            number = str(each.partition) if shown <= PARTITIONS else OTHER_NAME
            labels = (label(stream.topic), label(stream.group), number)
            values = (each.lag, each.committed, each.incomplete, each.ahead, int(each.paused))
            for metric, value in zip(of_partitions, values, strict=True):
                if (
                    value is not None
                ):  # of several that share their labels, the sum: no offset means anything then
                    gauges[metric.name][labels] = gauges[metric.name].get(labels, 0.0) + value
    return gauges


class SeenQueues:
    """Remembers queues, so that one without a job is shown as empty: a series that ends breaks graphs and alerts.

    The store forgets a queue with its last unfinished job. Here at most `PAIRS` are remembered, the latest ones.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}  # the queue that was seen last is the last one

    def added_to(self, reading: StoreReading) -> StoreReading:
        """Return the reading with the queues that it lacks, as empty ones: those seen before or named by a worker."""
        standing, loads = {queue.name for queue in reading.queues}, reading.loads or {}
        named = {name for each in reading.workers for name in each.queues or ()}
        for name in sorted(standing | loads.keys() | named):
            self._names.pop(name, None)
            self._names[name] = None
        for name in list(self._names)[:-PAIRS]:
            del self._names[name]
        empty = [QueueRecord(name, False, 0, 0, 0, None) for name in self._besides(standing)]
        idle = dict.fromkeys(self._besides(loads), Load())
        return replace(
            reading,
            queues=[*reading.queues, *empty],
            loads=None if reading.loads is None else {**loads, **idle},
        )

    def _besides(self, present: Collection[str]) -> list[str]:
        """Return the names that are not present, as many as there is room for beside those that are."""
        return [name for name in self._names if name not in present][: max(0, PAIRS - len(present))]


class StoreGauges:
    """Reads the store at most once a second, however many scrapes there are; a failed reading is cached as well."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._alock = asyncio.Lock()
        self._read_at = float("-inf")
        self._reading: StoreReading | None = None
        self._seen = SeenQueues()

    def read(self, read: Callable[[], StoreReading]) -> Gauges:
        """Return the gauges, from a thread: `read` may block."""
        with self._lock:
            if not self._is_fresh():
                self._keep(_attempt(read))
            return gauges_of(self._reading)

    async def aread(self, read: Callable[[], Awaitable[StoreReading]]) -> Gauges:
        """Return the gauges, from the event loop that the store belongs to."""
        async with self._alock:
            if not self._is_fresh():
                try:
                    async with asyncio.timeout(READ_SECONDS):
                        self._keep(await read())
                except Exception as error:  # noqa: BLE001 - a scrape shows that the store cannot be read
                    self._keep(None)
                    _log(error)
            return gauges_of(self._reading)

    def _is_fresh(self) -> bool:
        return self._monotonic() - self._read_at < CACHE_SECONDS

    def _keep(self, reading: StoreReading | None) -> None:
        self._reading = None if reading is None else self._seen.added_to(reading)
        self._read_at = self._monotonic()


def in_loop(
    loop: asyncio.AbstractEventLoop, read: Callable[[], Awaitable[StoreReading]]
) -> Callable[[], StoreReading]:
    """Turn an asynchronous reader into one for other threads than that of its loop."""

    async def reading() -> StoreReading:
        return await read()

    def read_from_thread() -> StoreReading:
        future = asyncio.run_coroutine_threadsafe(reading(), loop)
        try:
            return future.result(READ_SECONDS)
        except BaseException:
            future.cancel()
            raise

    return read_from_thread


def _attempt(read: Callable[[], StoreReading]) -> StoreReading | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a scrape shows that the store cannot be read
        _log(error)
        return None


def _log(error: Exception) -> None:
    said = str(error) or type(error).__name__
    log_line(logger, logging.WARNING, "the store cannot be read for its metrics: {error}", {"error": said})
