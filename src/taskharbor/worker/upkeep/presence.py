"""Presence: records in the store which workers are running, so that `stats` shows idle workers too."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from taskharbor.clock import Clock, wait_for
from taskharbor.drivers.base import Driver, WorkerRecord
from taskharbor.drivers.capabilities import Records
from taskharbor.drivers.contract.reading import PRESENCE_LASTS
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.errors import StoreError
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.worker")

FIRST_SECONDS = 0.5  # a drain that is over by then is not recorded
SIGN_ON_SECONDS = 15.0  # between two records: rare, since an idle worker should cost almost nothing
LASTS = PRESENCE_LASTS  # longer than three intervals, so that a missed record does not matter
SIGN_OFF_SECONDS = 0.5  # how long a stopping worker waits for the store


class Presence:
    def __init__(
        self,
        driver: Driver,
        clock: Clock,
        who: Callable[[], Sequence[WorkerRecord]],
        *,
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._who = who
        self._first_seconds = first_seconds
        self._signed_on: set[str] = set()
        self._is_due = True  # False right after `sign_on`
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Record the change now instead of with the next regular record."""
        self._changed.set()

    async def sign_on(self) -> None:
        """Record the worker before its first claim: others put aside what they meet only for workers they know."""
        if Records.offered_by(self._driver) is not None:
            self._first_seconds, self._is_due = 0.0, not await self._record()

    async def run(self) -> None:
        if Records.offered_by(self._driver) is None:
            return
        if self._first_seconds:
            await self._clock.sleep(self._first_seconds)
        while True:
            self._changed.clear()
            if self._is_due:
                await self._record()
            self._is_due = True
            with suppress(TimeoutError):
                seconds = SIGN_ON_SECONDS * random.uniform(0.85, 1.0)
                await wait_for(self._clock, self._changed.wait(), seconds)

    async def sign_off(self) -> None:
        """Remove every worker that has signed on."""
        if self._signed_on:
            with suppress(StoreError, TimeoutError):
                await asyncio.wait_for(WORKERS.drop(self._driver, sorted(self._signed_on)), SIGN_OFF_SECONDS)

    async def _record(self) -> bool:
        """Record the running workers, and return whether it worked; try only once, since no job depends on it."""
        there = self._who()
        names = {worker.name for worker in there}
        gone = self._signed_on - names
        self._signed_on |= names  # those that are gone stay on the list until the store has dropped them
        try:
            if there:
                await WORKERS.put(self._driver, there, LASTS)
            if gone:
                await WORKERS.drop(self._driver, sorted(gone))
                self._signed_on -= gone
        except StoreError as error:
            log_line(
                logger, logging.DEBUG, "could not record the running workers: {error}", {"error": str(error)}
            )
            return False
        return True
