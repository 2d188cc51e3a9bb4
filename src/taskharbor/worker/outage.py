"""Outages: a store that is away is asked again until it answers. Every verb can be repeated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from taskharbor.clock import Clock
from taskharbor.errors import StoreError

logger = logging.getLogger("taskharbor.worker")

T = TypeVar("T")

PAUSE_SECONDS = 0.05  # before it is asked again; each next one is twice as long
PAUSE_SECONDS_MAX = 2.0


async def until_answered(
    clock: Clock,
    ask: Callable[[], Coroutine[Any, Any, T]],
    complaint: str,
    fields: dict[str, Any] | None = None,
) -> T:
    """What the store answers in the end; each time that it does not, the log has the complaint."""
    pause = PAUSE_SECONDS
    while True:
        try:
            return await ask()
        except StoreError as error:
            logger.warning(complaint, extra={"fields": {**(fields or {}), "error": str(error)}})
        await clock.sleep(pause)
        pause = min(pause * 2, PAUSE_SECONDS_MAX)
