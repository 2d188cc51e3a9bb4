"""What of a partition is finished: the offset to commit, and what is finished beyond it.

A consumer group stores one offset for each partition: everything below it is finished. Messages end in any order here,
so what is finished above that offset goes into the commit's metadata, and a consumer that takes the partition over
does not repeat it.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Iterable

from taskharbor.drivers.contract.reading import StreamPartition

# How far a partition may run ahead of its commit. A bitmap of that many offsets fits into the metadata.
AHEAD_MAX = 16_000
METADATA_MAX = 3_000  # characters; brokers take 4,096 bytes unless they are set otherwise
JUMPS_MAX = 100  # that are reported at once: a compacted topic has many
_MARK = "taskharbor1:"  # metadata that does not begin so is of another program
_RUNS, _BITMAP = "r", "b"


class PartitionOffsets:
    """The offsets of one partition that a worker has taken, in the order of the log.

    Offsets have gaps: a compacted topic leaves messages out, and transactions leave marks. So only what was taken
    counts, and not whether two offsets are neighbours.
    """

    def __init__(self, committed: int | None, finished: Iterable[int] = ()) -> None:
        self.is_committed = committed is not None
        self._is_new_to_group = committed is None  # its first message may stand anywhere
        committed = committed or 0
        self.committed = committed  # the last offset that the broker has acknowledged
        self._position = committed  # everything below it has been taken
        self._taken: deque[int] = deque()  # from the first that is not finished on
        self._finished: set[int] = {offset for offset in finished if offset >= committed}
        self._metadata = ""  # of the last commit
        self._ends = 0  # how many have finished, so that nothing is encoded twice
        self._acknowledged_with: tuple[int, int] = (-1, -1)
        self._jumps: list[tuple[int, int]] = []
        self._is_in_doubt = False  # an older offset came: this log may be of the past

    @property
    def first_open(self) -> int:
        """The offset to commit: everything below it is finished."""
        while self._taken and self._taken[0] in self._finished:
            self._finished.discard(self._taken.popleft())
        return self._taken[0] if self._taken else self._position

    @property
    def position(self) -> int:
        """The offset after the last one that was taken."""
        return self._position

    @property
    def finished_ahead(self) -> int:
        """How many are finished beyond the offset to commit."""
        return len(self._finished)

    @property
    def open(self) -> int:
        """How many of the offsets that were taken are not finished."""
        return sum(offset not in self._finished for offset in self._taken)

    def take(self, offset: int) -> bool:
        """Note that a message came; return whether it is to be executed: False if it was finished before.

        If offsets begin again, the log was made anew, or the client reads from the wrong place. Nothing more is taken
        or committed until someone has found out: see `trust`.
        """
        if self._is_in_doubt:
            return False
        if offset < self._position:
            self._is_in_doubt = True
            return False
        if offset > self._position:
            self._jump(offset)
        self._position = offset + 1
        self._is_new_to_group = False
        if offset in self._finished:
            if self._taken:
                self._taken.append(offset)
            else:
                self._finished.discard(offset)
            return False
        self._taken.append(offset)
        return True

    def _jump(self, offset: int) -> None:
        if not self._is_new_to_group and len(self._jumps) < JUMPS_MAX:
            self._jumps.append((self._position, offset))

    @property
    def is_in_doubt(self) -> bool:
        """Whether an offset came that is older than the position, and it is not known yet why."""
        return self._is_in_doubt

    def trust(self) -> None:
        """Go on: the log is the one that it was, and is read from the position on."""
        self._is_in_doubt = False

    def jumps(self) -> list[tuple[int, int]]:
        """Return the offsets that were expected and the later ones that came instead, since the last call."""
        jumps, self._jumps = self._jumps, []
        return jumps

    def finish(self, offset: int) -> None:
        """Note that a message has ended, or stands safely in the store."""
        self._finished.add(offset)
        self._ends += 1

    @property
    def ahead(self) -> int:
        """How far what was taken is ahead of what can be committed."""
        return self._position - self.first_open

    def figures(self, partition: int) -> StreamPartition:
        """What is known of this partition, apart from what only the consumer knows."""
        committed = self.committed if self.is_committed else None
        return StreamPartition(
            partition, committed, self._position, incomplete=self.open, ahead=self.finished_ahead
        )

    def to_commit(self) -> tuple[int, str] | None:
        """Return the offset and the metadata to commit; None if the broker has them already."""
        if self._is_in_doubt:
            return None
        offset = self.first_open
        if (offset, self._ends) == self._acknowledged_with:
            return None
        metadata = encode(offset, [each for each in self._finished if each > offset])
        if (offset, metadata) == (self.committed, self._metadata):
            self._acknowledged_with = (offset, self._ends)
            return None
        return offset, metadata

    def acknowledged(self, offset: int, metadata: str) -> None:
        """Note that the broker has this commit."""
        self.committed, self._metadata, self.is_committed = offset, metadata, True


def encode(offset: int, finished: Iterable[int]) -> str:
    """Write which offsets above this one are finished: as run lengths or as a bitmap, whichever is shorter."""
    relative = sorted({each - offset for each in finished if offset <= each < offset + AHEAD_MAX})
    if not relative:
        return ""
    runs = _encoded(_RUNS, _as_runs(relative))
    if len(runs) <= len(relative) // 8:  # no bitmap is shorter
        return runs
    return min(runs, _encoded(_BITMAP, _as_bitmap(relative)), key=len)


def decode(offset: int, metadata: str | None) -> set[int]:
    """Read what `encode` wrote. Metadata of another program, or damaged, says nothing: the messages come again."""
    if not metadata or not metadata.startswith(_MARK) or len(metadata) > METADATA_MAX:
        return set()
    kind, text = metadata[len(_MARK) : len(_MARK) + 1], metadata[len(_MARK) + 1 :]
    try:
        packed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        relative = _from_runs(packed) if kind == _RUNS else _from_bitmap(packed) if kind == _BITMAP else []
    except (ValueError, binascii.Error):
        return set()
    return {offset + each for each in relative}


def _encoded(kind: str, packed: bytes) -> str:
    return _MARK + kind + base64.b64encode(packed, altchars=b"-_").decode()


def _as_bitmap(relative: list[int]) -> bytes:
    bits = bytearray(relative[-1] // 8 + 1)
    for each in relative:
        bits[each // 8] |= 1 << each % 8
    return bytes(bits)


def _from_bitmap(packed: bytes) -> list[int]:
    return [8 * at + bit for at, byte in enumerate(packed) for bit in range(8) if byte & 1 << bit]


def _as_runs(relative: list[int]) -> bytes:
    """Lengths in turn: of what is open, of what is finished, of what is open, … each in seven bits a byte."""
    packed = bytearray()
    begin, position = relative[0], 0
    previous = relative[0] - 1
    for each in [*relative, AHEAD_MAX + 1]:
        if each == previous + 1:
            previous = each
            continue
        packed += _number(begin - position) + _number(previous + 1 - begin)
        position, begin, previous = previous + 1, each, each
    return bytes(packed)


def _from_runs(packed: bytes) -> list[int]:
    relative: list[int] = []
    position, shift, number, is_finished = 0, 0, 0, False
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            continue
        if position + number > AHEAD_MAX + 1:
            raise ValueError("a run that no worker writes")
        if is_finished:
            relative += range(position, position + number)
        position, shift, number, is_finished = position + number, 0, 0, not is_finished
    return relative


def _number(value: int) -> bytes:
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)
