"""Ingesting: messages of a log become jobs, and the store keeps the next offset of every partition."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.contract.ingesting import Ingested, MessageBatch
from taskharbor.drivers.sqlite.enqueue import ENQUEUE, enqueue_messages
from taskharbor.drivers.sqlite.handing_over import hand_over
from taskharbor.drivers.sqlite.session import Session


def ingest(session: Session, batches: Sequence[MessageBatch]) -> list[Ingested]:
    return [_ingest(session, each) for each in batches]


def _ingest(session: Session, batch: MessageBatch) -> Ingested:
    if not _move(session, batch):
        at = ingested(session, batch.log, [batch.partition])
        return Ingested(False, at.get(batch.partition), session.now)
    for group in batch.groups:
        enqueue_messages(session, group)
    hand_over(session, batch.dead, ())
    return Ingested(True, batch.next, session.now)


def _move(session: Session, batch: MessageBatch) -> bool:
    place = (batch.log, batch.partition)
    if batch.expected is None:
        done = session.execute(ENQUEUE["begin_offset"], (*place, batch.next, session.now))
    else:
        done = session.execute(ENQUEUE["move_offset"], (batch.next, session.now, *place, batch.expected))
    return bool(done.rowcount)


def ingested(session: Session, log: str, partitions: Sequence[int]) -> dict[int, int]:
    rows = [(each, session.one(ENQUEUE["ingested"], (log, each))) for each in partitions]
    return {partition: row[0] for partition, row in rows if row is not None}
