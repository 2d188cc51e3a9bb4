"""What a worker has taken from the log and not finished: which offsets, and the messages in memory.

The messages belong to the loop of the worker. The offsets are shared with the consumer's thread, which commits them: a
lock guards them, and is held for a batch at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from taskharbor.clock import Clock, wait_for
from taskharbor.drivers.contract.reading import StreamPartition
from taskharbor.streams.consumer import AT_ONCE, Commit, Jump
from taskharbor.streams.jobs import Held
from taskharbor.streams.messages import Place
from taskharbor.streams.offsets import AHEAD_MAX, PartitionOffsets

FAR_AHEAD = AHEAD_MAX - AT_ONCE


class Changes:
    """Counts what a waiting worker has to look at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = asyncio.Event()
        self.token = 0

    def announce(self) -> None:
        self.token += 1
        self._changed.set()

    async def wait(self, token: int, seconds: float) -> None:
        """Return as soon as there was a change since `token`, or after these seconds."""
        if self.token != token:
            return
        self._changed.clear()
        try:
            await wait_for(self._clock, self._changed.wait(), seconds)
        except TimeoutError:
            pass


class Taken:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[int, PartitionOffsets] = {}
        self._log = b""  # which the offsets are of: a topic that was made anew is another one
        self._arriving = 0  # messages on their way from the consumer's thread
        self._buffer: deque[Held] = deque()  # no handler has begun them
        self.buffer_bytes = 0
        self._held: dict[str, Held] = {}  # by the id of their jobs
        self._leaving: frozenset[int] = frozenset()  # partitions of which nothing begins any more
        self._held_back: set[int] = set()  # partitions of which no more is read, as the last answer said
        self.finished = asyncio.Event()  # set each time something has finished

    # -- offsets: both threads --

    def begin(self, partition: int, committed: int | None, finished: Iterable[int], log: bytes = b"") -> None:
        """Note that a partition of this log came, and what is finished of it."""
        with self._lock:
            self._log = log
            self._offsets[partition] = PartitionOffsets(committed, finished)

    @property
    def partitions(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._offsets)

    def has(self, partition: int) -> bool:
        return partition in self._offsets

    def room(self, capacity: int) -> int:
        """How many more messages may come, if at most this many may wait for a handler."""
        with self._lock:
            free = capacity - len(self._buffer) - self._arriving
            if free <= 0:
                return 0
            # A partition that is too far ahead takes no room from the others, once no more of it is read.
            read = [each.ahead for number, each in self._offsets.items() if number not in self._held_back]
            return max(min(free, AHEAD_MAX - self._arriving - max(read, default=0)), 0)

    def far_ahead(self) -> set[int]:
        """The partitions that run so far ahead of their commits that no more is to be read of them."""
        with self._lock:
            self._held_back = {number for number, each in self._offsets.items() if each.ahead > FAR_AHEAD}
            return set(self._held_back)

    def arriving(self, count: int) -> None:
        with self._lock:
            self._arriving += count

    def new_ones(self, messages: Sequence[Any]) -> list[Any]:
        """Note that these have come; return those that are not finished already."""
        with self._lock:
            self._arriving -= len(messages)
            offsets = self._offsets
            return [
                each
                for each in messages
                if (of := offsets.get(each.partition())) is not None and of.take(each.offset())
            ]

    def finish(self, places: Iterable[Place]) -> None:
        """Note that these have ended, or stand safely in the store.

        Of a topic that was made anew meanwhile, the same offset is another message, which has not ended.
        """
        with self._lock:
            for place in places:
                offsets = self._offsets.get(place.partition)
                if offsets is not None and place.log == self._log:
                    offsets.finish(place.offset)
        self.finished.set()

    def to_commit(self) -> list[Commit]:
        with self._lock:
            due = [(number, each.to_commit()) for number, each in self._offsets.items()]
        return [Commit(number, *what) for number, what in due if what is not None]

    def jumps(self) -> list[Jump]:
        with self._lock:
            return [Jump(number, *jump) for number, each in self._offsets.items() for jump in each.jumps()]

    def in_doubt(self) -> list[tuple[int, int]]:
        """The partitions of which an older message came, and where they had been."""
        with self._lock:
            return [(number, each.position) for number, each in self._offsets.items() if each.is_in_doubt]

    def trust(self, partition: int) -> None:
        """Take messages of this partition again."""
        with self._lock:
            if (offsets := self._offsets.get(partition)) is not None:
                offsets.trust()

    def committed(self, commits: Sequence[Commit]) -> None:
        with self._lock:
            for each in commits:
                if (offsets := self._offsets.get(each.partition)) is not None:
                    offsets.acknowledged(each.offset, each.metadata)

    # -- messages: the loop alone --

    def add(self, held: Held) -> None:
        """Keep a message that waits for a handler."""
        self._held[held.claimed.id] = held
        self._buffer.append(held)
        self.buffer_bytes += held.size

    def next(self, token: str, limit: int, bytes_limit: int) -> list[Held]:
        """Give out messages that wait for a handler, in the order in which they came, under this token."""
        given: list[Held] = []
        size = 0
        while self._buffer and len(given) < limit:
            held = self._buffer[0]
            if given and size + held.size > bytes_limit:
                break
            self._buffer.popleft()
            size += held.size
            held.token = token
            given.append(held)
        self.buffer_bytes -= size
        return given

    @property
    def is_waiting(self) -> bool:
        """Whether messages wait for a handler."""
        return bool(self._buffer)

    def get(self, job_id: str) -> Held | None:
        return self._held.get(job_id)

    def pop(self, job_id: str) -> Held | None:
        return self._held.pop(job_id, None)

    def let_go(self, held: Held) -> None:
        """Forget this very message. (Its partition may have gone and come back, and the message with it.)"""
        if self._held.get(held.claimed.id) is held:
            del self._held[held.claimed.id]

    def offer_again(self, held: Held) -> None:
        """Keep a message that was given out and handed back, unless its partition has gone or is leaving."""
        if self._held.get(held.claimed.id) is not held:
            return
        if self.has(held.place.partition) and held.place.partition not in self._leaving:
            held.token = ""
            self._buffer.appendleft(held)
            self.buffer_bytes += held.size
        else:
            self.pop(held.claimed.id)
            self.finished.set()

    def leave(self, partitions: Collection[int]) -> None:
        """Begin nothing more of these partitions; `forget` follows."""
        self._leaving |= frozenset(partitions)
        self.drop_waiting(partitions)

    def of(self, partitions: Collection[int]) -> list[Held]:
        return [each for each in self._held.values() if each.place.partition in partitions]

    def is_of(self, job_id: str, partitions: Collection[int]) -> bool:
        held = self._held.get(job_id)
        return held is not None and held.place.partition in partitions

    def drop_waiting(self, partitions: Collection[int]) -> None:
        """Forget what no handler has begun of these partitions."""
        for each in self._buffer:
            if each.place.partition in partitions:
                self._held.pop(each.claimed.id, None)
                self.buffer_bytes -= each.size
        self._buffer = deque(each for each in self._buffer if each.place.partition not in partitions)

    def forget(self, partitions: Collection[int]) -> None:
        """Forget these partitions, and everything of them."""
        self.drop_waiting(partitions)
        for each in self.of(partitions):
            del self._held[each.claimed.id]
        self._leaving -= frozenset(partitions)
        with self._lock:
            for number in partitions:
                self._offsets.pop(number, None)

    def partition_figures(self) -> list[StreamPartition]:
        """What is known of each partition, apart from what only the consumer knows."""
        with self._lock:
            return [each.figures(number) for number, each in sorted(self._offsets.items())]

    def figures(self) -> dict[str, int]:
        with self._lock:
            incomplete = sum(each.open for each in self._offsets.values())
        return {"in_flight": len(self._held), "buffered": len(self._buffer), "incomplete": incomplete}
