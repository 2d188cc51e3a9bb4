from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from tests.http.stage import Server, serving


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside."""
    monkeypatch.delenv("TASKHARBOR_HTTP_ALLOW", raising=False)
    monkeypatch.delenv("TASKHARBOR_URL", raising=False)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def harbor(clock: ManualClock, server: Server) -> AsyncIterator[Harbor]:
    """A harbor that may call the test's own server, and nothing else on this machine."""
    async with Harbor("memory://", clock=clock, http_allow=[server.place]) as harbor:
        yield harbor
