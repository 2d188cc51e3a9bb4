"""Handlers that run in processes of their own, for the tests of tracing."""

from __future__ import annotations

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from taskharbor import Context, Harbor
from taskharbor.telemetry.tracing import instrument

harbor = Harbor("memory://")
instrument(harbor)


@harbor.task(name="traced.child")
def child() -> None: ...


@harbor.task(name="traced.parent", isolation="process", max_attempts=1)
async def parent(ctx: Context) -> str:
    """Enqueue a child, and return the context of the span that is current here."""
    ctx.enqueue(child.s())
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "none")


def traceparent() -> str:
    """Return the context of the span that is current in a synchronous handler."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "none")
