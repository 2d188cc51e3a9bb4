"""Messages that are looked at again later: those that wait in a retry topic, and those that are due within a second."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from taskharbor.clock import MICROS_PER_SECOND, Clock, wait_for
from taskharbor.drivers.base import Claimed
from taskharbor.streams.messages import Place
from taskharbor.streams.topics.moves import Partition, partition_of
from taskharbor.streams.topics.trails import Headers, Trail

WAITING_BYTES = 1_048_576  # of a retry partition in memory; what is beyond is read again
_MESSAGE_BYTES = 300  # that a message takes beside its body


class Held(Struct, eq=False):
    """A message that was taken from a topic and is not finished."""

    place: Place  # where it stands now
    claimed: Claimed
    trail: Trail
    message: Any
    headers: Headers  # the message's own
    size: int
    token: str = ""  # of the claim that handed it to the executor
    is_committed: bool = False  # of an at_most_once task: its offset is finished before it begins
    has_failed: bool = False  # since it was read: its record in the log does not say so
    is_waiting: bool = False  # in its retry topic

    @property
    def partition(self) -> Partition:
        return partition_of(self.place)


class Sleeping:
    """The messages by the time at which they are looked at again.

    Those of a retry topic come in this order already. The consumer's thread asks which partitions it has to hold: it
    reads no more of one that has messages waiting here.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Held]] = []
        self._serial = itertools.count()
        self._earlier = asyncio.Event()  # one came that is looked at before all others
        self._bytes: Counter[Partition] = Counter()  # of those that wait in a retry topic
        self.resting = 0  # those that do not

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, held: Held, until: int) -> None:
        heapq.heappush(self._heap, (until, next(self._serial), held))
        self._count(held, 1)
        if self._heap[0][2] is held:
            self._earlier.set()

    def pop(self, now: int) -> list[Held]:
        """Take those whose time has come."""
        woken: list[Held] = []
        while self._heap and self._heap[0][0] <= now:
            held = heapq.heappop(self._heap)[2]
            self._count(held, -1)
            held.is_waiting = False
            woken.append(held)
        return woken

    def remove(self, partitions: Collection[Partition]) -> list[Held]:
        """Take all of these partitions."""
        gone = [each for each in self._heap if each[2].partition in partitions]
        self._heap = [each for each in self._heap if each[2].partition not in partitions]
        heapq.heapify(self._heap)
        for _, _, held in gone:
            self._count(held, -1)
        return [held for _, _, held in gone]

    def _count(self, held: Held, sign: int) -> None:
        if held.is_waiting:
            self._bytes[held.partition] += sign * (held.size + _MESSAGE_BYTES)
        else:
            self.resting += sign

    async def wait(self, now: int) -> None:
        """Return when the time of the first one has come, or another one is first."""
        self._earlier.clear()
        seconds = (self._heap[0][0] - now) / MICROS_PER_SECOND if self._heap else None
        try:
            await wait_for(self._clock, self._earlier.wait(), seconds)
        except TimeoutError:
            pass

    def is_full(self, partition: Partition) -> bool:
        """Whether enough of a retry partition waits here."""
        return self._bytes[partition] >= WAITING_BYTES

    def is_waiting(self, partition: Partition) -> bool:
        return self._bytes[partition] > 0

    def partitions(self) -> list[Partition]:
        """The retry partitions with messages that wait. Any thread may ask."""
        return [partition for partition, size in list(self._bytes.items()) if size > 0]
