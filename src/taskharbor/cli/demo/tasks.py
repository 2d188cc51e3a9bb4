"""The application that the demo's workers run; its store is the one their environment names."""

from __future__ import annotations

import asyncio
from pathlib import Path

from taskharbor import Context, Harbor, RetryPolicy

harbor = Harbor()


@harbor.task(name="photo:resize")
async def resize(photo: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"{photo} is resized"


@harbor.task(
    name="report:fetch", retry=RetryPolicy(max_attempts=5, initial=0.5, maximum=5, multiplier=2, jitter=None)
)
async def fetch(ctx: Context, report: str) -> str:
    """Gets through the third time, as things on a network do."""
    await asyncio.sleep(0.2)
    if ctx.retry_count < 2:
        raise ConnectionError("connection reset by peer")
    return f"{report} has 42 rows"


@harbor.task(
    name="card:charge", retry=RetryPolicy(max_attempts=2, initial=0.5, maximum=5, multiplier=2, jitter=None)
)
async def charge(amount: str, bank: str) -> str:
    """Fails as long as the file `bank` is not there."""
    await asyncio.sleep(0.2)
    if not Path(bank).exists():  # noqa: ASYNC240 - one look at a local file
        raise RuntimeError("the bank answers 503")
    return f"{amount} charged"


@harbor.task(name="video:encode")
async def encode(ctx: Context, video: str, seconds: float) -> str:
    steps = 20
    for step in range(steps):
        ctx.progress(step / steps, "encoding")
        await asyncio.sleep(seconds / steps)
    return f"{video} is encoded"
