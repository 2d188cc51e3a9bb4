"""Calling URLs by `POST /jobs`: the three documents of a scheduler's callers, as they stand, and their timelines."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock
from taskharbor.http.client import Network
from taskharbor.http.task import http_task
from taskharbor.server.app import application
from tests.http.stage import FakeNetwork, Server, reply, serving
from tests.server.conftest import client_of
from tests.server.test_resources import API, error_of

RECURRING = {
    "schedule": "*/10 * * * * *",
    "api": "https://unreliable-api.com/webhook",
    "type": "AT_LEAST_ONCE",
    "isRecurring": True,
    "maxRetryCount": 3,
}
ONCE = {
    "schedule": "0 0 12 * * *",
    "api": "https://critical-api.com/notification",
    "type": "AT_MOST_ONCE",
    "isRecurring": False,
    "maxRetryCount": 5,
}
HEALING = {
    "schedule": "*/5 * * * * *",
    "api": "https://sometimes-down.com/api",
    "type": "AT_LEAST_ONCE",
    "isRecurring": True,
    "maxRetryCount": 2,
}


class Anywhere(FakeNetwork):
    """Every name leads to the test's server, whatever certificate it shows."""

    def trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def lead(harbor: Harbor, server: Server) -> None:
    hosts = ("unreliable-api.com", "critical-api.com", "sometimes-down.com")
    network = Anywhere({host: ["93.184.216.34"] for host in hosts}, server)
    harbor.built_in["http"] = http_task(harbor, Network(network.resolve, network.connect, network.trust))


async def timeline(
    harbor: Harbor, clock: ManualClock, client: httpx.AsyncClient, document: dict[str, Any], seconds: int
) -> tuple[dict[str, Any], list[tuple[float, str, int]]]:
    """The job after so many seconds from its first occurrence, and (second, status, retry count) of each attempt."""
    made = await client.post(f"{API}/jobs", json=document)
    assert made.status_code == 201, made.text
    first = datetime.fromisoformat(made.json()["runAt"])
    clock.advance((first - datetime.fromtimestamp(clock.now() / 1e6, UTC)).total_seconds())
    for _ in range(seconds + 1):
        await Worker(harbor).drain()
        clock.advance(1)
    history = (await client.get(f"{API}/jobs/{made.json()['id']}/history?limit=100")).json()["items"]
    job = (await client.get(f"{API}/jobs/{made.json()['id']}")).json()
    return job, [
        (
            (datetime.fromisoformat(each["executionTime"]) - first).total_seconds(),
            each["status"],
            each["retryCount"],
        )
        for each in reversed(history)
    ]


async def test_a_recurring_job_is_retried_and_then_waits_for_its_next_occurrence(harbor, clock, client):
    async with serving(tls=True) as server:
        server.handle = lambda request: reply(500)
        lead(harbor, server)
        job, attempts = await timeline(harbor, clock, client, RECURRING, 9)
    assert attempts == [(0, "FAILED", 0), (1, "FAILED", 1), (3, "FAILED", 2), (7, "FAILED", 3)]
    assert (job["state"], job["attempts"]) == ("ready", 0)  # the clock stands at T+10: the next occurrence


async def test_an_at_most_once_job_is_called_once(harbor, clock, client):
    async with serving(tls=True) as server:
        server.handle = lambda request: reply(500)
        lead(harbor, server)
        job, attempts = await timeline(harbor, clock, client, ONCE, 20)
        assert len(server.requests) == 1
    assert attempts == [(0, "FAILED", 0)]
    assert (job["state"], job["reason"]) == ("dead", "not_retryable")


async def test_a_retry_that_succeeds_ends_the_occurrence(harbor, clock, client):
    async with serving(tls=True) as server:
        server.handle = lambda request: reply(200 if len(server.requests) >= 3 else 503)
        lead(harbor, server)
        _, attempts = await timeline(harbor, clock, client, HEALING, 4)
    assert attempts == [(0, "FAILED", 0), (1, "FAILED", 1), (3, "SUCCESS", 2)]


