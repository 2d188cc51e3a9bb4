"""The store that messages are handed over to: asked again while it is away, and never stopped by one bad message."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from taskharbor.drivers.base import Driver
from taskharbor.drivers.capabilities import HandOver
from taskharbor.drivers.contract.handing_over import HandedOver, HandOverAnswer, Owner
from taskharbor.records import State
from taskharbor.settle_batch import REFUSALS
from taskharbor.streams.first import First
from taskharbor.streams.jobs import MessageJobs
from taskharbor.streams.offsets import AHEAD_MAX
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.worker.upkeep.retrying import Outages

T = TypeVar("T")

BACKLOGS_A_ROUND = 1_000
_TAKEN = (HandOverAnswer.STORED, HandOverAnswer.KNOWN)


class Handing:
    def __init__(self, store: Driver, outages: Outages, queue: str, jobs: MessageJobs) -> None:
        self._verbs = HandOver.of(store)
        self._outages = outages
        self._queue = queue
        self._jobs = jobs
        self.meter: Meter | None = None  # counts what is handed over; the worker sets it
        self._owners: dict[str, Owner] = {}  # by partition, as the store names it
        self._cursor: str | None = None  # of the rounds over the backlogs

    async def own(self, partition: int) -> None:
        """Become the one whose hand-overs of this partition the store takes."""
        name = self._jobs.keys.partition(partition)
        self._owners[name] = await self._until_there(partial(self._verbs.own, name))

    async def now(self, jobs: Sequence[HandedOver]) -> list[HandOverAnswer]:
        """Hand over. Raises while the store is away: the caller asks again. Raises `NotOwner`."""
        partitions = {self._jobs.keys.partition_of(each.job.idempotency_key or "") for each in jobs}
        owners = [self._owners[each] for each in sorted(partitions) if each in self._owners]
        answers = await self._verbs.hand_over(jobs, owners=owners)
        self._count([each for each, answer in zip(jobs, answers, strict=True) if answer in _TAKEN])
        return answers

    def _count(self, jobs: Sequence[HandedOver]) -> None:
        if self.meter is not None:
            self.meter.messages_handed_over(len(jobs), sum(each.to is State.DEAD for each in jobs))

    async def patiently(self, jobs: Sequence[HandedOver]) -> list[HandOverAnswer]:
        """Hand over, as soon as the store is there."""
        return await self._until_there(partial(self.now, jobs))

    async def each(self, batch: Sequence[First]) -> list[HandOverAnswer]:
        """Hand over all of these. Of one that the store refuses, a dead job is stored instead."""
        try:
            return await self.patiently([each.handed for each in batch])
        except REFUSALS as error:
            if len(batch) > 1:
                return [answer for one in batch for answer in await self.each([one])]
            [each] = batch
            dead = self._jobs.unkeepable(each.place, each.handed.job.task, error)
            each.handed = replace(dead, backlog=each.handed.backlog)
            return await self.patiently([each.handed])

    async def backlogs_between(self, first: str, last: str, limit: int) -> list[str]:
        """The keys of the backlogs that the store has, in this span."""
        return await self._until_there(partial(self._verbs.backlogs, first, last, limit))

    async def advance(self) -> int:
        """Let backlogs go on whose first job has ended; how many jobs they released."""
        advanced = await self._until_there(partial(self._verbs.advance, BACKLOGS_A_ROUND, self._cursor))
        self._cursor = advanced.cursor
        return len(advanced.released)

    async def offsets_from(self, partition: int, offset: int) -> set[int]:
        """Which offsets of a partition, from this one on, stand in the store."""
        keys = self._jobs.keys
        first, last = keys.at(partition, offset), keys.at(partition, 10**19)
        found = await self._until_there(partial(self._verbs.handed_over, self._queue, first, last, AHEAD_MAX))
        return {keys.offset_of(key) for key in found}

    async def repeatedly(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call a step that hands over until the store is there."""
        return await self._until_there(step)

    async def _until_there(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._outages.retry_until_available(ask, "messages cannot be handed over to the store")
