"""A process that reads a topic with `retries="topics"`, for tests that kill it. A line of its file is an execution."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from taskharbor import Context, Harbor, RetryPolicy
from taskharbor.streams import StreamWorker

bootstrap, topic, group, file, name = sys.argv[1:6]
harbor = Harbor("memory://")
told = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def tell(**what: object) -> None:
    # One call, so that lines of several processes stay whole.
    os.write(told, (json.dumps(what) + "\n").encode())


@harbor.task(name="note")
async def note(ctx: Context, n: int) -> None:
    tell(n=n, at="begin", retry=ctx.retry_count)
    await asyncio.sleep(0.002)
    if n % 100 == 99:
        raise ValueError("unavailable: poisonous")
    if n % 20 == 7 and ctx.retry_count == 0:
        raise TimeoutError("timeout: fails once")
    tell(n=n, at="end", retry=ctx.retry_count)


StreamWorker._tier_seconds = 0.05
worker = StreamWorker(
    harbor,
    brokers=bootstrap,
    topic=topic,
    group=group,
    concurrency=20,
    retries="topics",
    name=name or None,
    # The first wait is a tier and a hop, the second a rest in memory.
    retry=RetryPolicy(max_attempts=3, initial=0.08, maximum=0.08, jitter=None),
    settings={"session.timeout.ms": 3_000, "heartbeat.interval.ms": 500, "transaction.timeout.ms": 3_000},
)
worker.run_sync()
