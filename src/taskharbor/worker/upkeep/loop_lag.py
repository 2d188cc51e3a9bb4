"""Log that the event loop was blocked.

An async handler that blocks it holds up the heartbeat as well. For longer than the lease, its job is lost to another
attempt, which does the same again: nothing in the store could say why.
"""

from __future__ import annotations

import asyncio
import logging
import time

from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.worker")

LOOK_SECONDS = 1.0


async def warn_on_loop_lag(beat_seconds: float) -> None:
    """A standstill is worth a line when a heartbeat may have fallen out for it."""
    while True:
        asleep_at = time.monotonic()
        await asyncio.sleep(min(LOOK_SECONDS, beat_seconds / 2))
        seconds = time.monotonic() - asleep_at
        if seconds >= beat_seconds:
            log_line(
                logger,
                logging.WARNING,
                "the event loop stood still for {seconds} s: an async handler blocks it (declare it with def), or the "
                "process was suspended. Jobs whose lease ends meanwhile run again",
                {"seconds": round(seconds, 1)},
            )
