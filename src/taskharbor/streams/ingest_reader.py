"""The consumer of ingest mode, in a thread of its own: it reads from where the store says.

The client library calls back during a poll, so whatever happens to the consumer happens in that one thread. What the
store knows decides: a partition that another reader has taken over meanwhile costs a refused batch, and no message.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from taskharbor.drivers.contract.reading import StreamPartition
from taskharbor.streams.asking import until_answered
from taskharbor.streams.brokers import is_another
from taskharbor.streams.client_errors import explained, passes, passes_for_member
from taskharbor.streams.client_log import MET
from taskharbor.streams.consumer import CONNECT_SECONDS, SEEK_LATER, is_incremental
from taskharbor.streams.ends import Ends
from taskharbor.streams.ingest_jobs import LogId, Made
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

T = TypeVar("T")

AT_ONCE = 1_000  # messages of one transaction
POLL_SECONDS = 0.1
COMMIT_SECONDS = 0.5  # between two commits to the brokers, which only tools that show the lag read
QUEUED_KILOBYTES = 16_384  # that the client reads ahead


class Partition(Struct, eq=False):
    """A partition that this reader has been given."""

    number: int
    log: LogId
    stored: int | None  # the next offset, as the store has it; None: it knows nothing of the partition yet
    position: int  # of the next message to read
    seek_to: int | None = None  # where to read on; what was read before is void
    committed: int | None = None  # the offset of the last commit to the brokers


class Taken(Struct):
    """Consecutive messages of one partition, as what they become."""

    partition: Partition
    made: list[Made]


class Positions(Struct, frozen=True):
    """What the reader asks; each runs in the worker's loop and waits for the store."""

    # Asks the brokers, in the reader's thread; KafkaException if they do not answer.
    identify: Callable[[Callable[[], bool]], LogId]
    look: Callable[[], str | None]  # the topic's id, now and then; never waits
    stored: Callable[[LogId, Sequence[int]], Coroutine[Any, Any, dict[int, int]]]
    settled: Callable[[], Coroutine[Any, Any, None]]  # returns when nothing is being stored


