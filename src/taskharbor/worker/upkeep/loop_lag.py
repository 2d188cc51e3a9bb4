"""Log that the event loop was blocked.

An async handler that blocks the loop also holds up the heartbeat. If it blocks for longer than the lease, its job is
lost to another attempt, which blocks again. Only the log can say why.
"""

from __future__ import annotations

import logging

from taskharbor.telemetry.logs import log_line
from taskharbor.worker.upkeep.vitals import LOOK_SECONDS, LoopLag

logger = logging.getLogger("taskharbor.worker")


async def warn_on_loop_lag(lag: LoopLag, beat_seconds: float) -> None:
    """Look at the event loop again and again, and log each standstill that may have delayed a heartbeat."""
    while True:
        seconds = await lag.look(min(LOOK_SECONDS, beat_seconds / 2))
        if seconds >= beat_seconds:
            log_line(
                logger,
                logging.WARNING,
                "the event loop stood still for {seconds} s: an async handler blocks it (declare it with def), or the "
                "process was suspended. Jobs whose lease expires during that time run again",
                {"seconds": round(seconds, 1)},
            )
