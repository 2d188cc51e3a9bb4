"""Who may do what: by the table of operations, so that none can be forgotten."""

from __future__ import annotations

import logging

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.drivers.typed_records import TOKENS
from taskharbor.server.app import application
from taskharbor.server.auth import Auth
from taskharbor.server.limits import FAILURES_MAX, Failures
from taskharbor.server.operation import Operation
from taskharbor.server.routes import OPERATIONS, PREFIX, ROOT_OPERATIONS
from taskharbor.server.tokens import Role, create_token
from tests.server.conftest import client_of
from tests.server.test_resources import API, error_of

UUID = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"

ALL = [*OPERATIONS, *ROOT_OPERATIONS]
GUARDED = [operation for operation in ALL if operation.role is not None]


def path_of(operation: Operation) -> str:
    prefix = "" if operation in ROOT_OPERATIONS else PREFIX
    return prefix + operation.shown_path.replace("{id}", UUID).replace("{name}", "n")


async def asked(app, operation: Operation, headers: dict[str, str]) -> httpx.Response:
    async with client_of(app, headers=headers) as client:
        return await client.request(operation.method, path_of(operation))


def test_only_health_is_for_everybody():
    open_to_all = [operation.path for operation in ALL if operation.role is None]
    assert open_to_all == ["/healthz", "/readyz"]
    assert all((operation.role is Role.READ) == (operation.method == "GET") for operation in GUARDED)


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.id)
async def test_every_operation_needs_a_token_of_its_role(harbor: Harbor, bearer, operation: Operation):
    app = harbor.asgi()
    needed = operation.role
    assert needed is not None
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Basic eDp5"}):
        response = await asked(app, operation, headers)
        assert (response.status_code, error_of(response)["code"]) == (401, "unauthorized")
        assert response.headers["www-authenticate"].startswith("Bearer")
    right = await bearer("admin")
    wrong = {
        "Authorization": right["Authorization"][:-1] + ("A" if right["Authorization"][-1] != "A" else "B")
    }
    assert (await asked(harbor.asgi(), operation, wrong)).status_code == 401
    for role in Role:
        headers = await bearer(role)
        if role.allows(needed) and operation.id == "stream_events":
            continue  # it does not end; the tests of events ask it
        response = await asked(harbor.asgi(), operation, headers)
        assert (response.status_code == 403) is not role.allows(needed), (role, response.text)
        assert response.status_code not in (401, 500)


