from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.server.app import application
from taskharbor.server.dashboard.sessions import COOKIE
from taskharbor.server.tokens import create_token
from tests.server.conftest import client_of

ORIGIN = {"Origin": "http://localhost"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def harbor(clock: ManualClock) -> AsyncIterator[Harbor]:
    async with Harbor("memory://", clock=clock) as harbor:
        yield harbor


@pytest.fixture
async def client(harbor: Harbor) -> AsyncIterator[httpx.AsyncClient]:
    """A browser on the machine of a server without tokens."""
    async with client_of(application(harbor, open_on_loopback=True), headers=ORIGIN) as client:
        yield client


@pytest.fixture
def signed_in(harbor: Harbor) -> Callable[..., Any]:
    """Sign in at an application with a new token of a role; return the cookie's header."""

    async def sign_in(app: Any, role: str, **options: Any) -> dict[str, str]:
        token, _ = await create_token(harbor.driver, role, role, **options)
        async with client_of(app, headers=ORIGIN) as client:
            response = await client.post("/sign-in", data={"token": token})
            assert response.status_code == 303, response.text
            return {"Cookie": f"{COOKIE}={response.cookies[COOKIE]}"}

    return sign_in
