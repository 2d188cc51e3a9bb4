"""Tracing of HTTP jobs, and what no span shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from taskharbor import Context, Harbor, Worker
from taskharbor.clock import ManualClock
from taskharbor.http import http_payload
from taskharbor.telemetry.tracing import instrument
from tests.http.stage import Server, reply, serving
from tests.worker.stage import soon

CANARY = "canary"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def harbor(server: Server, exporter: InMemorySpanExporter) -> AsyncIterator[Harbor]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with Harbor("memory://", clock=ManualClock(), http_allow=[server.place]) as harbor:
        instrument(harbor, tracer_provider=provider)
        yield harbor


async def drain(harbor: Harbor) -> None:
    await soon(Worker(harbor).drain())


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_request_is_a_child_span_whose_context_it_takes_along(harbor, server, exporter):
    await harbor.aenqueue("http", http_payload(f"{server.url}/hook", body={"n": 1}))
    await drain(harbor)
    request, process = named(exporter, "POST"), named(exporter, "process default")
    assert request.kind is SpanKind.CLIENT
    assert request.parent is not None
    assert (request.context.trace_id, request.parent.span_id) == (
        process.context.trace_id,
        process.context.span_id,
    )
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": server.port,
        "url.scheme": "http",
    }
    carried = server.request.headers["traceparent"]
    assert carried.startswith(f"00-{request.context.trace_id:032x}-{request.context.span_id:016x}-")


async def test_a_header_of_the_jobs_own_wins(harbor, server):
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await harbor.aenqueue("http", http_payload(server.url, headers={"Traceparent": own}))
    await drain(harbor)
    assert server.request.headers["traceparent"] == own


@pytest.mark.parametrize("status", [404, 503])
async def test_a_response_that_is_an_error_gives_its_status_as_the_type(harbor, server, exporter, status):
    server.handle = lambda request: reply(status, "later")
    await harbor.aenqueue("http", http_payload(server.url))
    await drain(harbor)
    request = named(exporter, "GET")
    assert attributes(request)["http.response.status_code"] == status
    assert attributes(request)["error.type"] == str(status)
    assert request.status.status_code is StatusCode.ERROR


async def test_a_request_that_is_refused_gives_the_class_as_the_type(harbor, exporter):
    await harbor.aenqueue("http", http_payload("http://127.0.0.2:9/"))
    await drain(harbor)
    request = named(exporter, "GET")
    assert attributes(request)["error.type"] == "AddressRefused"
    assert "http.response.status_code" not in attributes(request)


async def test_without_tracing_no_request_carries_a_context(server):
    async with Harbor("memory://", clock=ManualClock(), http_allow=[server.place]) as harbor:
        await harbor.aenqueue("http", http_payload(server.url))
        await drain(harbor)
    assert "traceparent" not in server.request.headers


async def test_no_span_shows_a_payload_an_error_a_url_or_a_header(harbor, server, exporter):
    server.handle = lambda request: reply(500, f"{CANARY}-answer")
    await harbor.aenqueue(
        "http",
        {
            "url": f"{server.url}/{CANARY}-path?token={CANARY}-token",
            "body": {"secret": f"{CANARY}-body"},
            "headers": {"Authorization": f"Bearer {CANARY}-bearer", "X-Api-Key": f"{CANARY}-key"},
        },
        meta={"tenant": f"{CANARY}-meta"},
    )

    def charge(card: str) -> None:
        raise ValueError(f"no such card: {card}")

    @harbor.task(name="charge")
    async def pay(ctx: Context, card: str) -> None:
        await ctx.step("charge", charge, card)

    @harbor.task(name="quote")
    async def quote(card: str) -> str:
        return card

    await pay.aenqueue(f"{CANARY}-card")
    await quote.aenqueue(f"{CANARY}-card")
    await drain(harbor)
    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == {"send default", "process default", "step", "POST"}
    for span in spans:
        assert CANARY not in _everything(span)


def _everything(span: ReadableSpan) -> str:
    shown: list[Any] = [span.to_json(), span.status.description, span.resource.attributes]
    shown += [dict(link.attributes or {}) for link in span.links]
    shown += [(event.name, dict(event.attributes or {})) for event in span.events]
    shown.append(span.context.trace_state)
    return repr(shown)
