"""Log that the event loop was blocked.

An async handler that blocks the loop also holds up the heartbeat. If it blocks for longer than the lease, its job is
lost to another attempt, which blocks again. Only the log can say why.
"""

from __future__ import annotations

import asyncio
import logging
import time

from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.worker")

LOOK_SECONDS = 1.0


async def warn_on_loop_lag(beat_seconds: float) -> None:
    """Log each standstill that may have delayed a heartbeat."""
    while True:
        asleep_at = time.monotonic()
        await asyncio.sleep(min(LOOK_SECONDS, beat_seconds / 2))
        seconds = time.monotonic() - asleep_at
        if seconds >= beat_seconds:
            log_line(
                logger,
                logging.WARNING,
                "the event loop stood still for {seconds} s: an async handler blocks it (declare it with def), or the "
                "process was suspended. Jobs whose lease expires during that time run again",
                {"seconds": round(seconds, 1)},
            )
