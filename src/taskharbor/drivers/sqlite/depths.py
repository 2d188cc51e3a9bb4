"""Depths: how many ready and scheduled jobs each queue has, counted with a scan, a slice after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from taskharbor.drivers.sqlite.engine import Engine
from taskharbor.drivers.sqlite.places import READS
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.stored import is_text

T = TypeVar("T")

SLICE_ROWS = 50_000  # some 30 ms: every read of this process waits for its turn on one connection
KEPT_SECONDS = 1.0

Depth = tuple[int, int, int | None]  # ready, scheduled, the due time of the first ready one
Depths = dict[str, Depth]  # by queue

_BEFORE_ALL: tuple[Any, ...] = (-1, "", 0, 0, "")
_AFTER_ALL: tuple[Any, ...] = (2, "", 0, 0, "")


class _Counting:
    """A scan of the runnable jobs that is under way."""

    def __init__(self) -> None:
        self.depths: Depths = {}
        self._reached = _BEFORE_ALL

    def goes_on(self, session: Session) -> bool:
        """Count the next slice, and return whether there is another one."""
        end = session.one(READS["ready_slice_end"], (*self._reached, SLICE_ROWS - 1))
        rows = session.execute(READS["ready_slice"], (session.now, *self._reached, *(end or _AFTER_ALL)))
        for queue, ready, scheduled, oldest in rows:
            if type(queue) is str and is_text(queue):
                before = self.depths.get(queue, (0, 0, None))
                first = min((at for at in (before[2], oldest) if at is not None), default=None)
                self.depths[queue] = (before[0] + ready, before[1] + scheduled, first)
        if end is not None:
            self._reached = end
        return end is not None


class CountedDepths:
    """The depths of one store. Those that take more than one slice are kept for a second.

    Up to a slice they are counted anew each time, in one snapshot with what else is read, so that callers see their own
    last change.
    """

    def __init__(self) -> None:
        self._kept: Depths | None = None
        self._until = 0.0

    async def read(self, engine: Engine, now: int | None, operation: Callable[[Session, Depths], T]) -> T:
        """Run the operation with the depths. Between two slices, other reads have their turn."""
        if now is None and self._kept is not None and time.monotonic() < self._until:
            kept = self._kept
            return await engine.read(lambda s: operation(s, kept), now)
        counting = _Counting()

        def read_on(session: Session) -> tuple[T] | None:
            return None if counting.goes_on(session) else (operation(session, counting.depths),)

        slices = 1
        while (answer := await engine.read(read_on, now)) is None:
            slices += 1
        if now is None and slices > 1:
            self._kept, self._until = counting.depths, time.monotonic() + KEPT_SECONDS
        return answer[0]

    def forget(self) -> None:
        """An operator has changed many of them at once, and will want to see it."""
        self._kept = None
