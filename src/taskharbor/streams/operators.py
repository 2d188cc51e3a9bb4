"""What operators have said about the tasks of a topic and about its queue: holds, and whether the queue is paused.

A claim on a store learns of both from the store. Messages are claimed from a log, so the stream's worker asks now and
then.
"""

from __future__ import annotations

from collections.abc import Callable

from taskharbor.drivers.base import Driver
from taskharbor.drivers.capabilities import Audit, Holds
from taskharbor.errors import StoreError
from taskharbor.rules.aside import hold_label

LOOK_SECONDS = 1.0


class Operators:
    def __init__(self, store: Driver, queue: str, changed: Callable[[], None]) -> None:
        self._store = store
        self._queue = queue
        self._changed = changed
        self.holds: frozenset[str] = frozenset()
        self.is_paused = True  # until the store has said otherwise

    @property
    def paused(self) -> frozenset[str]:
        return frozenset({self._queue}) if self.is_paused else frozenset()

    async def watch(self) -> None:
        """Look again and again, for as long as the worker runs. While the store is away, its last answer counts."""
        while True:
            try:
                await self._look()
            except StoreError:
                pass  # the parts that need the store log its outage
            await self._store.clock.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        holds, pauses = Holds.offered_by(self._store), Audit.offered_by(self._store)
        held = [] if holds is None else await holds.holds()
        paused = [] if pauses is None else await pauses.pauses()
        now = frozenset(hold_label(each.kind, each.name) for each in held)
        is_paused = any(each.queue == self._queue for each in paused)
        if (now, is_paused) != (self.holds, self.is_paused):
            self.holds, self.is_paused = now, is_paused
            self._changed()
