"""Ingesting: messages of a log become jobs, and the store keeps the next offset of every partition."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.contract.ingesting import Ingested, MessageBatch
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.enqueue import columns, enqueue_messages
from taskharbor.drivers.postgres.handing_over import hand_over

Place = tuple[str, int]  # the log and the partition


async def ingest(session: Session, batches: Sequence[MessageBatch]) -> list[Ingested]:
    """Inside a transaction: the offsets that are as expected move, and then the jobs of their batches are stored."""
    moved, now = await _move(session, batches)
    session = session.at(now)
    stored = [each for each in batches if (each.log, each.partition) in moved]
    groups = [group for each in stored for group in each.groups]
    if groups:
        await enqueue_messages(session, groups)
    dead = [message for each in stored for message in each.dead]
    if dead:
        await hand_over(session, dead, ())
    refused = [each for each in batches if (each.log, each.partition) not in moved]
    at = {
        place: next_offset
        for each in refused
        for place, next_offset in (await _offsets(session, each.log, [each.partition])).items()
    }
    return [
        Ingested(True, each.next, now)
        if (each.log, each.partition) in moved
        else Ingested(False, at.get((each.log, each.partition)), now)
        for each in batches
    ]


async def _move(session: Session, batches: Sequence[MessageBatch]) -> tuple[set[Place], int]:
    """Move the offsets that are as expected; return which, and the time."""
    ordered = sorted(batches, key=lambda each: (each.log, each.partition))
    if len(ordered) > 1:  # two readers that meet in several partitions must not wait for each other crosswise
        places = [(each.log, each.partition) for each in ordered]
        await session.do("lock_offsets", *columns(places))
    given = [(each.log, each.partition, each.expected, each.next) for each in ordered]
    rows = await session.rows("move_offsets", *columns(given), session.given_now)
    if not rows:
        return set(), await session.now()
    return {(row["log"], row["partition"]) for row in rows}, rows[0]["now"]


async def _offsets(session: Session, log: str, partitions: Sequence[int]) -> dict[Place, int]:
    rows = await session.rows("ingested", log, list(partitions))
    return {(log, row["partition"]): row["next"] for row in rows}


async def ingested(session: Session, log: str, partitions: Sequence[int]) -> dict[int, int]:
    known = await _offsets(session, log, partitions)
    return {partition: next_offset for (_, partition), next_offset in known.items()}
