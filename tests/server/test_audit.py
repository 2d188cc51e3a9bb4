"""`GET /audit`, and under which name the actions of a request are recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.server.app import application
from tests.server.conftest import client_of
from tests.server.test_resources import API

Bearer = Callable[..., Awaitable[dict[str, str]]]


async def actors(harbor: Harbor) -> list[str | None]:
    return [entry.actor for entry in await harbor.audit.alist() if entry.verb == "queue.pause"]


async def test_token_acts_under_its_name(harbor: Harbor, bearer: Bearer) -> None:
    admin = await bearer("admin")
    async with client_of(application(harbor)) as client:
        assert (await client.post(f"{API}/queues/a/pause", headers=admin)).status_code == 200
        [queue] = (await client.get(f"{API}/queues", headers=admin)).json()["items"]
    assert await actors(harbor) == ["admin"]
    assert queue["pausedBy"] == "admin"
    assert queue["pausedSince"] is not None


async def test_caller_of_an_open_server_acts_under_its_address(
    harbor: Harbor, client: httpx.AsyncClient
) -> None:
    assert (await client.post(f"{API}/queues/a/pause")).status_code == 200
    assert await actors(harbor) == ["rest@127.0.0.1"]


@pytest.mark.parametrize(
    ("answer", "actor"),
    [(("admin", "ana"), "ana"), ("admin", "rest@127.0.0.1")],
    ids=["role and name", "role"],
)
async def test_application_may_name_the_caller(harbor: Harbor, answer: Any, actor: str) -> None:
    async def later(request: Any) -> Any:
        return answer

    for number, authorize in enumerate((lambda request: answer, later)):
        async with client_of(application(harbor, authorize=authorize)) as client:
            assert (await client.post(f"{API}/queues/q{number}/pause")).status_code == 200
    assert await actors(harbor) == [actor, actor]


async def test_name_does_not_outlive_its_request(harbor: Harbor, bearer: Bearer) -> None:
    """Requests of two tokens, and the server's own code after them, are kept apart."""
    admin, ana = await bearer("admin"), await bearer("admin")
    async with client_of(application(harbor)) as client:
        await client.post(f"{API}/queues/a/pause", headers=admin)
        await client.post(f"{API}/queues/b/pause", headers=ana)
    await harbor.queues.apause("c")
    assert (await actors(harbor))[1:] == ["admin", "admin"]
    assert (await actors(harbor))[0] != "admin"


async def test_audit_is_listed_by_filter_and_page(
    harbor: Harbor, client: httpx.AsyncClient, clock: ManualClock
) -> None:
    job = await harbor.aenqueue("t", delay=60)
    with harbor.acting_as("ana"):
        await harbor.jobs.aupdate(job.id, priority=3)
    clock.advance(1)
    await harbor.jobs.acancel_all()

    async def read(**query: Any) -> Any:
        return (await client.get(f"{API}/audit", params=query)).json()

    first = await read(limit=1)
    assert [each["verb"] for each in first["items"]] == ["job.cancel"]
    rest = await read(cursor=first["nextCursor"])
    [update] = rest["items"]
    assert rest["nextCursor"] is None
    assert update == (await read(actor="ana"))["items"][0]
    assert {**update, "id": None, "at": None} == {
        "id": None,
        "at": None,
        "verb": "job.update",
        "actor": "ana",
        "jobId": job.id,
        "subject": None,
        "filter": None,
        "details": {"priority": 3},
        "count": 1,
    }
    assert [each["verb"] for each in (await read(job=job.id))["items"]] == ["job.cancel", "job.update"]
    assert [each["verb"] for each in (await read(before=first["items"][0]["at"]))["items"]] == ["job.update"]
    assert [each["verb"] for each in (await read(verb="job.cancel"))["items"]] == ["job.cancel"]
    assert (await client.get(f"{API}/audit", params={"verb": "job.explode"})).status_code == 422


async def test_job_shows_its_latest_action(harbor: Harbor, client: httpx.AsyncClient) -> None:
    """Who, what and when, where one job is read; a list names the action alone."""
    job = await harbor.aenqueue("t")
    assert (await client.get(f"{API}/jobs/{job.id}")).json()["latestAction"] is None
    await client.post(f"{API}/jobs/{job.id}/cancel")
    document = (await client.get(f"{API}/jobs/{job.id}")).json()
    latest = document["latestAction"]
    assert (latest["verb"], latest["actor"]) == ("job.cancel", "rest@127.0.0.1")
    assert latest["id"] == document["actionId"]
    [listed] = (await client.get(f"{API}/jobs")).json()["items"]
    assert listed["actionId"] == latest["id"]
    assert "latestAction" not in listed


async def test_only_an_admin_sees_what_was_done_to_tokens(harbor: Harbor, bearer: Bearer) -> None:
    reader, admin = await bearer("read"), await bearer("admin")
    await harbor.queues.apause("a")
    async with client_of(application(harbor)) as client:
        seen = [
            [each["verb"] for each in (await client.get(f"{API}/audit", headers=headers)).json()["items"]]
            for headers in (reader, admin)
        ]
        asked = await client.get(f"{API}/audit", params={"verb": "token.create"}, headers=reader)
        refused = await client.get(f"{API}/audit")
    assert seen == [["queue.pause"], ["queue.pause", "token.create", "token.create"]]
    assert asked.json()["items"] == []
    assert refused.status_code == 401
