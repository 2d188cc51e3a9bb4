"""Who may see and do what in the dashboard: by the table of its pages and actions, so that none can be forgotten."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.drivers.typed_records import SESSIONS, TOKENS
from taskharbor.server.app import application
from taskharbor.server.auth import READINGS_AT_ONCE, TOKENS_SECONDS
from taskharbor.server.dashboard.pages import Action, Page
from taskharbor.server.dashboard.sessions import COOKIE, LASTS_SECONDS, OF_TOKEN_MAX
from taskharbor.server.dashboard.site import ACTIONS, PAGES
from taskharbor.server.limits import FAILURES_MAX
from taskharbor.server.routing import Prefixed
from taskharbor.server.tokens import Role, create_token, revoke_token
from tests.server.conftest import client_of
from tests.server.dashboard.conftest import ORIGIN

UUID = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"
GUARDED_ACTIONS = [action for action in ACTIONS if action.role is not None]
GUARDED_PAGES = [page for page in PAGES if page.role is not None]
# The headers of a request that no page of ours sent.
FOREIGN = {
    "no origin": {},
    "another host": {"Origin": "http://evil.example"},
    "another port": {"Origin": "http://localhost:81"},
    "a sandbox": {"Origin": "null"},
    "no address": {"Origin": "localhost"},
    "another site by its fetch": {**ORIGIN, "Sec-Fetch-Site": "cross-site"},
    "another port by its fetch": {**ORIGIN, "Sec-Fetch-Site": "same-site"},
    "typed by hand": {**ORIGIN, "Sec-Fetch-Site": "none"},
}


def path_of(entry: Page | Action) -> str:
    return re.sub(r"\{[a-z_]+(:path)?\}", lambda found: "n" if found[1] else UUID, entry.path)


def test_only_signing_in_is_for_everybody():
    assert [page.path for page in PAGES if page.role is None] == ["/sign-in"]
    assert [action.path for action in ACTIONS if action.role is None] == ["/sign-in"]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.path)
async def test_every_action_needs_its_role_and_an_origin_of_ours(harbor: Harbor, signed_in, action: Action):
    app = harbor.asgi()
    sessions: dict[Role | None, dict[str, str]] = {None: {}}
    for each in Role:
        sessions[each] = await signed_in(app, each)
    for role, cookie in sessions.items():
        async with client_of(app, headers=cookie) as client:
            for name, headers in FOREIGN.items():
                refused = await client.post(path_of(action), headers=headers)
                assert refused.status_code == 403, (role, name)
                assert "origin_refused" in refused.text
            if action.path == "/sign-out" and role is not None:
                continue  # it would end the session
            response = await client.post(path_of(action), headers=ORIGIN)
        if action.role is None:
            assert response.status_code == 401  # no token is no token
        elif role is None:
            assert (response.status_code, response.headers["location"]) == (303, "/sign-in")
        else:
            allowed = role.allows(action.role)
            assert (response.status_code == 403) is not allowed, (role, response.text)
            assert response.status_code < 500


@pytest.mark.parametrize("page", GUARDED_PAGES, ids=lambda page: page.path)
async def test_every_page_needs_a_session(harbor: Harbor, signed_in, page: Page):
    app = harbor.asgi()
    async with client_of(app) as client:
        response = await client.get(path_of(page))
        assert response.status_code == 303
        assert response.headers["location"].startswith("/sign-in")
        assert (await client.get(path_of(page), headers={"Cookie": f"{COOKIE}=wrong"})).status_code == 303
        if page.path == "/live":
            return  # it does not end
        cookie = await signed_in(app, "read")
        assert (await client.get(path_of(page), headers=cookie)).status_code in (200, 403, 404)


async def test_a_session_is_no_token_of_rest(harbor: Harbor, signed_in):
    """A form of another site could send the cookie; REST never looks at it."""
    app = harbor.asgi()
    cookie = await signed_in(app, "admin")
    async with client_of(app, headers={**cookie, **ORIGIN}) as client:
        assert (await client.get("/api/v1/jobs")).status_code == 401


async def test_session_ends_with_its_token_its_time_and_a_sign_out(
    harbor: Harbor, clock: ManualClock, signed_in, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.server.auth.SESSION_TOKENS_SECONDS", 0.0)
    monkeypatch.setattr("taskharbor.server.dashboard.sessions.READ_SECONDS", 0.0)
    await create_token(harbor.driver, "another", "read")
    app = harbor.asgi()

    async def status(cookie: dict[str, str]) -> int:
        async with client_of(app, headers=cookie) as client:
            return (await client.get("/help")).status_code

    revoked = await signed_in(app, "read")
    assert await status(revoked) == 200
    [token_id] = [each.id for each in await TOKENS.all(harbor.driver) if each.name == "read"]
    await revoke_token(harbor.driver, token_id)
    assert await status(revoked) == 303

    short_token = await signed_in(app, "read", expires_in=60)
    assert await status(short_token) == 200
    clock.advance(60)
    assert await status(short_token) == 303

    left = await signed_in(app, "write")
    async with client_of(app, headers={**left, **ORIGIN}) as client:
        assert (await client.post("/sign-out")).headers["location"] == "/sign-in"
    assert await status(left) == 303

    expired = await signed_in(app, "admin")
    clock.advance(LASTS_SECONDS)
    assert await status(expired) == 303


async def test_the_store_keeps_no_cookie_and_a_bounded_number_of_sessions(harbor: Harbor):
    token, record = await create_token(harbor.driver, "t", "read")
    app = harbor.asgi()
    values = []
    async with client_of(app, headers=ORIGIN) as client:
        for _ in range(OF_TOKEN_MAX + 2):
            client.cookies.clear()
            values.append((await client.post("/sign-in", data={"token": token})).cookies[COOKIE])
    kept = await SESSIONS.all(harbor.driver)
    assert len(kept) == OF_TOKEN_MAX
    assert all(each.token_id == record.id for each in kept)
    assert not {each.digest for each in kept} & set(values)


async def test_the_cookie_is_strict_and_stays_below_the_mount(harbor: Harbor):
    token, _ = await create_token(harbor.driver, "t", "read")
    outer = Starlette()
    outer.mount("/ops/jobs", harbor.asgi())
    async with client_of(outer, headers={"Origin": "https://localhost"}) as client:
        response = await client.post("/ops/jobs/sign-in", data={"token": token, "next": "/queues?x=1"})
        assert response.headers["location"] == "/ops/jobs/queues?x=1"
        cookie = response.headers["set-cookie"].lower()
        assert {"httponly", "secure", "path=/ops/jobs", "samesite=strict", f"max-age={LASTS_SECONDS}"} <= set(
            cookie.split("; ")
        )


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\nb", "é"]
)
async def test_sign_in_leads_to_no_other_site(harbor: Harbor, wanted: str):
    token, _ = await create_token(harbor.driver, "t", "read")
    async with client_of(harbor.asgi(), headers=ORIGIN) as client:
        response = await client.post("/sign-in", data={"token": token, "next": wanted})
        assert response.headers["location"] == "/"


async def test_wrong_tokens_are_counted_as_those_of_rest(harbor: Harbor):
    token, _ = await create_token(harbor.driver, "t", "read")
    async with client_of(harbor.asgi(), headers=ORIGIN) as client:
        for _ in range(FAILURES_MAX):
            assert (await client.post("/sign-in", data={"token": "wrong"})).status_code == 401
        late = await client.post("/sign-in", data={"token": "wrong"})
        assert late.status_code == 429
        assert int(late.headers["retry-after"]) > 0
        rest = await client.get("/api/v1/jobs", headers={"Authorization": "Bearer wrong"})
        assert rest.status_code == 429
        assert (await client.post("/sign-in", data={"token": token})).status_code == 303


async def test_application_decides_where_it_is_asked(harbor: Harbor):
    allowed: dict[str, tuple[str, str]] = {"ana": ("read", "ana"), "bo": ("admin", "bo")}
    app = harbor.asgi(authorize=lambda request: allowed.get(request.headers.get("x-user", "")))
    async with client_of(app, headers=ORIGIN) as client:
        assert (await client.get("/")).status_code == 401
        assert (await client.get("/", headers={"x-user": "ana"})).status_code == 200
        refused = await client.post("/queues/mail/pause", headers={"x-user": "ana"})
        assert refused.status_code == 403
        assert (await client.post("/queues/mail/pause", headers={"x-user": "bo"})).status_code == 303
        assert (await client.post("/sign-in", data={"token": "x"})).status_code == 404
        foreign = await client.post("/queues/mail/resume", headers={"x-user": "bo", "Origin": "http://a.b"})
        assert foreign.status_code == 403
    [queue] = await harbor.queues.alist()
    assert (queue.paused, queue.paused_by) == (True, "bo")


async def test_without_a_token_only_this_machine_is_served(harbor: Harbor):
    app = application(harbor, open_on_loopback=True)
    async with client_of(app) as client:
        assert (await client.get("/queues")).status_code == 200
        for headers in (
            {"Host": "example.org"},
            {"X-Forwarded-For": "1.2.3.4"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert (await client.get("/queues", headers=headers)).status_code == 403, headers
    async with client_of(harbor.asgi()) as client:  # mounted: closed until there is a token
        assert (await client.get("/queues")).status_code == 303


async def test_a_link_from_another_site_finds_the_session(harbor: Harbor, signed_in):
    """A strict cookie does not come with a link from another site; the page then asks once more by itself."""
    app = harbor.asgi()
    await signed_in(app, "read")
    async with client_of(app) as client:
        first = await client.get("/queues", headers={"Sec-Fetch-Site": "cross-site"})
        assert first.status_code == 200
        assert 'http-equiv="refresh"' in first.text
        assert (await client.get("/queues", headers={"Sec-Fetch-Site": "same-origin"})).status_code == 303


async def test_wrong_tokens_do_not_make_the_store_work(harbor: Harbor, monkeypatch: pytest.MonkeyPatch):
    """Each sign-in may need a token that was made a moment ago; a flood of wrong ones reads the tokens a few times."""
    monkeypatch.setattr("taskharbor.server.limits.FAILURES_MAX", 1_000)
    token, _ = await create_token(harbor.driver, "t", "read")
    readings: list[RecordKind] = []
    real = harbor.driver.records  # type: ignore[attr-defined]

    async def counted(kind: RecordKind, *given: Any, **options: Any) -> Any:
        readings.append(kind)
        return await real(kind, *given, **options)

    monkeypatch.setattr(harbor.driver, "records", counted)
    now = harbor.driver.now
    asked: list[int] = []

    async def counted_now() -> int:
        asked.append(1)
        return await now()

    monkeypatch.setattr(harbor.driver, "now", counted_now)
    moved = _Time()
    monkeypatch.setattr("taskharbor.server.auth.time", moved)
    monkeypatch.setattr("taskharbor.server.allowance.time", moved)
    async with client_of(harbor.asgi(), headers=ORIGIN) as client:
        for _ in range(100):
            assert (await client.post("/sign-in", data={"token": "wrong"})).status_code == 401
        assert readings == [RecordKind.TOKENS] * (1 + READINGS_AT_ONCE)
        for _ in range(100):
            headers = {"Authorization": "Bearer wrong"}
            assert (await client.get("/api/v1/jobs", headers=headers)).status_code == 401
        assert len(readings) == 1 + READINGS_AT_ONCE
        assert asked == []
        newer, _ = await create_token(harbor.driver, "newer", "read")
        moved.now += TOKENS_SECONDS  # and a new token passes nevertheless, a second later
        assert (await client.post("/sign-in", data={"token": newer})).status_code == 303
        assert (await client.post("/sign-in", data={"token": token})).status_code == 303


class _Time:
    """The time of this process, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


