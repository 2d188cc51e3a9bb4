from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.server.app import application
from taskharbor.server.tokens import create_token


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def harbor(clock: ManualClock) -> AsyncIterator[Harbor]:
    async with Harbor("memory://", clock=clock) as harbor:
        yield harbor


def client_of(app: Any, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", **options)


@pytest.fixture
async def client(harbor: Harbor) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server on loopback, without tokens."""
    async with client_of(application(harbor, open_on_loopback=True)) as client:
        yield client


@pytest.fixture
def bearer(harbor: Harbor) -> Callable[..., Any]:
    async def make(role: str, **options: Any) -> dict[str, str]:
        token, _ = await create_token(harbor.driver, role, role, **options)
        return {"Authorization": f"Bearer {token}"}

    return make
