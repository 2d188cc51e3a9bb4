"""Vitals: the memory of this process, and how late its event loop runs."""

from __future__ import annotations

import asyncio
import time

from taskharbor.drivers.contract.reading import WorkerVitals
from taskharbor.worker.upkeep.rss import resident_mib

LOOK_SECONDS = 1.0


class LoopLag:
    """How late the event loop runs its timers: the worst of some looks."""

    def __init__(self) -> None:
        self._worst = 0.0

    async def look(self, seconds: float = LOOK_SECONDS) -> float:
        """Sleep for this time, and return how long it took."""
        asleep_at = time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - asleep_at
        self._worst = max(self._worst, took - seconds)
        return took

    def vitals(self) -> WorkerVitals:
        """Return how this process does, with the worst lag since this was asked before."""
        worst, self._worst = self._worst, 0.0
        return WorkerVitals(resident_mib(), round(worst * 1_000))
