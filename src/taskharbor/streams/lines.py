"""Lines: messages that have to be executed one after the other, and those that wait behind another one.

With the order `key` each key of a partition is a line, with the order `partition` each partition. The first message of
a line is under way: at its handler, or on its way to the store. When it has succeeded, the next one begins. When it has
failed, the store has a backlog of this line, and the line is blocked as long as that is there: with the order `key` the
messages behind it join the backlog, with the order `partition` they wait here and in the log.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable
from enum import StrEnum

from msgspec import Struct, field

from taskharbor.drivers.contract.handing_over import BacklogPlace
from taskharbor.streams.jobs import Held, Keys, MessageJobs
from taskharbor.streams.messages import Place

BLOCKED_MAX = 100_000  # lines that a worker knows to be blocked; with more, it takes no messages
# Of a partition that is a line: with that many waiting, no more are read of it until half of them are left.
WAITING_MAX = 1_000
WAITING_BYTES_MAX = 1_048_576
_WHOLE = "partition"  # the last part of the key of a line that is a partition
_AFTER_ALL = "~"  # sorts behind every last part


class Order(StrEnum):
    """In which order messages are executed."""

    NONE = "none"
    KEY = "key"
    PARTITION = "partition"


class Line(Struct, eq=False):
    key: str  # of its backlog
    partition: int
    under_way: Held | None = None
    is_blocked: bool = False  # the store has a backlog of it, or had one when it was asked last
    waiting: deque[Held] = field(default_factory=deque)
    bytes: int = 0  # of those that wait


class Lines:
    def __init__(self, order: Order, jobs: MessageJobs, *, holds: bool) -> None:
        self.order = order
        self._jobs = jobs
        self._holds = holds
        self._lines: dict[str, Line] = {}
        self._blocked: dict[str, Line] = {}
        self._full: set[int] = set()
        self.bytes = 0  # of all that wait

    # -- keys --

    def key_of(self, place: Place, message_key: bytes | None) -> str | None:
        """The line of a message; None if it has none. A message without a key is a key of its own."""
        if self.order is Order.NONE or (self.order is Order.KEY and message_key is None):
            return None
        partition = Keys(place.log.hex()).partition(place.partition)
        if self.order is Order.PARTITION or message_key is None:
            return f"{partition}:{_WHOLE}"
        return f"{partition}:{hashlib.blake2b(message_key, digest_size=16).hexdigest()}"

    def span_of(self, partition: int) -> tuple[str, str]:
        """The first and the last key that a line of this partition may have."""
        prefix = self._jobs.keys.partition(partition)
        return f"{prefix}:", f"{prefix}:{_AFTER_ALL}"

    def place_of(self, held: Held, *, opens: bool) -> BacklogPlace | None:
        """Where a message stands in the backlog of its line."""
        if held.line is None:
            return None
        return BacklogPlace(held.line, held.place.offset, opens, self._holds)

    # -- messages that come and end --

    def enter(self, held: Held) -> bool:
        """Let a message join its line; whether it may begin."""
        if held.line is None:
            return True
        line = self._lines.get(held.line)
        if line is None:
            line = self._lines[held.line] = Line(held.line, held.place.partition)
        if line.under_way is None and not line.is_blocked and not line.waiting:
            line.under_way = held
            return True
        line.waiting.append(held)
        line.bytes += held.size
        self.bytes += held.size
        return False

    def leave(self, held: Held) -> Held | None:
        """Note that a message has ended here; the next one of its line, which may begin."""
        line = self._lines.get(held.line or "")
        if line is None or line.under_way is not held:
            return None
        line.under_way = None
        return self._begin_next(line)

    def followers(self, held: Held, limit: int) -> list[Held]:
        """Those behind a message that go to the store with it."""
        line = self._lines.get(held.line or "")
        if line is None or self.order is not Order.KEY:
            return []
        return [each for each, _ in zip(line.waiting, range(limit), strict=False)]

    def block(self, held: Held, followers: Collection[Held] = ()) -> None:
        """Note that the store has a backlog of this message's line, with these behind it."""
        line = self._lines.get(held.line or "")
        if line is None or line.under_way is not held:
            return
        line.under_way = None
        line.is_blocked = True
        self._blocked[line.key] = line
        self._drop_first(line, len(followers))

    # -- blocked lines --

    @property
    def blocked(self) -> int:
        return len(self._blocked)

    def assigned(self, partition: int, keys: Iterable[str]) -> None:
        """Note which backlogs the store has of a partition that came."""
        if self.order is Order.PARTITION and any(True for _ in keys):
            keys = [f"{self._jobs.keys.partition(partition)}:{_WHOLE}"]  # it waits for all of them
        for key in keys if self.order is not Order.NONE else ():
            self._lines[key] = self._blocked[key] = Line(key, partition, is_blocked=True)

    def blocked_partitions(self) -> dict[int, list[Line]]:
        """The blocked lines, by partition."""
        found: dict[int, list[Line]] = {}
        for line in self._blocked.values():
            found.setdefault(line.partition, []).append(line)
        return found

    @property
    def waits_here(self) -> bool:
        """Whether messages of blocked lines wait here until the backlog has ended."""
        return self.order is Order.PARTITION

    def ended(self, asked: Collection[Line], found: Collection[str]) -> list[str]:
        """Which of the lines of a partition are free, of those that were blocked before the store was asked."""
        if len(found) > BLOCKED_MAX or (self.order is Order.PARTITION and found):
            return []  # the answer is cut off, or the partition waits for all of them
        backlogs = set(found)
        return [
            line.key for line in asked if line.key not in backlogs and self._blocked.get(line.key) is line
        ]

    def is_next(self, held: Held) -> bool:
        """Whether this message is the first of those that wait in its line."""
        line = self._lines.get(held.line or "")
        return line is not None and bool(line.waiting) and line.waiting[0] is held

    def to_append(self, limit: int) -> list[Held]:
        """Messages to be added to the backlogs of their lines, each line's in their order."""
        if self.order is not Order.KEY:
            return []
        waiting = (held for line in self._blocked.values() for held in line.waiting)
        return [held for held, _ in zip(waiting, range(limit), strict=False)]

    def appended(self, held: Held) -> None:
        """Note that the first of those that wait stands in the store."""
        if self.is_next(held):
            self._drop_first(self._lines[held.line or ""], 1)

    def unblock(self, key: str) -> Held | None:
        """Note that the backlog of a line has ended; the next message of it, which may begin."""
        line = self._blocked.pop(key, None)
        if line is None:
            return None
        line.is_blocked = False
        return self._begin_next(line)

    # -- partitions --

    def full(self) -> set[int]:
        """Partitions of which no more messages are to be read for now."""
        if self.order is Order.PARTITION:
            # (Of a line that has ended since the last call nothing waits any more.)
            self._full = {line.partition for line in list(self._lines.values()) if self._is_full(line)}
        return set(self._full)

    def _is_full(self, line: Line) -> bool:
        share = max(len(line.waiting) / WAITING_MAX, line.bytes / WAITING_BYTES_MAX)
        return share >= 1 or (share > 0.5 and line.partition in self._full)

    def drop(self, partitions: Collection[int]) -> None:
        """Forget the lines of partitions that go away. What waits there stays in the log."""
        for line in [line for line in self._lines.values() if line.partition in partitions]:
            self.bytes -= line.bytes
            del self._lines[line.key]
            self._blocked.pop(line.key, None)
        self._full.difference_update(partitions)

    def _begin_next(self, line: Line) -> Held | None:
        if line.waiting:
            held = line.waiting[0]
            self._drop_first(line, 1)
            line.under_way = held
            return held
        self._lines.pop(line.key, None)
        return None

    def _drop_first(self, line: Line, count: int) -> None:
        for _ in range(count):
            size = line.waiting.popleft().size
            line.bytes -= size
            self.bytes -= size
