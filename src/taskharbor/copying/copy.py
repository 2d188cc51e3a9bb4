"""`copy_store`: reads rows of every kind in slices, stores them elsewhere, and compares both sides at the end.

A copy that was interrupted can be repeated: rows that are equal are skipped, and a target that has rows of its own is
refused before anything is written. What a worker would claim is copied last, so that a copy that
was interrupted leaves no job to run.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import Driver
from taskharbor.drivers.capabilities import Copying, Records, Upkeep
from taskharbor.drivers.contract.copying import KINDS, Row
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.errors import ConfigurationError

SLICE_ROWS = 1_000
SLICE_BYTES = 4 * 1_048_576  # characters of text in one slice
LATE_DEPENDENCIES_MAX = 1_000_000
_MODULUS = 2**128

_encode = msgspec.msgpack.Encoder().encode


class CopiedKind(Struct, frozen=True):
    """What became of the rows of one kind."""

    kind: str
    rows: int  # in the source, and in the target at the end
    new: int  # stored by this copy; the others were there already
    checksum: str


class CopyReport(Struct, frozen=True):
    kinds: tuple[CopiedKind, ...]

    @property
    def rows(self) -> int:
        return sum(kind.rows for kind in self.kinds)

    @property
    def new(self) -> int:
        return sum(kind.new for kind in self.kinds)


class Sum(NamedTuple):
    """How many rows there are, and a checksum that does not depend on their order."""

    rows: int = 0
    checksum: int = 0

    def plus(self, rows: list[Row]) -> Sum:
        digests = (hashlib.blake2b(_encode(row), digest_size=16).digest() for row in rows)
        added = sum(int.from_bytes(digest) for digest in digests)
        return Sum(self.rows + len(rows), (self.checksum + added) % _MODULUS)


Progress = Callable[[str, int, int], None]
"""Called after each slice with the kind, the rows read so far, and those of them that were new."""


async def copy_store(
    source: Driver, target: Driver, progress: Progress = lambda kind, rows, new: None
) -> CopyReport:
    """Copy everything that `source` keeps into `target`, and compare both; raise `ConfigurationError` if they differ.

    The target is empty or has a part of the same copy; one that has been used is refused before anything is written.
    No worker may run on either, and nothing may change in the source meanwhile: that is checked at the end.
    """
    origin, copy = Copying.of(source), Copying.of(target)
    await source.open()
    await target.migrate()
    await _refuse_in_use(source, "copied from")
    await _refuse_in_use(target, "copied to")
    upkeep = Upkeep.offered_by(source)
    while upkeep is not None and await upkeep.catch_up(LATE_DEPENDENCIES_MAX):
        pass
    await _refuse_used(origin, copy)
    first: dict[str, Sum] = {}
    new: dict[str, int] = {}
    for kind in KINDS:
        total, stored = Sum(), 0
        async for rows in _slices(origin, kind):
            stored += await copy.import_rows(kind, rows)
            total = total.plus(rows)
            progress(kind, total.rows, stored)
        first[kind], new[kind] = total, stored
    await copy.finish_import()
    await _refuse_in_use(source, "copied from")
    await _compare(origin, copy, first)
    return CopyReport(
        tuple(
            CopiedKind(kind, total.rows, new[kind], f"{total.checksum:032x}") for kind, total in first.items()
        )
    )


async def _slices(store: Copying, kind: str) -> AsyncIterator[list[Row]]:
    after: Row | None = None
    while rows := list(await store.export_rows(kind, after, SLICE_ROWS, SLICE_BYTES)):
        yield rows
        after = rows[-1]


async def _sum(store: Copying, kind: str) -> Sum:
    total = Sum()
    async for rows in _slices(store, kind):
        total = total.plus(rows)
    return total


async def _compare(origin: Copying, copy: Copying, first: dict[str, Sum]) -> None:
    """Read both stores once more: the source must not have changed, and the target must have the same rows."""
    changed = [kind for kind, total in first.items() if await _sum(origin, kind) != total]
    if changed:
        raise ConfigurationError(
            f"the store changed while it was copied ({', '.join(changed)}), so the copy may lack something; "
            "stop what enqueues and operates, and copy again: what is equal is skipped"
        )
    for kind, total in first.items():
        found = await _sum(copy, kind)
        if found == total:
            continue
        raise ConfigurationError(
            f"the copy differs: it has {counted(found.rows, 'row')} of {kind} with checksum {found.checksum:032x}, "
            f"and the source has {total.rows:,} with {total.checksum:032x}; copy into an empty store"
        )


async def _refuse_in_use(driver: Driver, role: str) -> None:
    leases = await driver.leases()
    records = Records.offered_by(driver)
    workers = [] if records is None else await records.records(RecordKind.WORKERS)
    if not leases and not workers:
        return
    found = [
        f"{counted(len(things), name)}" for things, name in ((workers, "worker"), (leases, "lease")) if things
    ]
    names = sorted({record.key for record in workers} | {lease.worker for lease in leases})[:5]
    raise ConfigurationError(
        f"the store that is {role} has {' and '.join(found)} ({', '.join(names)}); stop the workers, wait until "
        f"{agreeing(len(leases), 'the lease has', 'the leases have')} expired, and let one worker drain what was lost: "
        "`taskharbor doctor` lists what is left"
    )


async def _refuse_used(origin: Copying, copy: Copying) -> None:
    """Refuse a target that has anything of its own, before a row is written.

    If it worked on a copy, the jobs that it finished would come back as jobs to run.
    """
    for kind in KINDS:
        async for rows in _slices(copy, kind):
            own = await origin.missing_rows(kind, rows)
            if not own:
                continue
            named = ", ".join(str(value) for value in KINDS[kind].key_of(own[0]))[:200]
            raise ConfigurationError(
                f"the store that is copied to has been used: {kind} has a row that the source does not have, or has "
                f"with other values ({named}). Nothing was copied; copy into an empty store"
            )
