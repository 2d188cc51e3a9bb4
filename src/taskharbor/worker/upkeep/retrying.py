"""Outages: repeats calls to a store that is away until it answers, and logs the outage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from taskharbor.clock import Clock
from taskharbor.errors import StoreError
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.worker")

T = TypeVar("T")

PAUSE_SECONDS = 0.05  # before the first repeat; each next pause is twice as long
PAUSE_SECONDS_MAX = 2.0
AGAIN_SECONDS = 1.0  # before the same complaint is logged again; each next pause is twice as long
AGAIN_SECONDS_MAX = 60.0


@dataclass
class _Complaint:
    next_at: float
    pause: float


class Outages:
    """Logs the outages of the store that the parts of a worker notice.

    Each part logs a complaint when the store does not answer, and repeats it now and then. When every part that
    complained has its answer, one line says that the store is back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = 0.0
        self._complaints: dict[tuple[str, str | None], _Complaint] = {}

    @property
    def is_away(self) -> bool:
        """Whether any part waits for an answer."""
        return bool(self._complaints)

    def unanswered(self, complaint: str, error: Exception, fields: dict[str, Any] | None = None) -> None:
        """Note that the store did not answer the part with this complaint, and log it if it is due."""
        key, now = _key(complaint, fields), self._clock.monotonic()
        if not self._complaints:
            self._since = now
        known = self._complaints.get(key)
        if known is not None and now < known.next_at:
            return
        pause = AGAIN_SECONDS if known is None else min(2 * known.pause, AGAIN_SECONDS_MAX)
        self._complaints[key] = _Complaint(now + pause, pause)
        about = {**(fields or {}), "error": str(error)}
        if known is not None:
            about["away_seconds"] = round(now - self._since, 3)
        log_line(logger, logging.WARNING, complaint + ": {error}", about)

    def answered(self, complaint: str, fields: dict[str, Any] | None = None) -> None:
        """Note that the store answered the part with this complaint."""
        if not self._complaints:
            return
        known = self._complaints.pop(_key(complaint, fields), None)
        if known is not None and not self._complaints:
            seconds = round(self._clock.monotonic() - self._since, 3)
            # At the level of the complaints, so that a log of warnings also shows the end.
            log_line(logger, logging.WARNING, "the store is back after {seconds} s", {"seconds": seconds})

    async def retry_until_available(
        self,
        ask: Callable[[], Coroutine[Any, Any, T]],
        complaint: str,
        fields: dict[str, Any] | None = None,
        *,
        repeated: type[StoreError] = StoreError,
        raised: tuple[type[StoreError], ...] = (),
    ) -> T:
        """Call `ask` until it succeeds. Repeat it only after a `repeated` error that is not in `raised`."""
        pause = PAUSE_SECONDS
        try:
            while True:
                try:
                    answer = await ask()
                except raised:
                    raise
                except repeated as error:
                    self.unanswered(complaint, error, fields)
                else:
                    self.answered(complaint, fields)
                    return answer
                await self._clock.sleep(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
        except BaseException:  # cancelled, or not an outage: this part no longer waits
            self._complaints.pop(_key(complaint, fields), None)
            raise


def _key(complaint: str, fields: dict[str, Any] | None) -> tuple[str, str | None]:
    return complaint, None if fields is None else fields.get("job")
