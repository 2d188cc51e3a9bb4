"""Ingesting: messages of a log become jobs, and the store keeps the next offset of every partition."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.contract.ingesting import Ingested, MessageBatch
from taskharbor.drivers.memory.enqueue import enqueue
from taskharbor.drivers.memory.handing_over import hand_over
from taskharbor.drivers.memory.store import Store


def ingest(store: Store, batches: Sequence[MessageBatch], now: int) -> list[Ingested]:
    return [_ingest(store, each, now) for each in batches]


def _ingest(store: Store, batch: MessageBatch, now: int) -> Ingested:
    place = (batch.log, batch.partition)
    if store.ingested.get(place) != batch.expected:
        return Ingested(False, store.ingested.get(place), now)
    for group in batch.groups:
        enqueue(store, list(group.jobs()), now)
    hand_over(store, batch.dead, (), now)
    store.ingested[place] = batch.next
    return Ingested(True, batch.next, now)


def ingested(store: Store, log: str, partitions: Sequence[int]) -> dict[int, int]:
    return {each: store.ingested[log, each] for each in partitions if (log, each) in store.ingested}
