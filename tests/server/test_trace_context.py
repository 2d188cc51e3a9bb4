"""A job that is enqueued over REST belongs to the trace of its caller."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from taskharbor import Harbor, Worker
from taskharbor.rules.meta import ENTRIES_MAX
from taskharbor.telemetry.tracing import instrument
from tests.telemetry.spans import Spans

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


async def enqueued(client: httpx.AsyncClient, headers: Any, **body: Any) -> dict[str, str]:
    response = await client.post("/api/v1/jobs", json={"task": "send"} | body, headers=headers)
    assert response.status_code == 201, response.text
    meta: dict[str, str] = response.json()["meta"]
    return meta


async def test_a_job_carries_the_context_of_its_request(client: httpx.AsyncClient):
    headers = {"traceparent": PARENT, "tracestate": "rojo=00f067aa0ba902b7"}
    assert await enqueued(client, headers, meta={"tenant": "acme"}) == {"tenant": "acme"} | headers
    assert await enqueued(client, {"traceparent": PARENT}) == {"traceparent": PARENT}


async def test_a_url_to_call_carries_the_context_of_its_request(client: httpx.AsyncClient):
    body = {"api": "https://example.com/hook", "type": "AT_LEAST_ONCE", "isRecurring": False}
    response = await client.post("/api/v1/jobs", json=body, headers={"traceparent": PARENT})
    assert response.json()["meta"] == {"traceparent": PARENT}


async def test_several_headers_of_a_state_are_one_list(client: httpx.AsyncClient):
    headers = [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]
    assert (await enqueued(client, headers))["tracestate"] == "a=1,b=2"


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x",
        PARENT[:-1],
        PARENT + "0",
        PARENT + "-more",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 600}",
    ],
)
async def test_a_context_that_is_not_valid_is_left_out(client: httpx.AsyncClient, parent: str):
    assert await enqueued(client, {"traceparent": parent, "tracestate": "a=1"}) == {}


async def test_a_context_of_a_later_version_is_kept(client: httpx.AsyncClient):
    later = f"01-{TRACE}-{SPAN}-01-what-comes"
    assert await enqueued(client, {"traceparent": later}) == {"traceparent": later}


async def test_two_contexts_are_none(client: httpx.AsyncClient):
    assert await enqueued(client, [("traceparent", PARENT), ("traceparent", PARENT)]) == {}


async def test_a_state_that_is_too_long_is_left_out(client: httpx.AsyncClient):
    headers = {"traceparent": PARENT, "tracestate": "a=" + "x" * 600}
    assert await enqueued(client, headers) == {"traceparent": PARENT}


async def test_a_context_in_the_body_wins(client: httpx.AsyncClient):
    own = {"traceparent": f"00-{TRACE[::-1]}-{SPAN}-01"}
    assert await enqueued(client, {"traceparent": PARENT, "tracestate": "a=1"}, meta=own) == own


async def test_a_context_that_does_not_fit_is_left_out(client: httpx.AsyncClient):
    full = {f"name-{number}": "x" for number in range(ENTRIES_MAX)}
    assert await enqueued(client, {"traceparent": PARENT}, meta=full) == full


async def test_a_traced_server_makes_a_span_below_that_of_its_caller(
    harbor: Harbor, client: httpx.AsyncClient
):
    spans = Spans()
    instrument(harbor, tracer_provider=spans.provider)

    @harbor.task(name="send")
    async def send() -> None: ...

    meta = await enqueued(client, {"traceparent": PARENT, "tracestate": "a=1"})
    await Worker(harbor).drain()
    sent, process = spans.all()
    assert sent.parent is not None
    assert (f"{sent.context.trace_id:032x}", f"{sent.parent.span_id:016x}") == (TRACE, SPAN)
    assert meta["traceparent"] == f"00-{TRACE}-{sent.context.span_id:016x}-01"
    assert [link.context.span_id for link in process.links] == [sent.context.span_id]


async def test_a_span_of_the_server_itself_is_the_parent(harbor: Harbor, client: httpx.AsyncClient):
    """An instrumented web framework has read the headers, and made its own span of them."""
    spans = Spans()
    instrument(harbor, tracer_provider=spans.provider)
    with spans.current.start_as_current_span("POST") as web:
        await enqueued(client, {"traceparent": PARENT})
    sent = spans.one("send")
    assert sent.parent is not None
    assert sent.parent.span_id == web.get_span_context().span_id


async def test_without_an_sdk_the_context_is_passed_on(harbor: Harbor, client: httpx.AsyncClient):
    instrument(harbor)
    assert await enqueued(client, {"traceparent": PARENT}) == {"traceparent": PARENT}
