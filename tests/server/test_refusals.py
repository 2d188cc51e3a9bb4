"""Whatever is sent: an answer in the one error shape, never a 5xx, and nothing stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.types import Message

from taskharbor import Harbor
from taskharbor.server.limits import BODY_BYTES_MAX
from taskharbor.server.unread import DROPPED_BYTES_MAX
from tests.server.test_resources import API, created, error_of

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b" ", "the body is empty"),
        (b'{"task": "t"', "truncated"),
        (b'{"task": "\\ud800"}', "one half of a surrogate pair"),
        (b"{}", "give task, for a job of that task, or api, for a URL to call: and neither was sent"),
        (b'{"task": "t", "api": "http://example.com/"}', "for a URL to call: not both"),
        (
            b'{"task": "t", "runAt": "2026-01-01T00:00:00"}',
            "runAt is an instant such as 2026-01-31T12:00:00Z",
        ),
        (b'{"task": "t", "expiresAt": "2026-01-01T00:00:00"}', "add Z if it is in UTC"),
        (b'{"task": "t", "max_attempts": 3}', "unknown field `max_attempts`; did you mean maxAttempts?"),
        (b'{"task": "t", "prioritty": 1}', "did you mean priority?"),
        (
            b'{"task": "t", "retry": {"max_attempt": 1}}',
            "at retry: object contains unknown field `max_attempt`; did you mean maxAttempts?",
        ),
    ],
)
async def test_what_is_wrong_is_said_in_the_words_of_the_interface(
    client: httpx.AsyncClient, body: bytes, told: str
):
    message = error_of(await client.post(f"{API}/jobs", content=body, headers=JSON))["message"]
    assert told in message
    assert "datetime" not in message


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"null", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"task": 1}', 400),
        (b'{"task": ""}', 400),
        (b'{"task": "t", "priority": "high"}', 400),
        (b'{"task": "t", "priority": 101}', 400),
        (b'{"task": "t", "priority": true}', 400),
        (b'{"task": "t", "prioritty": 1}', 400),
        (b'{"task": "t", "payload": []}', 400),
        (b'{"task": "t", "payload": {"x": NaN}}', 400),
        (b'{"task": "t", "payload": {"x": Infinity}}', 400),
        (b'{"task": "t", "payload": {"x": 1e999}}', 400),
        (b'{"task": "t", "payload": {"x": 1, "x": 2}}', 400),
        (b'{"task": "t", "task": "u"}', 400),
        (b'{"task": "t", "payload": {"x": "\\ud800"}}', 400),
        (b'{"task": "t", "payload": {"x": "\xff"}}', 400),
        (b'{"task": "t", "payload": {"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}}", 400),
        (b'{"task": "t", "payload": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", 413),
        (b'{"task": "t", "payload": {"x": ' + b"[" * 500 + b"]" * 500 + b"}}", 422),
        (b'{"task": "t", "payload": {"x": "\\u0000"}}', 422),
        (b'{"task": "a\\u0000b"}', 422),
        (b'{"task": "t", "runAt": "tomorrow"}', 422),
        (b'{"task": "t", "runAt": "2026-01-01T00:00:00"}', 422),
        (b'{"task": "t", "runAt": "2026-01-01T00:00:00Z", "delay": 5}', 422),
        (b'{"task": "t", "maxAttempts": 1, "maxRetries": 1}', 422),
        (b'{"task": "t", "timeout": 1e308}', 400),
        (b'{"task": "t", "priority": ' + b"9" * 5000 + b"}", 400),
        (b'{"task": "t", "id": "no uuid"}', 422),
        (b'{"task": "t", "payload": {"x": "' + b"x" * 2**20 + b'"}}', 413),
    ],
)
async def test_a_bad_body_is_refused_and_nothing_stored(
    harbor: Harbor, client: httpx.AsyncClient, body: bytes, status: int
):
    response = await client.post(f"{API}/jobs", content=body, headers=JSON)
    assert response.status_code == status, response.text[:300]
    error_of(response)
    assert len(response.content) < 3_000
    assert sum((await harbor.jobs.acounts()).values()) == 0


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("correlation_id=a", "did you mean correlationId?"),
        ("stat=dead", "did you mean state?"),
        ("zzzzzz=1", "unknown field `zzzzzz`"),
    ],
)
async def test_a_misspelt_parameter_names_the_likely_one(client: httpx.AsyncClient, query: str, told: str):
    message = error_of(await client.get(f"{API}/jobs?{query}"))["message"]
    assert message.endswith(told)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=1&limit=2",
        "stat=dead",
        "state=alive",
        "state=null",
        "queue=",
        "queue=%ff",
        "=",
        "&&",
    ],
)
async def test_a_bad_query_is_refused(client: httpx.AsyncClient, query: str):
    response = await client.get(f"{API}/jobs?{query}")
    assert response.status_code == 400, response.text
    error_of(response)


async def test_a_cursor_of_nobody_is_refused(client: httpx.AsyncClient):
    for path in ("jobs", "dlq", "workflows"):
        response = await client.get(f"{API}/{path}?cursor=x")
        assert response.status_code == 422
        assert "the nextCursor of an earlier page" in error_of(response)["message"]


async def test_where_there_are_only_so_many_words_they_are_told(client: httpx.AsyncClient):
    for path, told in {
        "jobs?state=READY": "one of waiting, scheduled, ready, running, succeeded, dead, cancelled",
        "workflows?state=dead": "one of running, stuck, succeeded, cancelled",
    }.items():
        assert error_of(await client.get(f"{API}/{path}"))["message"].endswith(told)
    for document, told in [
        ({"task": "t", "delivery": "exactly_once"}, "one of at_least_once, at_most_once"),
        ({"api": "https://example.com", "type": "x"}, "one of AT_LEAST_ONCE, AT_MOST_ONCE"),
    ]:
        assert error_of(await client.post(f"{API}/jobs", json=document))["message"].endswith(told)


async def test_an_instant_that_has_no_date_in_utc_is_told_as_it_was_sent(client: httpx.AsyncClient):
    sent = "0001-01-01T00:00:00+23:59"
    response = await client.post(f"{API}/jobs", json={"task": "t", "runAt": sent})
    assert (response.status_code, f"not '{sent}'" in error_of(response)["message"]) == (422, True)


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(client: httpx.AsyncClient):
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 2**16
            yield b" " * 2**16

    told = {**JSON, "Content-Length": str(100 * 2**20)}
    response = await client.post(f"{API}/jobs", content=endless(), headers=told)
    assert (response.status_code, error_of(response)["code"]) == (413, "too_large")
    assert read <= DROPPED_BYTES_MAX + 2**18
    read = 0
    response = await client.post(
        f"{API}/jobs", content=endless(), headers=JSON
    )  # in chunks, without a length
    assert (response.status_code, error_of(response)["code"]) == (413, "too_large")
    assert read <= BODY_BYTES_MAX + DROPPED_BYTES_MAX + 2**18


@pytest.mark.parametrize("headers", [{"Content-Length": str(100 * 2**20)}, {"Transfer-Encoding": "chunked"}])
@pytest.mark.parametrize(
    ("path", "status"), [(f"{API}/jobs", 401), (f"{API}/nowhere", 404), (f"{API}/queues/a/pause", 401)]
)
async def test_an_answer_comes_before_the_rest_of_a_body_is_dropped(
    harbor: Harbor, headers: dict[str, str], path: str, status: int
):
    log: list[str | int] = []

    async def receive() -> Message:
        log.append("read")
        return {"type": "http.request", "body": b" " * 2**20, "more_body": log.count("read") < 3}

    async def send(message: Message) -> None:
        log.append(message.get("status", "body"))
        if "status" in message:
            assert (b"connection", b"close") in message["headers"]
        else:
            assert message.get("more_body", False) is (log.count("body") == 1)

    sent = [(name.lower().encode(), value.encode()) for name, value in {**JSON, **headers}.items()]
    await harbor.asgi()(_scope(path, sent), receive, send)
    assert log == [status, "body", "read", "read", "read", "body"]
    # Nobody who waits to be told to send the rest is told so.
    log.clear()
    await harbor.asgi()(_scope(path, [*sent, (b"expect", b"100-continue")]), receive, send)
    assert log == [status, "body", "body"]


def _scope(path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_only_json_is_taken_by_its_name(harbor: Harbor, client: httpx.AsyncClient, kind: str):
    response = await client.post(f"{API}/jobs", content=b'{"task": "t"}', headers={"Content-Type": kind})
    assert (response.status_code, error_of(response)["code"]) == (415, "not_json")
    job = await created(client, delay=60)
    form = await client.post(f"{API}/jobs/{job['id']}/run", headers={"Content-Type": "text/plain"})
    assert form.status_code == 415
    assert (await harbor.jobs.aget(job["id"])).state == "scheduled"


async def test_unknown_paths_and_methods_have_the_same_shape(client: httpx.AsyncClient):
    missing = await client.get("/nowhere")
    assert (missing.status_code, error_of(missing)["code"]) == (404, "not_found")
    wrong = await client.put(f"{API}/jobs")
    assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, HEAD, POST"
    docs = await client.post("/docs")
    assert (docs.status_code, error_of(docs)["code"]) == (405, "method_not_allowed")


async def test_a_payload_that_does_not_fit_its_task_is_refused(harbor: Harbor, client: httpx.AsyncClient):
    @harbor.task(name="add")
    def add(x: int) -> int:
        return x

    response = await client.post(f"{API}/jobs", json={"task": "add", "payload": {"x": "one"}})
    assert response.status_code == 422
    assert "x" in error_of(response)["message"]


async def test_every_answer_carries_the_security_headers(client: httpx.AsyncClient):
    for path in (f"{API}/jobs", "/nowhere", "/docs", "/healthz"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        allowed = "'self'" if path == "/docs" else "'none'"
        assert headers["content-security-policy"].startswith(f"default-src {allowed};")
