from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver
from tests.postgres import store
from tests.schedules.stage import START


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def driver(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "postgres":
        with store.fresh(clock) as postgres:
            yield postgres
    elif request.param == "sqlite":
        yield SQLiteDriver(str(tmp_path / "harbor.db"), synchronous="NORMAL", clock=clock)
    else:
        yield MemoryDriver(clock)


@pytest.fixture
async def harbor(driver: Driver) -> AsyncIterator[Harbor]:
    """A harbor on each store, by a clock that only moves when it is told to."""
    await driver.migrate()
    async with Harbor(driver=driver) as harbor:
        yield harbor


@pytest.fixture
async def memory(clock: ManualClock) -> AsyncIterator[Harbor]:
    """For what depends on no store."""
    async with Harbor("memory://", clock=clock) as harbor:
        yield harbor