PROXY = "10.0.0.1"
# What a browser sends to https://ops.example/harbor/, as a proxy passes it on; and whether the change is taken.
PASSED_ON = {
    "Host as it came": ({"Host": "ops.example"}, 303),
    "another Host and X-Forwarded-Host": ({"Host": "inner:8400", "X-Forwarded-Host": "ops.example"}, 303),
    "two proxies": ({"Host": "inner:8400", "X-Forwarded-Host": "ops.example, middle"}, 303),
    "another Host alone": ({"Host": "inner:8400"}, 403),
    "a host that is not the browser's": ({"Host": "ops.example", "X-Forwarded-Host": "evil.example"}, 403),
}


@pytest.mark.parametrize("sent", PASSED_ON)
@pytest.mark.parametrize("is_removed", [True, False], ids=["path removed", "path kept"])
async def test_changes_through_a_proxy_are_checked_by_the_host_that_the_browser_asked(
    harbor: Harbor, sent: str, is_removed: bool
):
    token, _ = await create_token(harbor.driver, "t", "admin")
    passed_on, status = PASSED_ON[sent]
    headers = {**passed_on, "X-Forwarded-Proto": "https", "Origin": "https://ops.example"}
    app = Prefixed(harbor.asgi(trusted_proxies=[PROXY]), "/harbor")
    path = "" if is_removed else "/harbor"
    async with _through(PROXY, app, headers) as client:
        response = await client.post(f"{path}/sign-in", data={"token": token, "next": "/queues"})
        assert response.status_code == status, response.text
        if status == 403:
            assert "origin_refused" in response.text
            return
        assert response.headers["location"] == "/harbor/queues"
        assert {"secure", "path=/harbor"} <= set(response.headers["set-cookie"].lower().split("; "))
        cookie = {"Cookie": f"{COOKIE}={response.cookies[COOKIE]}"}
        page = await client.get(f"{path}/queues/mail", headers=cookie)
        assert "https://ops.example/harbor/api/v1/queues/mail/pause" in page.text
        paused = await client.post(f"{path}/queues/mail/pause", headers=cookie)
        assert (paused.status_code, paused.headers["location"]) == (303, "/harbor/queues/mail")
        foreign = {**cookie, "Origin": "https://evil.example"}
        assert (await client.post(f"{path}/queues/mail/resume", headers=foreign)).status_code == 403


async def test_nobody_but_a_trusted_proxy_names_the_host(harbor: Harbor):
    token, _ = await create_token(harbor.driver, "t", "admin")
    forged = {
        "Origin": "https://evil.example",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
    }
    async with _through("10.0.0.2", harbor.asgi(trusted_proxies=[PROXY]), forged) as client:
        assert (await client.post("/sign-in", data={"token": token})).status_code == 403
        page = await client.get("/docs", headers={"Host": "a;touch pwned"})
        assert "touch pwned" not in page.text
        assert "evil.example" not in page.text


def _through(address: str, app: Any, headers: dict[str, str]) -> httpx.AsyncClient:
    """Return a client whose requests come from this address."""
    transport = httpx.ASGITransport(app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://inner:8400", headers=headers)
