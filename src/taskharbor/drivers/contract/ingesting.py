"""Ingesting: the messages of a log become jobs, and the store keeps how far it has come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.drivers.contract.handing_over import HandedOver
from taskharbor.records import NewJob


class AlikeMessages(Struct, frozen=True):
    """Jobs that differ in their ids, payloads and metas only, as columns instead of an object for each."""

    shared: NewJob  # its own id, payload and meta mean nothing
    ids: Sequence[str]
    payloads: Sequence[str]
    metas: Sequence[str | None]

    def jobs(self) -> Iterator[NewJob]:
        for job_id, payload, meta in zip(self.ids, self.payloads, self.metas, strict=True):
            yield replace(self.shared, id=job_id, payload=payload, meta=meta)


class MessageBatch(Struct, frozen=True):
    """Consecutive messages of one partition, and the offset that its log moves on to with them.

    `log` names the cluster, the topic and the group. `expected` is the offset that the store has to be at; None if it
    must know nothing of this partition yet. The ids of the jobs are new: nothing but the offset keeps a message from
    being stored twice.
    """

    log: str
    partition: int
    expected: int | None
    next: int
    groups: Sequence[AlikeMessages] = ()
    dead: Sequence[HandedOver] = ()  # messages that no job could be made of


class Ingested(Struct, frozen=True):
    """What became of a batch. `next` is the offset that the store is at now."""

    stored: bool
    next: int | None
    at: int  # the store's time
