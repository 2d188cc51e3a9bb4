"""What the next transaction does: the offsets that are finished, and the records that go to other topics.

A message that fails moves: its offset is finished, and a record of it stands in a retry topic or in the dead-letter
topic. Both happen in one transaction, so a crash can neither lose the message nor double it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from confluent_kafka import TopicPartition
from msgspec import Struct

from taskharbor.drivers.contract.reading import StreamPartition
from taskharbor.streams.messages import Place
from taskharbor.streams.offsets import AHEAD_MAX, PartitionOffsets
from taskharbor.streams.topics.trails import Headers

Partition = tuple[str, int]  # of which topic, and its number

FAR_AHEAD = AHEAD_MAX - 1_000  # more than the two consumers read at once


def partition_of(place: Place) -> Partition:
    return place.topic, place.partition


class Record(Struct, eq=False):
    """A record that is to be written to a topic."""

    topic: str
    key: bytes | None
    body: bytes | None
    headers: Headers
    # What is written instead if the brokers refuse this one for what it is: a function of their reason.
    instead: Callable[[str], Record] | None = None


class Move(Struct, eq=False):
    """A message that leaves its place, in a transaction that finishes its offset."""

    place: Place
    record: Record | None  # None: the offset is all
    answer: asyncio.Future[bool] | None = None  # whether it has moved; False: it stays, and comes again
    is_finished: bool = False  # its offset was committed before: the record is all
    offsets: PartitionOffsets | None = None  # those that it finishes; the ledger sets it


class TopicCommit(Struct, frozen=True):
    partition: Partition
    offset: int
    metadata: str


class Batch(Struct):
    """The content of one transaction."""

    moves: list[Move]
    commits: list[TopicCommit]

    def offsets_of(self, topics: Collection[str]) -> list[Any]:
        """What is committed of these topics, as the client takes it."""
        return [
            TopicPartition(*each.partition, each.offset, each.metadata)
            for each in self.commits
            if each.partition[0] in topics
        ]

    @property
    def is_empty(self) -> bool:
        return not self.moves and not self.commits


class Ledger:
    """Offsets and moves. The loop of the worker writes them, the thread of the transactions takes them.

    A lock keeps an offset and its move together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._offsets: dict[Partition, PartitionOffsets] = {}
        self._moves: list[Move] = []
        self._has_failed = False
        self._arriving = 0  # messages on their way from the threads of the consumers
        self._retries_arriving = 0  # those of them that are retry records

    # -- partitions --

    def begin(self, partition: Partition, committed: int | None, finished: Iterable[int]) -> None:
        """Note that a partition came, and what is finished of it."""
        with self._lock:
            self._offsets[partition] = PartitionOffsets(committed, finished)

    def has(self, partition: Partition) -> bool:
        return partition in self._offsets

    def forget(self, partitions: Collection[Partition]) -> None:
        """Commit nothing more of these, and write none of their records: the messages come again."""
        with self._lock:
            for each in partitions:
                self._offsets.pop(each, None)
            self._moves = self._wanted(self._moves)

    # -- messages --

    def room(self, capacity: int) -> int:
        """How many more messages may come, if at most this many may be on their way."""
        with self._lock:
            # A partition that is too far ahead is not read: it takes no room from the others.
            aheads = [each.ahead for each in self._offsets.values()]
            ahead = max((each for each in aheads if each <= FAR_AHEAD), default=0)
            return max(min(capacity, AHEAD_MAX - ahead) - self._arriving, 0)

    def far_ahead(self) -> list[Partition]:
        """The partitions that run so far ahead of their commits that no more is to be read of them."""
        with self._lock:
            return [partition for partition, each in self._offsets.items() if each.ahead > FAR_AHEAD]

    def arriving(self, count: int, *, are_retries: bool) -> None:
        with self._lock:
            self._arriving += count
            self._retries_arriving += count if are_retries else 0

    @property
    def is_expecting_retries(self) -> bool:
        """Whether retry records are on their way."""
        return self._retries_arriving > 0

    def take(self, partition: Partition, offset: int) -> bool:
        """Note that a message came; return whether it is to be executed."""
        with self._lock:
            offsets = self._offsets.get(partition)
            return offsets is not None and offsets.take(offset)

    def in_doubt(self) -> list[tuple[Partition, int]]:
        """The partitions of which an older message came, and where they had been."""
        with self._lock:
            return [
                (partition, each.position) for partition, each in self._offsets.items() if each.is_in_doubt
            ]

    def trust(self, partition: Partition) -> None:
        """Take messages of this partition again."""
        with self._lock:
            if (offsets := self._offsets.get(partition)) is not None:
                offsets.trust()

    def finish(self, places: Iterable[Place]) -> None:
        """Note that these have succeeded."""
        with self._lock:
            self._finish(places)

    def move(self, moves: Sequence[Move]) -> None:
        """Note that these leave their places."""
        with self._lock:
            for each in moves:
                each.offsets = self._offsets.get(partition_of(each.place))
            self._finish(each.place for each in moves if not each.is_finished)
            self._moves += self._wanted(moves)

    def _finish(self, places: Iterable[Place]) -> None:
        for place in places:
            offsets = self._offsets.get(partition_of(place))
            if offsets is not None:
                offsets.finish(place.offset)

    def _wanted(self, moves: Sequence[Move]) -> list[Move]:
        """Those whose partitions have been here since they were noted; the others are answered.

        Of a partition that went away and came back the messages come again, and what becomes of them then counts.
        """

        def is_wanted(move: Move) -> bool:
            if self._has_failed or move.is_finished:
                return not self._has_failed
            return move.offsets is not None and self._offsets.get(partition_of(move.place)) is move.offsets

        self._answer([each for each in moves if not is_wanted(each)], False)
        return [each for each in moves if is_wanted(each)]

    # -- transactions: another thread --

    def next_batch(self) -> Batch:
        """Take what the next transaction has to do. It may be nothing."""
        with self._lock:
            moves, self._moves = self._moves, []
            due = [(partition, each.to_commit()) for partition, each in self._offsets.items()]
            return Batch(
                moves, [TopicCommit(partition, *what) for partition, what in due if what is not None]
            )

    def done(self, batch: Batch) -> None:
        """Note that a batch is committed."""
        with self._lock:
            for each in batch.commits:
                offsets = self._offsets.get(each.partition)
                if offsets is not None:
                    offsets.acknowledged(each.offset, each.metadata)
        self._answer(batch.moves, True)

    def undone(self, batch: Batch) -> None:
        """Take a batch back that was not committed: the next one does it."""
        with self._lock:
            self._moves = self._wanted(batch.moves) + self._moves

    def failed(self) -> None:
        """Note that there are no more transactions."""
        with self._lock:
            self._has_failed = True
            self._moves = self._wanted(self._moves)

    def _answer(self, moves: Sequence[Move], has_moved: bool) -> None:
        answers = [each.answer for each in moves if each.answer is not None]
        if not answers:
            return

        def answer() -> None:
            for each in answers:
                if not each.done():
                    each.set_result(has_moved)

        try:
            self._loop.call_soon_threadsafe(answer)
        except RuntimeError:  # the loop is closed: the worker has gone without waiting
            pass

    # -- for metrics --

    def partition_figures(self, topic: str) -> list[StreamPartition]:
        """What is known of each partition of a topic, apart from what only its consumer knows."""
        with self._lock:
            return [
                each.figures(number)
                for (name, number), each in sorted(self._offsets.items())
                if name == topic
            ]

    @property
    def incomplete(self) -> int:
        with self._lock:
            return sum(each.open for each in self._offsets.values())
