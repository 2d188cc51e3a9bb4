"""`CancelWatch`: finds requests to cancel between two heartbeats, so that they reach a handler within a second."""

from __future__ import annotations

import logging

from taskharbor.clock import Clock
from taskharbor.drivers.base import JobSource
from taskharbor.errors import StoreError
from taskharbor.worker.pipeline.lease_keeper import LeaseKeeper
from taskharbor.worker.pipeline.leases import HeldLeases

logger = logging.getLogger("taskharbor.worker")

LOOK_SECONDS = 0.5  # between two looks
AWAY_SECONDS = (
    5.0  # the same while the store is away; the next heartbeat reports every request that is still open
)


class CancelWatch:
    """Asks about the worker's own leases, and reads the store only after the driver has learnt of a request.

    It reads twice after each request. At the first look the claim of the job may still be under way, so this worker
    does not know its lease yet.
    """

    def __init__(
        self, driver: JobSource, *, leases: HeldLeases, lease_keeper: LeaseKeeper, clock: Clock
    ) -> None:
        self._driver = driver
        self._leases = leases
        self._lease_keeper = lease_keeper
        self._clock = clock
        self._latest_mark: int | None = None
        self._mark_before: int | None = None

    async def run(self) -> None:
        pause = LOOK_SECONDS
        while True:
            await self._clock.sleep(pause)
            try:
                await self.look()
                pause = LOOK_SECONDS
            except StoreError as error:
                logger.debug("the store did not report requests to cancel: %s", error)
                pause = AWAY_SECONDS

    async def look(self) -> None:
        tokens = [lease.token for lease in self._leases.all()]
        if not tokens:
            return
        requests = await self._driver.cancel_requests(tokens, self._mark_before)
        self._mark_before, self._latest_mark = self._latest_mark, requests.mark
        self._lease_keeper.heed_cancels(requests.jobs)
