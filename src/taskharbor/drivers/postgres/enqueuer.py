"""The ways to store jobs: announced in the same statement, many in one statement, in turn, or each by itself."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.base import AlikeJobs, Enqueued, jobs_size
from taskharbor.drivers.postgres import enqueue
from taskharbor.drivers.postgres.changes import Changes
from taskharbor.drivers.postgres.connections import ALONE_BYTES, Lane
from taskharbor.drivers.postgres.enqueue_batcher import EnqueueBatcher
from taskharbor.drivers.postgres.opened_store import OpenedStore
from taskharbor.records import NewJob


class Enqueuer:
    """Stores jobs in the cheapest way that fits them. Plain jobs come through `gathering`."""

    def __init__(self, store: OpenedStore, changes: Changes, *, listen: bool) -> None:
        self._store = store
        self._changes = changes
        self._listen = listen
        self.gathering = EnqueueBatcher(self._store_plain)

    async def _store_plain(self, jobs: Sequence[NewJob], now: int | None) -> list[Enqueued]:
        if isinstance(jobs, AlikeJobs) and len(jobs) > enqueue.BATCH_MAX:
            return await self._store_in_turn(jobs, now)
        if len(jobs) > 1 and jobs_size(jobs) > ALONE_BYTES:
            return await self.store_each(jobs, now)
        announced = False
        if len(jobs) == 1 and self._listen and (sender := self._changes.sender_if_quiet()) is not None:
            [job], channel = jobs, self._changes.channel
            stored, announced = await self._store.run(
                Lane.REST, lambda s: enqueue.enqueue_announced(s, job, channel, sender), now
            )
        else:
            stored = await self._store.run(Lane.REST, lambda s: enqueue.enqueue_plain(s, jobs), now)
        if stored is None:
            return await self.store_each(jobs, now)
        if announced:
            self._changes.post()
        else:
            self._changes.tell(urgent=True)
        return stored

    async def _store_in_turn(self, jobs: AlikeJobs, now: int | None) -> list[Enqueued]:
        try:
            stored = await self._store.transact(Lane.REST, lambda s: enqueue.enqueue_in_turn(s, jobs), now)
        except enqueue.NotNew:
            return await self.store_each(jobs, now)
        self._changes.tell(urgent=True)
        return stored

    async def store_each(self, jobs: Sequence[NewJob], now: int | None) -> list[Enqueued]:
        stored = await self._store.transact(Lane.REST, lambda s: enqueue.enqueue(s, jobs), now)
        self._changes.tell(urgent=True)
        return stored
