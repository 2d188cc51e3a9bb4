"""TLS is for the name in the URL, although the connection is to an address that was looked up before."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock
from taskharbor.records import State
from tests.http.stage import FakeNetwork, Server, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(tls=True) as server:
        yield server


async def outcome(clock: ManualClock, server: Server, host: str, *, trusting: bool = True):
    async with Harbor("memory://", clock=clock, http_allow=["127.0.0.1"]) as harbor:
        network = FakeNetwork({"hooks.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}, server)
        if not trusting:
            from taskharbor.http.client import trust

            network.trust = trust  # type: ignore[method-assign]
        network.use(harbor)
        job = await harbor.aenqueue("http", {"url": f"https://{host}:{server.port}/"})
        await Worker(harbor).drain()
        return await job.arefresh()


@pytest.mark.parametrize("host", ["hooks.example", "127.0.0.1"])
async def test_a_certificate_for_the_name_is_accepted(clock, server, host):
    assert (await outcome(clock, server, host)).state is State.SUCCEEDED
    assert server.request.headers["host"] == f"{host}:{server.port}"


async def test_a_certificate_for_another_name_is_a_failure(clock, server):
    found = await outcome(clock, server, "other.example")
    assert (found.state, found.attempts) == (State.SCHEDULED, 1)
    assert "certificate" in found.error
    assert server.requests == []


async def test_a_certificate_of_nobody_we_trust_is_a_failure(clock, server):
    found = await outcome(clock, server, "hooks.example", trusting=False)
    assert "certificate" in found.error
    assert server.requests == []
