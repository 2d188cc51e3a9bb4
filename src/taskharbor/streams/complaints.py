"""Log lines about brokers that refuse or do not answer: one at once, then fewer and fewer, and one when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

AGAIN_SECONDS = 10.0  # before the same complaint is logged again; each next pause is twice as long
AGAIN_SECONDS_MAX = 600.0


class Complaint:
    """One thing that fails again and again. Only one thread uses it."""

    def __init__(self, sentence: str, over: str) -> None:
        self._sentence = sentence  # names {error}
        self._over = over  # names {seconds}
        self._since: float | None = None
        self._next_at = 0.0
        self._pause = AGAIN_SECONDS

    def failed(self, error: object, fields: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since, self._next_at, self._pause = now, now, AGAIN_SECONDS
        if now < self._next_at:
            return
        log_line(logger, logging.WARNING, self._sentence, {**fields, "error": str(error)})
        self._next_at = now + self._pause
        self._pause = min(2 * self._pause, AGAIN_SECONDS_MAX)

    def succeeded(self, fields: Mapping[str, Any]) -> None:
        if self._since is None:
            return
        seconds = round(time.monotonic() - self._since, 1)
        self._since = None
        # At the level of the complaint, so that a log of warnings also shows the end.
        log_line(logger, logging.WARNING, self._over, {**fields, "seconds": seconds})
