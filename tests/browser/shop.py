"""The application of the browser's tests. Its handlers fail while the file `broken` is there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from taskharbor import Harbor, RetryPolicy

harbor = Harbor("sqlite:///shop.db", version="1.4.2")
once = RetryPolicy(max_attempts=1)
BROKEN = Path(__file__).parent / "broken"


@harbor.task(name="charge", queue="payments", retry=once)
async def charge(order: int, note: str = "") -> dict[str, int]:
    """Charge an order; a negative one is refused."""
    if order < 0:
        raise ValueError(f"validation error: order {order} is negative")
    return {"charged": order}


@harbor.task(name="send_email", queue="mail", retry=once)
async def send_email(n: int) -> None:
    """Send an email; it fails in one of three ways while the shop is broken."""
    if BROKEN.exists():
        if n % 3 == 0:
            raise TimeoutError(f"timeout: 10.0.0.{n} does not answer")
        if n % 3 == 1:
            raise ConnectionError(f"connection to mx{n} refused")
        raise LookupError(f"no template {n}")


@harbor.task(name="step", queue="steps")
async def step(seconds: float = 0.05) -> str:
    """One step of a workflow."""
    await asyncio.sleep(seconds)
    return "done"