async def test_a_revoked_or_expired_token_is_good_for_nothing(
    harbor: Harbor, clock: ManualClock, bearer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.server.auth.TOKENS_SECONDS", 0.0)
    kept, short = await bearer("read"), await bearer("read", expires_in=60)
    async with client_of(harbor.asgi()) as client:
        assert (await client.get(f"{API}/jobs", headers=short)).status_code == 200
        clock.advance(60)
        assert (await client.get(f"{API}/jobs", headers=short)).status_code == 401
        assert (await client.get(f"{API}/jobs", headers=kept)).status_code == 200
        records = await TOKENS.all(harbor.driver)
        await TOKENS.drop(harbor.driver, [record.id for record in records])
        assert (await client.get(f"{API}/jobs", headers=kept)).status_code == 401


async def test_the_store_keeps_no_token(harbor: Harbor):
    token, record = await create_token(harbor.driver, "n", "read")
    assert token.partition(f"{record.id}_")[2] not in repr(await TOKENS.all(harbor.driver))
    assert len(token) > 43
    assert record.id in token


async def test_wrong_tokens_are_limited_by_address_and_right_ones_are_not(harbor: Harbor, bearer, caplog):
    caplog.set_level(logging.DEBUG)
    right = await bearer("read")
    async with client_of(harbor.asgi()) as client:
        for _ in range(FAILURES_MAX):
            assert (
                await client.get(f"{API}/jobs", headers={"Authorization": "Bearer nope-nope"})
            ).status_code == 401
        limited = await client.get(f"{API}/jobs", headers={"Authorization": "Bearer nope-nope"})
        assert (limited.status_code, error_of(limited)["code"]) == (429, "too_many_failures")
        assert int(limited.headers["retry-after"]) >= 1
        assert (await client.get(f"{API}/jobs", headers=right)).status_code == 200
    assert "nope-nope" not in caplog.text
    assert right["Authorization"] not in caplog.text


def test_the_memory_of_failures_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskharbor.server.limits.CLIENTS_MAX", 3)
    failures = Failures()
    for n in range(10):
        failures.count(f"10.0.0.{n}")
    assert len(failures._counted) == 3


async def test_without_tokens_only_loopback_names_are_served(client: httpx.AsyncClient):
    for host in ("localhost", "localhost:8400", "127.0.0.1:8400", "[::1]:8400"):
        assert (await client.get(f"{API}/jobs", headers={"Host": host})).status_code == 200, host
    for host in (
        "evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "127.0.0.1.evil.example:80",
        "x@localhost",
        "localhost:evil.com",
        "localhost:8400.evil.com",
        "localhost:",
        "localhost:0",
        "localhost:65536",
        "localhost:+80",
        "localhost/evil.com",
        "localhost#evil.com",
        "localhost, evil.com",
        "127.1",
        "127.0.0.1:evil.com",
        "127.0.0.256",
        "2130706433",
        "0x7f.0.0.1",
        "[::1",
        "[::1]evil.com",
        "[::1]:evil.com",
        "[::2]",
        "[::1%lo]",
        "::1",
        "",
    ):
        response = await client.get(f"{API}/jobs", headers={"Host": host})
        assert (response.status_code, error_of(response)["code"]) == (403, "host_refused"), host
        assert "taskharbor token create" in error_of(response)["message"]
    twice = [("Host", "localhost"), ("Host", "localhost")]
    assert (await client.get(f"{API}/jobs", headers=twice)).status_code == 403


async def test_without_tokens_pages_of_other_sites_are_refused(harbor: Harbor, client: httpx.AsyncClient):
    for origin in ("https://evil.example", "null", "http://localhost:3000", "http://[", ""):
        response = await client.post(f"{API}/jobs", json={"task": "t"}, headers={"Origin": origin})
        assert (response.status_code, error_of(response)["code"]) == (403, "origin_refused"), origin
    both = [("Origin", "http://localhost"), ("Origin", "https://evil.example")]
    assert (await client.post(f"{API}/jobs", json={"task": "t"}, headers=both)).status_code == 403
    assert (await harbor.jobs.acounts())["ready"] == 0
    own = await client.post(f"{API}/jobs", json={"task": "t"}, headers={"Origin": "http://localhost"})
    assert own.status_code == 201


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "other", ""])
async def test_without_tokens_what_a_browser_fetches_for_another_site_is_refused(
    client: httpx.AsyncClient, site: str
):
    response = await client.get(f"{API}/jobs", headers={"Sec-Fetch-Site": site})
    assert (response.status_code, error_of(response)["code"]) == (403, "origin_refused")
    both = [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", site)]
    assert (await client.get(f"{API}/jobs", headers=both)).status_code == 403
    for own in ("same-origin", "none"):
        assert (await client.get(f"{API}/jobs", headers={"Sec-Fetch-Site": own})).status_code == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Forwarded", "for=192.0.2.1"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-For", ""),
        ("X-Forwarded-Host", "jobs.example"),
        ("X-Forwarded-Proto", "https"),
        ("x-forwarded-whatever", "1"),
        ("X-Real-IP", "192.0.2.1"),
        ("Via", "1.1 proxy"),
        ("CF-Connecting-IP", "192.0.2.1"),
        ("CF-Ray", "1"),
        ("True-Client-IP", "192.0.2.1"),
        ("X-Envoy-External-Address", "192.0.2.1"),
    ],
)
async def test_without_tokens_what_a_proxy_passes_on_is_refused(
    harbor: Harbor, client: httpx.AsyncClient, bearer, name: str, value: str
):
    response = await client.post(f"{API}/jobs", json={"task": "t"}, headers={name: value})
    assert (response.status_code, error_of(response)["code"]) == (403, "proxy_refused")
    assert name.lower() in error_of(response)["message"]
    assert "taskharbor token create" in error_of(response)["message"]
    assert (await harbor.jobs.acounts())["ready"] == 0
    # With a token it passes, through whatever.
    async with client_of(harbor.asgi(), headers=await bearer("write")) as known:
        created = await known.post(f"{API}/jobs", json={"task": "t"}, headers={name: value})
        assert created.status_code == 201