async def test_secrets_are_never_shown(client: httpx.AsyncClient):
    headers = {"Authorization": "Bearer s3cret-value"}
    for document in ({"api": "https://example.com/"}, {**RECURRING, "name": "n"}):
        made = await client.post(f"{API}/jobs", json={**document, "headers": headers})
        assert made.status_code == 201
        assert "s3cret" not in made.text
    for path in ("jobs", "schedules", "schedules/n", "dlq"):
        assert "s3cret" not in (await client.get(f"{API}/{path}")).text, path


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ({"api": "http://127.0.0.1/"}, 422),
        ({"api": "http://[::1]:80/"}, 422),
        ({"api": "ftp://example.com"}, 422),
        ({"api": "https://example.com", "type": "SOMETIMES"}, 400),
        ({"api": "https://example.com", "schedule": "never"}, 422),
        ({"api": "https://example.com", "isRecurring": True}, 422),
        ({"api": "https://example.com", "schedule": "* * * * *", "timezone": "Mars/Olympus"}, 422),
        ({"api": "https://example.com", "task": "t"}, 400),
        ({"api": "https://example.com", "maxRetryCount": -1}, 400),
        ({"api": "https://example.com", "headers": {"Host": "x"}}, 422),
    ],
)
async def test_a_bad_http_job_is_refused_and_nothing_stored(harbor, client, document, status):
    response = await client.post(f"{API}/jobs", json=document)
    assert response.status_code == status, response.text
    error_of(response)
    assert sum((await harbor.jobs.acounts()).values()) == 0


CLOSED = {"url": "http://127.0.0.1:9/"}
OPEN = {"url": "https://example.com/"}


async def test_a_closed_address_is_refused_wherever_it_is_sent(harbor: Harbor, client: httpx.AsyncClient):
    job = (await client.post(f"{API}/jobs", json={"api": OPEN["url"], "schedule": "0 0 12 * * *"})).json()
    schedule = {"name": "s", "task": "http", "schedule": "0 0 12 * * *", "payload": OPEN}
    assert (await client.post(f"{API}/schedules", json=schedule)).status_code == 201
    other = {"name": "other", "task": "t", "schedule": "0 0 12 * * *", "payload": CLOSED}
    assert (await client.post(f"{API}/schedules", json=other)).status_code == 201
    before = [(await client.get(f"{API}/{path}")).text for path in ("jobs", "schedules")]
    for method, path, document in [
        ("POST", "jobs", {"api": CLOSED["url"]}),
        ("POST", "jobs", {"task": "http", "payload": CLOSED}),
        ("PATCH", f"jobs/{job['id']}", {"payload": CLOSED}),
        ("POST", "schedules", {**schedule, "name": "new", "payload": CLOSED}),
        ("PATCH", "schedules/s", {"payload": CLOSED}),
        ("PATCH", "schedules/s", {"payload": {"url": "http://[::ffff:10.0.0.1]/"}}),
        ("PATCH", "schedules/other", {"task": "http"}),
    ]:
        response = await client.request(method, f"{API}/{path}", json=document)
        assert response.status_code == 422, (method, path, response.text)
        assert "--http-allow opens it" in error_of(response)["message"]
    assert [(await client.get(f"{API}/{path}")).text for path in ("jobs", "schedules")] == before
    assert (await client.patch(f"{API}/schedules/s", json={"payload": OPEN})).status_code == 200
    assert (await client.patch(f"{API}/schedules/s", json={"priority": 3})).status_code == 200


async def test_an_address_that_was_opened_is_taken_and_so_is_a_task_of_ones_own(clock: ManualClock):
    sent = {"task": "http", "payload": CLOSED}
    async with (
        Harbor("memory://", clock=clock, http_allow=["127.0.0.1:9"]) as harbor,
        client_of(application(harbor, open_on_loopback=True)) as client,
    ):
        assert (await client.post(f"{API}/jobs", json=sent)).status_code == 201
    async with Harbor("memory://", clock=clock) as harbor:

        @harbor.task(name="http")
        def own(url: str) -> None: ...

        async with client_of(application(harbor, open_on_loopback=True)) as client:
            assert (await client.post(f"{API}/jobs", json=sent)).status_code == 201
