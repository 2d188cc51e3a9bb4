"""Server-side request forgery: whatever leads to an address that is closed is refused before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import ip_address

import pytest

from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock
from taskharbor.records import Reason, State
from tests.http.stage import FakeNetwork, Server, reply

PUBLIC = "93.184.216.34"  # never connected to: the network of these tests leads to loopback only


@pytest.fixture
async def harbor(clock: ManualClock) -> AsyncIterator[Harbor]:
    """Nothing is opened."""
    async with Harbor("memory://", clock=clock) as harbor:
        yield harbor


@pytest.fixture
def network(harbor: Harbor, server: Server) -> FakeNetwork:
    network = FakeNetwork({"good.example": [PUBLIC], "inside.example": ["10.0.0.5"]}, server)
    network.use(harbor)
    return network


async def outcome(harbor: Harbor, url: str, **payload):
    job = await harbor.aenqueue("http", {"url": url, **payload})
    await Worker(harbor).drain()
    return await job.arefresh()


async def assert_refused(harbor: Harbor, url: str, **payload) -> str:
    found = await outcome(harbor, url, **payload)
    assert (found.state, found.reason) == (State.DEAD, Reason.UNRECOVERABLE), found.error
    assert "closed to HTTP jobs" in (found.error or "")
    assert "--http-allow" in (found.error or "")
    return found.error or ""


async def test_a_public_address_is_reached_by_its_name(harbor, network, server):
    assert (await outcome(harbor, "http://good.example/x")).state is State.SUCCEEDED
    assert network.connected == [(PUBLIC, 80)]
    assert server.request.headers["host"] == "good.example"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "224.0.0.1",
        "255.255.255.255",
        "[::]",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b:1::a00:1]",
        "[2002:7f00:1::]",
        "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    ],
)
async def test_a_closed_address_is_refused_and_nothing_is_connected_to(harbor, network, host):
    for port in ("", ":8080"):
        await assert_refused(harbor, f"http://{host}{port}/")
        await assert_refused(harbor, f"https://{host}{port}/")
    assert network.connected == []
    assert network.resolved == []


@pytest.mark.parametrize(
    "addresses", [["10.0.0.5"], ["127.0.0.1", "::1"], ["::ffff:10.0.0.5"], ["fe80::1%eth0"], ["0.0.0.0"]]
)
async def test_a_name_that_leads_inside_is_refused(harbor, network, addresses):
    network.names["inside.example"] = addresses
    error = await assert_refused(harbor, "http://inside.example/")
    assert f"{ip_address(addresses[0].partition('%')[0])} is " in error
    assert network.connected == []


async def test_of_several_addresses_only_the_public_ones_are_tried(harbor, network):
    network.names["good.example"] = ["10.0.0.5", "1.1.1.1", "::1", PUBLIC]
    network.dead.add("1.1.1.1")
    assert (await outcome(harbor, "http://good.example/")).state is State.SUCCEEDED
    assert network.connected == [("1.1.1.1", 80), (PUBLIC, 80)]


async def test_a_name_is_resolved_once_and_the_checked_address_is_connected_to(harbor, network):
    """Rebinding: the second answer leads inside, but nobody asks a second time."""

    async def rebinding(host: str, port: int) -> list[str]:
        network.resolved.append(host)
        return [PUBLIC] if len(network.resolved) == 1 else ["127.0.0.1"]

    network.resolve = rebinding
    network.use(harbor)
    assert (await outcome(harbor, "http://good.example/")).state is State.SUCCEEDED
    assert network.resolved == ["good.example"]
    assert network.connected == [(PUBLIC, 80)]


async def test_a_retry_is_checked_anew(harbor, network, server, clock):
    server.handle = lambda request: reply(500)
    job = await harbor.aenqueue("http", {"url": "http://good.example/"})
    await Worker(harbor).drain()
    network.names["good.example"] = ["127.0.0.1"]
    clock.advance(1)
    await Worker(harbor).drain()
    found = await job.arefresh()
    assert found.reason is Reason.UNRECOVERABLE
    assert network.connected == [(PUBLIC, 80)]


async def test_a_name_that_cannot_be_resolved_is_a_failure_that_is_retried(harbor, network):
    async def gone(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    network.resolve = gone
    network.use(harbor)
    found = await outcome(harbor, "http://nowhere.example/")
    assert (found.state, found.attempts) == (State.SCHEDULED, 1)
    assert "cannot be resolved" in found.error


async def test_proxies_of_the_environment_are_ignored(harbor, network, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
    assert (await outcome(harbor, "http://good.example/")).state is State.SUCCEEDED
    assert network.connected == [(PUBLIC, 80)]


async def test_the_allow_list_opens_what_it_names(clock, server):
    async with Harbor("memory://", clock=clock, http_allow=["inside.example:80", "10.9.0.0/16"]) as harbor:
        network = FakeNetwork({"inside.example": ["10.0.0.5"], "other.example": ["10.0.0.5"]}, server)
        network.use(harbor)
        assert (await outcome(harbor, "http://inside.example/")).state is State.SUCCEEDED
        assert (await outcome(harbor, "http://10.9.1.2:99/")).state is State.SUCCEEDED
        await assert_refused(harbor, "http://inside.example:81/")
        await assert_refused(harbor, "http://other.example/")
        await assert_refused(harbor, "http://10.0.0.5/")
        assert network.connected == [("10.0.0.5", 80), ("10.9.1.2", 99)]


# -- redirects -----------------------------------------------------------------------------------


async def test_redirects_are_not_followed_unless_asked(harbor, network, server):
    server.handle = lambda request: reply(302, Location="http://good.example/next?token=abcdef")
    found = await outcome(harbor, "http://good.example/")
    assert len(server.requests) == 1
    assert "302 Found" in found.error
    assert "token=***" in found.error


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/admin",
        "//inside.example/",
        "http://[::ffff:169.254.169.254]/latest/meta-data/",
        "http://169.254.169.254/",
    ],
)
async def test_each_redirect_is_checked(harbor, network, server, location):
    server.handle = lambda request: reply(302, Location=location)
    await assert_refused(harbor, "http://good.example/", follow_redirects=True)
    assert network.connected == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    "location",
    ["http://127.1/", "http://0x7f.1/", "http://good@127.0.0.1/", "file:///etc/passwd", "gopher://x/"],
)
async def test_a_redirect_to_what_is_no_plain_url_is_not_followed(harbor, network, server, location):
    server.handle = lambda request: reply(302, Location=location)
    found = await outcome(harbor, "http://good.example/", follow_redirects=True)
    assert "cannot be followed" in found.error
    assert network.connected == [(PUBLIC, 80)]


async def test_redirects_end(harbor, network, server):
    server.handle = lambda request: reply(302, Location=f"/{len(server.requests)}")
    found = await outcome(harbor, "http://good.example/", follow_redirects=True)
    assert "more than 5 redirects" in found.error
    assert len(server.requests) == 6


SECRETS = {"Authorization": "Bearer abcdef", "X-Api-Key": "k1k2k3k4", "Cookie": "a=b", "Accept": "text/x"}
SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize(
    "location", ["http://other.example/next", "http://good.example:81/next", "//other.example/next"]
)
async def test_secrets_do_not_go_to_another_origin(harbor, network, server, location):
    network.names["other.example"] = ["1.1.1.1"]
    server.handle = lambda r: reply(200) if r.path == "/next" else reply(307, Location=location)
    found = await outcome(
        harbor,
        "http://good.example/",
        follow_redirects=True,
        headers=SECRETS,
        body="x",
        signing_secret=SIGNING,
    )
    assert found.state is State.SUCCEEDED
    first, second = server.requests
    assert {"authorization", "x-api-key", "cookie", "webhook-signature"} <= first.headers.keys()
    assert not {"authorization", "x-api-key", "cookie", "webhook-signature"} & second.headers.keys()
    assert second.headers["accept"] == "text/x"
    assert second.headers["host"] != first.headers["host"]
    assert (second.method, second.body) == ("POST", b"x")


async def test_secrets_stay_with_the_same_origin(harbor, network, server):
    server.handle = lambda r: reply(200) if r.path == "/next" else reply(308, Location="/next")
    await outcome(harbor, "http://good.example/", follow_redirects=True, headers=SECRETS, body="x")
    assert server.requests[1].headers["authorization"] == "Bearer abcdef"
    assert server.requests[1].body == b"x"


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "PUT", "GET"),
        (302, "PUT", "PUT"),
        (307, "POST", "POST"),
    ],
)
async def test_a_redirect_changes_the_method_as_browsers_do(harbor, network, server, status, method, then):
    server.handle = lambda r: reply(200) if r.path == "/next" else reply(status, Location="/next")
    await outcome(
        harbor,
        "http://good.example/",
        follow_redirects=True,
        method=method,
        body={"a": 1},
        signing_secret=SIGNING,
    )
    first, second = server.requests
    assert (first.method, second.method) == (method, then)
    assert (second.body == b"") == (then == "GET")
    assert ("content-type" in second.headers) == ("webhook-signature" in second.headers) == (then != "GET")
