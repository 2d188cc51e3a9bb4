"""A process that reads a topic, for tests that kill it. A line of its file is the begin or the end of an execution."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from taskharbor import Context, Harbor, RetryPolicy
from taskharbor.streams import StreamWorker

url, bootstrap, topic, group, file, order = (*sys.argv[1:], "none")[:6]
harbor = Harbor(url)
told = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def tell(**what: object) -> None:
    os.write(
        told, (json.dumps(what) + "\n").encode()
    )  # one call, so that lines of several processes stay whole


@harbor.task(name="note")
async def note(ctx: Context, n: int) -> None:
    tell(n=n, at="begin", pid=os.getpid(), retry=ctx.retry_count)
    await asyncio.sleep(0.002)
    if n % 100 == 99:
        raise ValueError("validation error: poisonous")
    if n % 20 == 7 and ctx.retry_count == 0:
        raise TimeoutError("timeout: fails once")
    tell(n=n, at="end", pid=os.getpid())


worker = StreamWorker(
    harbor,
    brokers=bootstrap,
    topic=topic,
    group=group,
    concurrency=20,
    order=order,  # type: ignore[arg-type] # one of the three
    retry=RetryPolicy(max_attempts=3, initial=0.05, jitter=None, never_retry_on=["validation error"]),
    settings={"session.timeout.ms": 3_000, "heartbeat.interval.ms": 500},
)
worker.run_sync()
