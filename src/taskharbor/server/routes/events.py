"""`/events`: a stream of events."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from taskharbor.errors import ConfigurationError
from taskharbor.server import requests
from taskharbor.server.events import Listener
from taskharbor.server.operation import Call, Routes
from taskharbor.server.tokens import Role
from taskharbor.telemetry.events import JOB_EVENTS
from taskharbor.views.job_documents import EventDocument

routes = Routes("events")

STREAMED = frozenset({*JOB_EVENTS, "counts"})


@routes.on(
    "GET",
    "/events",
    Role.READ,
    query=requests.EventsQuery,
    errors=(422, 429),
    event=EventDocument,
)
async def stream_events(call: Call) -> Response:
    """Stream server-sent events: what happens to jobs in this process, and `counts` whenever the counts change."""
    names = _names(call.query.names)
    if call.request.method == "HEAD":
        return Response(media_type="text/event-stream")  # without waiting for the stream
    return EventStream(call, call.feed.listen(call.client, names))


class EventStream(StreamingResponse):
    """A stream that gives its place back when it ends, even if the reader left before the first event."""

    def __init__(self, call: Call, listener: Listener) -> None:
        super().__init__(call.feed.stream(listener, call.allowed), media_type="text/event-stream")
        self._feed = call.feed
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # From ASGI 2.4 on, only a failing send shows that the reader left, and some servers never fail there.
        asked_for = {**scope, "asgi": {**scope.get("asgi", {}), "spec_version": "2.3"}}
        try:
            await super().__call__(asked_for, receive, send)
        finally:
            self._feed.leave(self._listener)


def _names(given: str | None) -> frozenset[str]:
    if given is None:
        return STREAMED
    names = frozenset(name.strip() for name in given.split(","))
    if not names <= STREAMED:
        raise ConfigurationError(f"the events are {', '.join(sorted(STREAMED))}; names holds others")
    return names
