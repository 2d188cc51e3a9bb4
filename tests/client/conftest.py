from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, Worker
from taskharbor.clock import MICROS_PER_SECOND, ManualClock
from taskharbor.drivers.base import Claim, ClaimRequest
from taskharbor.sync import run_inline


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings from outside, and a folder of its own."""
    monkeypatch.delenv("TASKHARBOR_URL", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/harbor.db"


@pytest.fixture
def harbor(url: str) -> Iterator[Harbor]:
    with Harbor(url) as harbor:
        yield harbor


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(url: str, clock: ManualClock) -> Iterator[Harbor]:
    """A harbor whose time moves only when the test says so."""
    with Harbor(url, clock=clock) as harbor:
        yield harbor


@pytest.fixture
def work() -> Callable[[Harbor], None]:
    """Run everything that is runnable now."""
    return lambda harbor: Worker(harbor).drain_sync()


Claiming = Callable[..., Claim]


@pytest.fixture
def claim() -> Claiming:
    """Begin jobs as a worker would that never comes back."""
    serial = iter(range(1_000_000))

    def claim(harbor: Harbor, limit: int = 10, seconds: float = 30) -> Claim:
        request = ClaimRequest(
            f"vanishing/{next(serial)}", int(seconds * MICROS_PER_SECOND), limit, once_limit=limit
        )
        return run_inline(harbor.driver.claim(request))

    return claim


@pytest.fixture
def everything() -> Callable[[Harbor], Any]:
    """All that a store holds, to prove that nothing changed."""

    def everything(harbor: Harbor) -> Any:
        jobs = harbor.jobs.list(limit=1000)
        return (
            [job.record for job in jobs],
            harbor.jobs.counts(),
            [(q.name, q.paused, q.ready, q.scheduled, q.running) for q in harbor.queues.list()],
            [repr(harbor.jobs.history(job.id)) for job in jobs],
        )

    return everything
