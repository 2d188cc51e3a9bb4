from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, RetryPolicy, Worker
from taskharbor.clock import ManualClock
from tests.worker.stage import FaultyDriver

STEADY = RetryPolicy(max_attempts=4, initial=1, maximum=60, multiplier=2, jitter=None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def harbor(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Harbor]:
    """A harbor on each store of ours, by a clock that only moves when it is told to."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/harbor.db?synchronous=normal"
    async with Harbor(url, clock=clock) as harbor:
        yield harbor


@pytest.fixture
async def memory(clock: ManualClock) -> AsyncIterator[Harbor]:
    """For what depends on when the loop goes round: a store without threads."""
    async with Harbor("memory://", clock=clock) as harbor:
        yield harbor


@pytest.fixture
def store(clock: ManualClock) -> FaultyDriver:
    return FaultyDriver(clock)


@pytest.fixture
async def faulty(store: FaultyDriver) -> AsyncIterator[Harbor]:
    """A harbor whose store can be made to fail."""
    async with Harbor(driver=store) as harbor:
        yield harbor


@pytest.fixture
def drained() -> Callable[..., Any]:
    """Run what is runnable now, with a policy whose delays are exact."""

    async def drain(harbor: Harbor, **options: Any) -> Worker:
        worker = Worker(harbor, **({"retry": STEADY} | options))
        await worker.drain()
        return worker

    return drain