@pytest.mark.parametrize(
    ("scope", "code"),
    [
        (
            {"http_version": "1.0"},
            "proxy_refused",
        ),  # nginx speaks it to what is behind it, and adds no header
        ({"client": ("192.0.2.1", 1)}, "address_refused"),
        ({"client": None}, "address_refused"),
    ],
)
async def test_without_tokens_only_a_direct_request_of_this_machine_is_served(
    harbor: Harbor, scope: dict, code: str
):
    app = application(harbor, open_on_loopback=True)

    async def odd(given, receive, send):
        await app({**given, **scope}, receive, send)

    async with client_of(odd) as client:
        response = await client.get(f"{API}/jobs")
        assert (response.status_code, error_of(response)["code"]) == (403, code)


async def test_an_open_server_closes_with_the_first_token(
    harbor: Harbor, bearer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.server.auth.TOKENS_SECONDS", 0.0)
    async with client_of(application(harbor, open_on_loopback=True)) as client:
        assert (await client.get(f"{API}/jobs")).status_code == 200
        headers = await bearer("read")
        assert (await client.get(f"{API}/jobs")).status_code == 401
        assert (await client.get(f"{API}/jobs", headers=headers)).status_code == 200
        records = await TOKENS.all(harbor.driver)
        await TOKENS.drop(harbor.driver, [record.id for record in records])
        assert (await client.get(f"{API}/jobs")).status_code == 401  # and does not open with the last one


async def test_a_mounted_application_is_closed_without_tokens(harbor: Harbor):
    async with client_of(harbor.asgi()) as client:
        assert (await client.get(f"{API}/jobs")).status_code == 401


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_application_may_decide_itself(harbor: Harbor, asynchronous: bool):
    def decide(request):
        return request.headers.get("x-role")

    async def later(request):
        return decide(request)

    async with client_of(harbor.asgi(authorize=later if asynchronous else decide)) as client:
        assert (await client.get(f"{API}/jobs")).status_code == 401
        assert (await client.get(f"{API}/jobs", headers={"X-Role": "read"})).status_code == 200
        refused = await client.post(f"{API}/jobs", json={"task": "t"}, headers={"X-Role": "read"})
        assert refused.status_code == 403


@pytest.mark.parametrize("framework", [FastAPI, Starlette])
async def test_the_application_mounts_below_a_path_of_another(harbor: Harbor, framework: type[Starlette]):
    outer = framework()
    outer.mount("/tasks", harbor.asgi(authorize=lambda request: "admin"))
    async with client_of(outer) as client:
        assert (await client.post(f"/tasks{API}/jobs", json={"task": "t"})).status_code == 201
        assert (await client.get("/tasks/openapi.json")).json()["servers"] == [{"url": "/tasks"}]
        assert (await client.get(f"/tasks{API}/nope")).json()["error"]["code"] == "not_found"


async def test_a_store_that_fails_lets_nobody_in(tmp_path):
    async with Harbor(f"sqlite:///{tmp_path}/missing/harbor.db") as harbor:
        auth = Auth(harbor.driver, open_on_loopback=True)
        with pytest.raises(Exception, match="missing"):
            await auth._current_tokens()
        async with client_of(application(harbor, open_on_loopback=True)) as client:
            response = await client.get(f"{API}/jobs")
            assert (response.status_code, error_of(response)["code"]) == (503, "store_unavailable")
