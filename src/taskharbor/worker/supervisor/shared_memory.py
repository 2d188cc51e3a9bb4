"""Memory that a child and its supervisor share.

The child publishes its leases and jobs there, so that the supervisor can extend the leases and, when the child has
died, knows which jobs had begun. The supervisor writes how far it has extended each lease. Neither waits for the
other, and the begin or end of a job costs the child one write.

The memory consists of 64-bit words: a header, blocks, and where metrics are wanted the cells that the child counts in
(see `taskharbor.telemetry.metrics.cells`). A block covers up to `BLOCK_JOBS` jobs of one lease; a lease
takes as many blocks as it needs. Each word has one writer. A block's serial is written last and erased first: a reader
that finds the serial finds the rest as well.
"""

from __future__ import annotations

import copy
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from taskharbor.telemetry.metrics.cells import SIZE as CELLS_SIZE
from taskharbor.telemetry.metrics.cells import Cells

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from taskharbor.worker.pipeline.leases import HeldLease

WORD = 8
ID_BYTES = 36  # a UUID as text
BLOCK_JOBS = 16

# -- words of the header. Word 0 is never read: executions without a cell write there. --
ALIVE_COUNT = 1  # rises while the child's event loop runs
CLAIMING = 2  # the serial of a claim that waits for its answer
CLAIMING_ALONE = 3
BLOCKS = 4  # how many there are; what follows them is for metrics
HEADER = 8

# -- words of a block --
SERIAL = 0  # of the lease's token; 0 for a free block
COUNT = 1
ALONE = 2
EXPIRES = 3  # as the child knows it
EXTENDED_SERIAL = 4  # the supervisor writes which lease it has extended …
EXTENDED_TO = 5  # … and how far
CELLS = 8
IDS = CELLS + BLOCK_JOBS
BLOCK = IDS + BLOCK_JOBS * ID_BYTES // WORD

MESSAGES = (
    1 << 62
)  # in the serial of a block: its jobs are messages of a log, and no store has a lease for them

ROOM_AHEAD = 8_192  # jobs claimed ahead, or ended and not settled, in addition to the running ones

_ZEROS = memoryview(bytes(BLOCK_JOBS * WORD)).cast("q")


def blocks_for(concurrency: int) -> int:
    """Return a number that is enough even if every running job has its own lease, and so its own block."""
    return concurrency + ROOM_AHEAD // BLOCK_JOBS


def create(blocks: int, *, metrics: bool = False) -> int:
    """Create an unnamed file; the system removes it with the last process that has it open."""
    size = (HEADER + blocks * BLOCK) * WORD + (CELLS_SIZE if metrics else 0)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("taskharbor")
    else:
        descriptor, path = tempfile.mkstemp(prefix="taskharbor-")
        os.unlink(path)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, blocks.to_bytes(WORD, sys.byteorder), BLOCKS * WORD)
    return descriptor


class _SharedMemory:
    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self._bytes = memoryview(mmap.mmap(descriptor, size))
        self.words = self._bytes.cast("q")
        self.blocks = self.words[BLOCKS]
        end = (HEADER + self.blocks * BLOCK) * WORD
        self.metrics = Cells(self._bytes[end:]) if end < size else None  # where the child counts


# -- the child's side ----------------------------------------------------------------------------


class Publisher(_SharedMemory):
    """The child's side: it publishes leases and jobs."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._free = list(range(HEADER, HEADER + self.blocks * BLOCK, BLOCK))

    def split(self) -> Publisher:
        """Give half of the free blocks to another publisher: two workers of one process must not take each other's."""
        other = copy.copy(self)
        half = len(self._free) // 2
        self._free, other._free = self._free[half:], self._free[:half]
        return other

    @property
    def room(self) -> int:
        return len(self._free) * BLOCK_JOBS

    def show_alive(self) -> None:
        self.words[ALIVE_COUNT] += 1

    def claiming(self, serial: int, *, alone: bool) -> None:
        self.words[CLAIMING_ALONE] = alone
        self.words[CLAIMING] = serial

    def claimed(self, serial: int, lease: HeldLease | None, executions: Sequence[Execution]) -> None:
        if lease is not None:
            self.publish(serial, lease, executions)
        self.words[CLAIMING] = 0

    def publish(self, serial: int, lease: HeldLease, executions: Sequence[Execution]) -> None:
        words = self.words
        ids = "".join([execution.claimed.id for execution in executions]).encode("ascii", "replace")
        if len(ids) != len(executions) * ID_BYTES:
            return  # the driver's ids are not UUIDs: the worker extends such a lease itself
        blocks = []
        for first in range(0, len(executions), BLOCK_JOBS):
            block = self._free.pop()
            blocks.append(block)
            batch = executions[first : first + BLOCK_JOBS]
            words[block + COUNT] = len(batch)
            words[block + ALONE] = lease.alone
            words[block + EXPIRES] = lease.expires_at
            words[block + EXTENDED_SERIAL] = 0
            words[block + CELLS : block + IDS] = _ZEROS
            text = ids[first * ID_BYTES : (first + len(batch)) * ID_BYTES]
            start = (block + IDS) * WORD
            self._bytes[start : start + len(text)] = text
            words[block + SERIAL] = serial
            for cell, execution in enumerate(batch, block + CELLS):
                execution.cell = cell
        lease.blocks = tuple(blocks)

    def withdraw(self, lease: HeldLease) -> None:
        """Hide the lease from the supervisor; its blocks stay taken while handlers run."""
        for block in lease.blocks:
            self.words[block + SERIAL] = 0

    def free(self, lease: HeldLease) -> None:
        self.withdraw(lease)
        self._free.extend(lease.blocks)
        lease.blocks = ()

    def extended_to(self, serial: int, lease: HeldLease) -> int:
        if not lease.blocks:
            return 0
        words, block = self.words, lease.blocks[0]
        if words[block + EXTENDED_SERIAL] != serial:
            return 0
        reached = words[block + EXTENDED_TO]
        # While the supervisor wrote, the block may have belonged to another lease: then the serial differs.
        return reached if words[block + EXTENDED_SERIAL] == serial else 0