class IngestReader:
    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        positions: Positions,
        make: Callable[[Any, LogId], Made],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._topic = topic
        self._positions = positions
        self._make = make
        self._loop = loop
        self._begins_at_end = str(config.get("auto.offset.reset")) in ("latest", "largest", "end")
        # Where the log has no message for an offset, the reader decides, since only it knows what the store has.
        self._config = {
            "queued.max.messages.kbytes": QUEUED_KILOBYTES,
            **config,
            "auto.offset.reset": "error",
            "on_commit": self._on_commit,
        }
        self._is_incremental = is_incremental(config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"taskharbor-ingest-{topic}")
        self._stopping = threading.Event()
        self._consumer: Any = None
        self._next_commit = 0.0
        self._new: set[int] = set()  # partitions that came during this poll
        self._elsewhere: set[int] = set()  # partitions of which no more is read before it is known where
        self._has_joined = False  # partitions came to it at least once
        self._log: LogId | None = None  # of the partitions that came last
        self._ends = Ends()
        self.partitions: dict[int, Partition] = {}

    # -- what the loop calls --

    def read(self) -> asyncio.Future[list[Taken]]:
        """Begin to read the next messages; an empty answer says that none came for a while."""
        return asyncio.ensure_future(self._loop.run_in_executor(self._thread, self._explaining, self._read))

    def has(self, partition: Partition) -> bool:
        """Whether the partition is still this reader's, and what was read of it is not void."""
        return self.partitions.get(partition.number) is partition and partition.seek_to is None

    def partition_figures(self) -> list[StreamPartition]:
        """What is known of each partition. The store's offset is the one that counts as committed."""
        there = list(self.partitions.values())  # its thread changes the original
        figures = [
            StreamPartition(
                each.number,
                each.stored,
                each.position,
                incomplete=0 if each.stored is None else each.position - each.stored,
            )
            for each in sorted(there, key=lambda each: each.number)
        ]
        return self._ends.seen(self._topic, figures)

    async def close(self) -> None:
        """Tell the brokers how far the store is, and leave the group."""
        self._stopping.set()
        await self._loop.run_in_executor(self._thread, self._explaining, self._leave)
        self._thread.shutdown(wait=False)

    # -- the thread --

    def _explaining(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaException as error:
            raise explained(error, self._topic) from error

    def _read(self) -> list[Taken]:
        if self._consumer is None:
            self._consumer = Consumer(self._config, logger=MET)
            self._consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        self._notice_new_topic()
        self._begin_elsewhere()
        self._seek()
        self._commit_now_and_then()
        self._ends.look(self._consumer, [(self._topic, each) for each in self.partitions])
        self._new.clear()
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(AT_ONCE - 1, 0)]
        by_partition: dict[int, list[Any]] = {}
        for message in messages:
            if self._is_message(message):
                by_partition.setdefault(message.partition(), []).append(message)
        return [taken for number, some in by_partition.items() if (taken := self._taken(number, some))]

    def _taken(self, number: int, messages: list[Any]) -> Taken | None:
        partition = self.partitions.get(number)
        if partition is None:
            return None
        if number in self._elsewhere:
            return None
        if number in self._new:
            # Some of these may be from before it came, when it stood elsewhere. It begins again at its position.
            partition.seek_to = partition.position
        if partition.seek_to is not None:
            return None
        made = []
        for message in messages:
            offset = message.offset()
            if offset >= partition.position:
                made.append(self._make(message, partition.log))
                partition.position = offset + 1
        return Taken(partition, made) if made else None

    def _is_message(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            if message.partition() in self.partitions:
                self._elsewhere.add(message.partition())
            return False
        if not self._passes(error):
            raise KafkaException(error)
        if error.code() != KafkaError._PARTITION_EOF:
            self._say(logging.WARNING, "the broker cannot be read from: {error}", error=str(error))
        return False

    def _passes(self, error: Any) -> bool:
        if error.fatal():
            return False
        return passes_for_member(error) if self._has_joined else passes(error)

    def _notice_new_topic(self) -> None:
        """Begin again in a topic that was deleted and made anew: the client goes on in it without a sign."""
        topic_id = self._positions.look()
        if topic_id is not None:
            self._elsewhere |= {
                number
                for number, each in self.partitions.items()
                if is_another(each.log.topic_id, topic_id, self._topic)
            }

    def _seek(self) -> None:
        for partition in self.partitions.values():
            if partition.seek_to is not None:
                try:
                    self._consumer.seek(TopicPartition(self._topic, partition.number, partition.seek_to))
                except KafkaException as error:
                    if error.args[0].code() not in SEEK_LATER:
                        raise
                else:
                    partition.position, partition.seek_to = partition.seek_to, None

    # -- where a partition begins --

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        numbers = [each.partition for each in partitions]
        log = self._identified()
        stored = None if log is None else self._ask(partial(self._positions.stored, log, numbers))
        if log is None or stored is None:
            return  # the worker ends
        unknown = [each for each in partitions if each.partition not in stored]
        # What the group has committed may be of the topic that was: a commit may come after its end.
        is_anew = self._log is not None and self._log.name != log.name
        begins_at = stored | self._begins(consumer, unknown, is_anew=is_anew)
        if begins_at.keys() < set(numbers):
            return  # the worker ends
        self._log = log
        for number in numbers:
            self.partitions[number] = Partition(number, log, stored.get(number), begins_at[number])
        self._new.update(numbers)
        self._elsewhere.difference_update(numbers)
        self._assign(consumer, numbers)
        self._has_joined = True
        self._say(logging.INFO, "partitions of {topic} came to this worker: {partitions}", partitions=numbers)

    def _assign(self, consumer: Any, numbers: Sequence[int]) -> None:
        """Let the client read these from their positions on."""
        if not self._is_incremental:
            numbers = list(self.partitions)
        begins = [TopicPartition(self._topic, each, self.partitions[each].position) for each in numbers]
        if self._is_incremental:
            consumer.incremental_assign(begins)
        else:
            consumer.assign(begins)

    def _begins(self, consumer: Any, partitions: list[Any], *, is_anew: bool) -> dict[int, int]:
        """Where partitions begin that the store does not know: where the group is, if another mode has read them."""

        def ask() -> dict[int, int]:
            begins: dict[int, int] = {}
            for each in consumer.committed(partitions, timeout=CONNECT_SECONDS):
                if each.error is not None:
                    raise KafkaException(each.error)
                number, is_known = each.partition, each.offset >= 0 and not is_anew
                begins[number] = each.offset if is_known else self._edge(consumer, each, is_anew=is_anew)
            return begins

        return (self._answer(ask, "the committed offsets of {topic}") or {}) if partitions else {}

    def _identified(self) -> LogId | None:
        """Ask which log the topic is; None if the worker ends meanwhile."""
        log = self._answer(lambda: self._positions.identify(self._stopping.is_set), "the id of {topic}")
        if log is None or self._log is None or is_another(self._log.topic_id, log.topic_id, self._topic):
            return log
        return self._log

    def _answer(self, ask: Callable[[], T], what: str) -> T | None:
        """Ask until the brokers answer; None if the worker ends meanwhile."""
        return until_answered(ask, what, self._topic, passes=self._passes, stopping=self._stopping)

    def _edge(self, consumer: Any, partition: Any, *, is_anew: bool) -> int:
        low, high = consumer.get_watermark_offsets(partition, timeout=CONNECT_SECONDS)
        return int(high if self._begins_at_end and not is_anew else low)

    def _begin_elsewhere(self) -> None:
        """Go on where the log has messages: it no longer has, or does not have yet, those at the stored offset."""
        for number in sorted(self._elsewhere & self.partitions.keys()):
            partition = self.partitions[number]
            log = self._identified()
            edges = self._answer(partial(self._edges, number), "the ends of {topic}")
            if log is None or edges is None:
                return  # the worker ends
            self._begin_between(partition, log, *edges)
        self._elsewhere.clear()

    def _edges(self, number: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, number)
        low, high = self._consumer.get_watermark_offsets(place, timeout=CONNECT_SECONDS)
        return low, high

    def _begin_between(self, partition: Partition, log: LogId, low: int, high: int) -> None:
        place = TopicPartition(self._topic, partition.number)
        if log.name != partition.log.name:  # the topic was made anew
            number = partition.number
            stored = (self._ask(lambda: self._positions.stored(log, [number])) or {}).get(number)
            # Messages of the other log may be on their way to the store, as that log's.
            partition = self.partitions[number] = Partition(number, log, stored, stored or 0)
        at = partition.position
        if partition.seek_to is not None:  # where the store is: what was read beyond it is void
            at, partition.seek_to = partition.seek_to, None
        partition.position = min(max(at, low), high)
        # A seek does not wake a partition whose reading has ended with an error.
        if self._is_incremental:
            self._consumer.incremental_unassign([place])
        self._assign(self._consumer, [partition.number])
        if partition.position != at and partition.stored is not None:
            told = (
                "messages of {topic}[{partition}] from {wanted} to {offset} were deleted before they were stored"
                if at < low
                else "{topic}[{partition}] ends at {offset}, before {wanted}, up to which it was stored: it was cut"
            )
            about = {"partition": partition.number, "wanted": at, "offset": partition.position}
            self._say(logging.ERROR, told, **about)

    # -- partitions that go --

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._ask(self._positions.settled)
        gone = [each.partition for each in partitions]
        self._commit([self.partitions[each] for each in gone if each in self.partitions], wait=True)
        for each in gone:
            self.partitions.pop(each, None)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        for each in partitions:
            self.partitions.pop(each.partition, None)
        self._say(
            logging.WARNING,
            "partitions of {topic} went to another worker without this one: {partitions}. It was away for too long",
            partitions=[each.partition for each in partitions],
        )

    def _leave(self) -> None:
        if self._consumer is not None:
            try:
                self._commit(list(self.partitions.values()), wait=True)
            finally:
                self.partitions.clear()
                self._consumer.close()

    # -- commits --

    def _commit_now_and_then(self) -> None:
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + COMMIT_SECONDS
            self._commit(list(self.partitions.values()), wait=False)

    def _commit(self, partitions: Sequence[Partition], *, wait: bool) -> None:
        moved = [each for each in partitions if each.stored is not None and each.stored != each.committed]
        if not moved:
            return
        offsets = [TopicPartition(self._topic, each.number, each.stored or 0) for each in moved]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=not wait)
        except KafkaException as error:
            self._complain(error.args[0])
        else:
            for each in moved:
                each.committed = each.stored

    def _on_commit(self, error: Any, offsets: list[Any]) -> None:
        if error is not None:
            for each in self.partitions.values():
                each.committed = None
            self._complain(error)

    def _complain(self, error: Any) -> None:
        """The store knows how far it is: a commit is for tools that show the lag."""
        self._say(
            logging.WARNING,
            "offsets of {topic} could not be committed to the brokers: {error}",
            error=str(error),
        )

    # -- asking the loop --

    def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Ask in the worker's loop, and wait for the answer; None if the worker ends before it comes."""
        asked = asyncio.run_coroutine_threadsafe(question(), self._loop)
        while True:
            try:
                return asked.result(POLL_SECONDS)
            except NotYet:
                if self._stopping.is_set():
                    asked.cancel()
                    return None
            except CancelledError:
                return None

    def _say(self, level: int, text: str, **fields: Any) -> None:
        log_line(logger, level, text, {"topic": self._topic, **fields})
