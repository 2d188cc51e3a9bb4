"""Ingest mode: the topic is the front door of the store. Each message becomes one job, once.

The next offset of every partition stands in the store and moves in the transaction that stores the jobs of a batch. So
no crash, no rebalance and no repeated message makes a second job, and no key has to be kept for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from msgspec.structs import replace

from taskharbor.client.harbor import Harbor
from taskharbor.client.options import with_expiry
from taskharbor.drivers.capabilities import Ingest
from taskharbor.drivers.contract.ingesting import AlikeMessages, Ingested, MessageBatch
from taskharbor.drivers.contract.reading import StreamPartition
from taskharbor.errors import ConfigurationError, StreamError
from taskharbor.settle_batch import REFUSALS
from taskharbor.streams.brokers import Brokers, TopicWatch
from taskharbor.streams.first import Send, copied
from taskharbor.streams.ingest_jobs import IngestJobs, LogId, Made, grouped
from taskharbor.streams.ingest_reader import IngestReader, Positions, Taken
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.reports import Reports
from taskharbor.worker.upkeep.retrying import Outages

logger = logging.getLogger("taskharbor.stream")

T = TypeVar("T")

COPY_AGAIN_SECONDS = 1.0


class Ingester:
    """Stores the messages of a topic as jobs of the harbor's tasks. It executes none of them."""

    def __init__(
        self,
        harbor: Harbor,
        brokers: Brokers,
        *,
        topic: str,
        group: str,
        queue: str | None,
        dead_queue: str,
        send_unreadable: Send | None,
        settle_seconds: float,
    ) -> None:
        self._harbor = harbor
        self._store = Ingest.of(harbor.driver)
        self._clock = harbor.driver.clock
        self._brokers = brokers
        self._topic = topic
        self._group = group
        self._jobs = IngestJobs(harbor, dead_queue, queue)
        self._send_unreadable = send_unreadable
        self._settle_seconds = settle_seconds
        self._outages = Outages(self._clock)
        self._is_idle = asyncio.Event()
        self._reader: IngestReader | None = None  # once it runs
        self.stored = 0  # messages, by this worker

    async def run(self, stopping: asyncio.Event) -> None:
        """Store messages until `stopping` is set."""
        watch = TopicWatch(self._brokers, self._topic)
        positions = Positions(self._identify, watch.look, self._offsets, self._settled)
        self._reader = reader = IngestReader(
            self._brokers.consumer_settings(self._group),
            self._topic,
            positions,
            self._jobs.made_of,
            asyncio.get_running_loop(),
        )
        self._is_idle.set()
        ends = asyncio.ensure_future(stopping.wait())
        reading = reader.read()
        try:
            while not stopping.is_set():
                waiting: list[asyncio.Future[Any]] = [reading, ends]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if stopping.is_set():
                    break
                taken = [each for each in reading.result() if reader.has(each.partition)]
                reading = reader.read()  # the next ones are read while these are stored
                if taken:
                    await self._until(ends, self._ingest(taken))
        finally:
            ends.cancel()
            self._is_idle.set()
            closing = asyncio.ensure_future(reader.close())
            await asyncio.gather(reading, return_exceptions=True)
            await closing

    def partition_figures(self) -> list[StreamPartition]:
        """What is known of each partition that this worker has."""
        return [] if self._reader is None else self._reader.partition_figures()

    async def _until(self, ends: asyncio.Future[Any], storing: Coroutine[Any, Any, None]) -> None:
        """Store, but when the worker is to end, only for a while longer: what is not stored is still in the log."""
        task = asyncio.ensure_future(storing)
        try:
            await asyncio.wait([task, ends], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait([task], timeout=self._settle_seconds)
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- what the reader asks --

    def _identify(self, is_unwanted: Callable[[], bool]) -> LogId:
        try:
            topic = self._brokers.topic(self._topic, is_unwanted=is_unwanted)
        except StreamError as error:
            if isinstance(error.__cause__, KafkaException):
                raise error.__cause__ from error
            raise
        return LogId.of(topic.cluster, self._topic, topic.id, self._group)

    async def _offsets(self, log: LogId, partitions: Sequence[int]) -> dict[int, int]:
        return await self._patiently(partial(self._store.ingested, log.name, partitions))

    async def _settled(self) -> None:
        """Return when nothing is being stored. A store that is away is not waited for: the offsets guard it."""
        try:
            await asyncio.wait_for(self._is_idle.wait(), self._settle_seconds)
        except TimeoutError:
            pass

    # -- storing --

    async def _ingest(self, taken: Sequence[Taken]) -> None:
        self._is_idle.clear()
        try:
            for each in taken:
                await self._copy_unreadable(each.made)
            try:
                await self._store_all(taken)
            except REFUSALS:
                await self._store_each(taken)
        finally:
            self._is_idle.set()

    async def _copy_unreadable(self, made: Sequence[Made]) -> None:
        """Send the bytes of messages that cannot be read to the dead-letter topic, before they leave the log."""
        waiting = [each.dead for each in made if each.dead is not None and each.dead.read is not None]
        while waiting:
            done = {id(each) for each in await copied(waiting, self._send_unreadable)}
            waiting = [each for each in waiting if id(each) not in done]
            if waiting:
                await self._clock.sleep(COPY_AGAIN_SECONDS)

    async def _store_all(self, taken: Sequence[Taken]) -> None:
        mine = [each for each in taken if each.partition.seek_to is None]
        if not mine:
            return
        batches = await self._with_expiries([_batch(each) for each in mine])
        answers = await self._patiently(partial(self._store.ingest, batches))
        for each, batch, answer in zip(mine, batches, answers, strict=True):
            self._learn(each, batch, answer)

    async def _store_each(self, taken: Sequence[Taken]) -> None:
        """One by one, after the store has refused to keep something: that becomes a dead job."""
        for each in taken:
            for made in each.made:
                one = Taken(each.partition, [made])
                try:
                    await self._store_all([one])
                except REFUSALS as error:
                    partition = each.partition
                    dead = self._jobs.refused(made, partition.number, partition.log, error)
                    await self._store_all([Taken(partition, [dead])])

    def _learn(self, taken: Taken, batch: MessageBatch, answer: Ingested) -> None:
        partition = taken.partition
        if answer.stored:
            self.stored += len(taken.made)
            self._report(batch.groups, answer.at)
        elif answer.next != batch.next:
            log_line(
                logger,
                logging.WARNING,
                "messages of {topic}[{partition}] from {offset} on were refused: the store is at {next} by now",
                {
                    "topic": self._topic,
                    "partition": partition.number,
                    "offset": taken.made[0].offset,
                    "next": answer.next,
                },
            )
            partition.seek_to = taken.made[0].offset if answer.next is None else answer.next
        # (Where it is at the end of this very batch, the answer to storing it was lost.)
        partition.stored = answer.next

    def _report(self, groups: Sequence[AlikeMessages], at: int) -> None:
        events = self._harbor.events
        if events.wanted("enqueued"):
            reports = Reports(events)
            for group in groups:
                for job in group.jobs():
                    reports.enqueued(job, job.options, at)

    async def _with_expiries(self, batches: list[MessageBatch]) -> list[MessageBatch]:
        """Give jobs whose tasks declare `expires_in` the instant that it means."""
        if all(group.shared.expires_in is None for each in batches for group in each.groups):
            return batches
        now = await self._patiently(self._harbor.driver.now)
        return [
            replace(
                each, groups=[replace(group, shared=with_expiry(group.shared, now)) for group in each.groups]
            )
            for each in batches
        ]

    async def _patiently(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._outages.retry_until_available(ask, "messages cannot be stored")


def _batch(taken: Taken) -> MessageBatch:
    partition = taken.partition
    dead = [each.dead.handed for each in taken.made if each.dead is not None]
    return MessageBatch(
        partition.log.name,
        partition.number,
        partition.stored,
        taken.made[-1].offset + 1,
        grouped(taken.made),
        dead,
    )


def refuse_unused(concurrency: bool, order: bool, retry: bool, retries: bool, metrics: bool) -> None:
    """Refuse options that say how messages are executed."""
    given = {
        "concurrency": concurrency,
        "order": order,
        "retry": retry,
        "serves_retries": retries,
        "metrics": metrics,
    }
    if names := ", ".join(name for name, is_given in given.items() if is_given):
        raise ConfigurationError(
            f"{names} cannot go with ingest=True, which executes nothing: give it to the workers that execute the jobs"
        )
