"""A process that reads a topic, for tests that kill it. A line of its file is the begin or the end of an execution.

How it reads is an order, with retries in the store, or `topics`. A poisonous message is dead at once in the store, and
after all attempts in topics.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

from taskharbor import Context, Harbor, RetryPolicy
from taskharbor.streams import StreamWorker

url, bootstrap, topic, group, how, file, name = sys.argv[1:8]
harbor = Harbor(url)
told = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def tell(**what: object) -> None:
    # One call, so that lines of several processes stay whole.
    os.write(told, (json.dumps(what) + "\n").encode())


class Losses(logging.Handler):
    """Notes when others have partitions of this process without its last commit."""

    SIGNS = ("went to another worker", "over; what this one had begun", "what they cover comes again")

    def emit(self, record: logging.LogRecord) -> None:
        if any(sign in record.getMessage() for sign in self.SIGNS):
            tell(at="lost", pid=os.getpid())


logging.basicConfig(level=logging.WARNING)
logging.getLogger("taskharbor.stream").addHandler(Losses())


@harbor.task(name="note")
async def note(ctx: Context, n: int) -> None:
    tell(n=n, at="begin", pid=os.getpid(), retry=ctx.retry_count)
    # Some are slow: at any moment, much is finished beyond the committed offset.
    await asyncio.sleep(0.3 if n % 40 == 3 else 0.002)
    if n % 100 == 99:
        tell(n=n, at="failed", pid=os.getpid(), retry=ctx.retry_count)
        raise ValueError("unavailable: poisonous" if how == "topics" else "validation error: poisonous")
    if n % 20 == 7 and ctx.retry_count == 0:
        tell(n=n, at="failed", pid=os.getpid(), retry=0)
        raise TimeoutError("timeout: fails once")
    tell(n=n, at="end", pid=os.getpid(), retry=ctx.retry_count)


settings = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 500}
options: dict[str, Any] = {
    "order": how,
    "retry": RetryPolicy(max_attempts=3, initial=0.05, jitter=None, never_retry_on=["validation error"]),
}
if how == "topics":
    StreamWorker._tier_seconds = 0.05
    settings["transaction.timeout.ms"] = 3_000
    # The first wait is a tier and a hop, the second a rest in memory.
    options = {
        "retries": "topics",
        "retry": RetryPolicy(max_attempts=3, initial=0.08, maximum=0.08, jitter=None),
    }
worker = StreamWorker(
    harbor,
    brokers=bootstrap,
    topic=topic,
    group=group,
    concurrency=20,
    name=name or None,
    settings=settings,
    **options,
)
worker.run_sync()