# -- the supervisor's side -----------------------------------------------------------------------


class PublishedLease(Struct):
    """A lease of a child, as published in its shared memory."""

    serial: int
    alone: bool
    expires_at: int = 0
    begun: dict[str, int] = {}  # job id → started at; a begun job may have ended, and is perhaps not settled
    ended: set[str] = set()  # those begun jobs whose handler has returned
    unbegun: set[str] = set()
    blocks: list[int] = []

    @property
    def running(self) -> dict[str, int]:
        return {job_id: at for job_id, at in self.begun.items() if job_id not in self.ended}


class Reader(_SharedMemory):
    """The supervisor's side: it reads leases, and writes how far it has extended them."""

    is_closed = False

    @property
    def alive_count(self) -> int:
        return self.words[ALIVE_COUNT]

    def leases(self) -> list[PublishedLease]:
        """Read every lease in the store that is published now."""
        return [each for each in self._published() if each.serial < MESSAGES]

    def running_messages(self) -> dict[str, int]:
        """Read which messages of a log have begun and not ended, by the ids of their jobs, with when they began."""
        return {
            job_id: at
            for each in self._published()
            if each.serial >= MESSAGES
            for job_id, at in each.running.items()
        }

    def _published(self) -> list[PublishedLease]:
        leases: dict[int, PublishedLease] = {}
        # (Up to the end of the blocks: the cells of metrics follow.)
        serials = self.words[HEADER + SERIAL : HEADER + self.blocks * BLOCK : BLOCK]
        for index, serial in enumerate(serials.tolist()):
            if serial:
                self._read_block(HEADER + index * BLOCK, serial, leases)
        return list(leases.values())

    def orphaned_leases(self) -> list[PublishedLease]:
        """Read the leases of a dead child, with the one that its last claim may have brought."""
        leases = self.leases()
        claiming = self.words[CLAIMING]
        if claiming and all(lease.serial != claiming for lease in leases):
            leases.append(PublishedLease(claiming, bool(self.words[CLAIMING_ALONE])))
        return leases

    def _read_block(self, block: int, serial: int, leases: dict[int, PublishedLease]) -> None:
        words = self.words
        count, alone, expires_at = words[block + COUNT : block + EXPIRES + 1].tolist()
        count = min(max(count, 0), BLOCK_JOBS)  # a handler may have written anywhere before it crashed
        cells = words[block + CELLS : block + CELLS + count].tolist()
        start = (block + IDS) * WORD
        ids = bytes(self._bytes[start : start + count * ID_BYTES]).decode("ascii", "replace")
        if words[block + SERIAL] != serial:
            return  # freed while we read, and perhaps taken again
        lease = leases.setdefault(serial, PublishedLease(serial, bool(alone)))
        lease.expires_at = max(lease.expires_at, expires_at)
        lease.blocks.append(block)
        for position, cell in enumerate(cells):
            job_id = ids[position * ID_BYTES : (position + 1) * ID_BYTES]
            if not cell:
                lease.unbegun.add(job_id)
                continue
            lease.begun[job_id] = abs(cell)
            if cell < 0:
                lease.ended.add(job_id)

    def extended(self, lease: PublishedLease, expires_at: int) -> None:
        """Publish the new expiry. The child accepts it only with the serial of its current lease."""
        if self.is_closed:  # the child died while the store was extending
            return
        for block in lease.blocks:
            self.words[block + EXTENDED_SERIAL] = 0
            self.words[block + EXTENDED_TO] = expires_at
            self.words[block + EXTENDED_SERIAL] = lease.serial

    def close(self) -> None:
        self.is_closed = True
        if self.metrics is not None:
            self.metrics.close()
        self.words.release()
        mapped = self._bytes.obj
        self._bytes.release()
        assert isinstance(mapped, mmap.mmap)
        mapped.close()
