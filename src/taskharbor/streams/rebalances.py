"""Partitions that come and go. The consumer's thread waits for these steps, which run on the loop of the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from taskharbor.clock import wait_for
from taskharbor.drivers.base import Claimed
from taskharbor.drivers.contract.handing_over import NotOwner
from taskharbor.settle_batch import REFUSALS
from taskharbor.streams.consumer import Assigned, Commit
from taskharbor.streams.first import FirstMessages
from taskharbor.streams.jobs import Held
from taskharbor.streams.lines import BLOCKED_MAX, Order
from taskharbor.streams.offsets import decode
from taskharbor.streams.parts import Parts
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

HAND_OVER_SECONDS = 5.0  # for what runs on when its partition goes away


class Rebalances:
    def __init__(self, topic: str, parts: Parts, first: FirstMessages, revoke_seconds: float) -> None:
        self._topic = topic
        self._taken, self._lines, self._handing, self._jobs, self._clock = parts
        self._first = first
        self._revoke_seconds = revoke_seconds
        self.is_revoking = False  # partitions go away, and their handlers may end
        self._has_workers = True  # without any, what was begun never ends
        # Ends what the executor has not begun of the partitions that go away; the worker sets it.
        self.hand_back: Callable[[Callable[[Claimed], bool]], None] = lambda unwanted: None

    async def assigned(self, partitions: Sequence[Assigned]) -> None:
        """Learn what is finished of them, before the first message is taken."""
        for each in partitions:
            await self._handing.own(
                each.partition
            )  # from here on the store refuses what its last owner hands over
            committed = each.committed or 0
            finished = decode(committed, each.metadata)
            finished |= await self._handing.offsets_from(each.partition, committed)
            if self._lines.order is not Order.NONE:
                span = self._lines.span_of(each.partition)
                self._lines.drop([each.partition])
                self._lines.assigned(
                    each.partition, await self._handing.backlogs_between(*span, BLOCKED_MAX + 1)
                )
            self._taken.begin(each.partition, each.committed, finished, self._jobs.log)

    async def revoked(self, partitions: Sequence[int]) -> list[Commit]:
        """Let what runs end, hand over what does not in time, and say what to commit."""
        gone = frozenset(partitions)
        self.is_revoking = True
        self._drop_waiting(gone)
        deadline = self._clock.monotonic() + self._revoke_seconds
        while self._has_workers and (running := self._taken.of(gone)):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                await self._hand_over_running(running)
                break
            self._taken.finished.clear()
            try:
                await wait_for(self._clock, self._taken.finished.wait(), left)
            except TimeoutError:
                continue
        commits = [each for each in self._taken.to_commit() if each.partition in gone]
        self._forget(gone)
        self.is_revoking = False
        return commits

    def workers_ended(self) -> None:
        """Wait for no handler any more, and hand nothing over: what is not finished comes again."""
        self._has_workers = False
        self._taken.finished.set()

    def lost(self, partitions: Sequence[int]) -> None:
        """Begin nothing more of these. What runs goes on, and may overlap with the next execution."""
        gone = frozenset(partitions)
        self._drop_waiting(gone)
        self._forget(gone)

    async def _hand_over_running(self, running: Sequence[Held]) -> None:
        """Hand over messages whose handlers still run, uncounted: the handlers may overlap with the next attempt."""
        jobs = [
            replace(self._jobs.unattempted(each), backlog=self._lines.place_of(each, opens=True))
            for each in running
        ]
        try:
            await wait_for(self._clock, self._handing.patiently(jobs), HAND_OVER_SECONDS)
        except (TimeoutError, NotOwner, *REFUSALS) as error:
            log_line(
                logger,
                logging.WARNING,
                "{messages} messages still run and could not be handed over; they come again from {topic}: {error}",
                {"messages": len(running), "topic": self._topic, "error": str(error) or "the store is away"},
            )
            return
        for each in running:
            self._taken.pop(each.claimed.id)
        self._taken.finish([each.place for each in running])

    def _drop_waiting(self, gone: Collection[int]) -> None:
        self._taken.leave(gone)
        self._first.drop(gone)
        self._lines.drop(gone)
        self.hand_back(lambda claimed: self._taken.is_of(claimed.id, gone))

    def _forget(self, gone: Collection[int]) -> None:
        self._taken.forget(gone)
        self._first.drop(gone)
        self._lines.drop(gone)
