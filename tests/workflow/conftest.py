from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, RetryPolicy, Worker
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver
from tests.postgres import store as postgres

STEADY = RetryPolicy(max_attempts=2, initial=1, maximum=60, multiplier=2, jitter=None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def driver(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "postgres":
        with postgres.fresh(clock) as driver:
            yield driver
    elif request.param == "sqlite":
        yield SQLiteDriver(f"{tmp_path}/harbor.db", synchronous="NORMAL", clock=clock)
    else:
        yield MemoryDriver(clock)


@pytest.fixture
async def harbor(driver: Driver) -> AsyncIterator[Harbor]:
    """A harbor on each store of ours, by a clock that only moves when it is told to."""
    async with Harbor(driver=driver) as harbor:
        await harbor.amigrate()
        yield harbor


@pytest.fixture
async def memory(clock: ManualClock) -> AsyncIterator[Harbor]:
    async with Harbor("memory://", clock=clock) as harbor:
        yield harbor


@pytest.fixture
def drained() -> Callable[..., Any]:
    """Run what is runnable now, with a policy whose delays are exact."""

    async def drain(harbor: Harbor, **options: Any) -> None:
        await Worker(harbor, **({"retry": STEADY} | options)).drain()

    return drain
