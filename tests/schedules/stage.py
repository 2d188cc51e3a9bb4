"""What the tests of recurring jobs share: a time to begin at, and letting a worker do what is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from taskharbor import Harbor, RetryPolicy, Worker
from taskharbor.client.schedule import Schedule, schedule_id
from taskharbor.clock import ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)
STEADY = RetryPolicy(max_attempts=4, initial=1, maximum=60, multiplier=2, jitter=None)


def at(seconds: float) -> datetime:
    """So many seconds after the beginning."""
    return START + timedelta(seconds=seconds)


async def work(harbor: Harbor, **options: Any) -> None:
    """Execute what is due now."""
    await Worker(harbor, **({"retry": STEADY} | options)).drain()


async def pass_time(harbor: Harbor, clock: ManualClock, seconds: int, step: int = 1, **options: Any) -> None:
    """Let time pass, with a worker that looks every `step` seconds."""
    for _ in range(seconds // step):
        clock.advance(step)
        await work(harbor, **options)


async def the(harbor: Harbor, name: str = "tick") -> Schedule:
    return await harbor.schedules.aget(name)


async def statuses(harbor: Harbor, name: str = "tick") -> list[str]:
    """Of its attempts, oldest first."""
    rows = await harbor.jobs.ahistory(schedule_id(harbor.application, name), limit=1000)
    return [str(row.status) for row in rows[::-1]]
