"""`/events`: a stream of what happens."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse

from taskharbor.client.events import JOB_EVENTS
from taskharbor.errors import ConfigurationError
from taskharbor.server import documents
from taskharbor.server.operation import Call, Routes
from taskharbor.tokens import Role

routes = Routes("events")

STREAMED = frozenset({*JOB_EVENTS, "counts"})


@routes.on(
    "GET",
    "/events",
    Role.READ,
    query=documents.EventsQuery,
    answers={200: str},
    errors=(422, 429),
    media_type="text/event-stream",
)
async def stream_events(call: Call) -> Response:
    """What happens to jobs in this process, and `counts` whenever those of the store change, as server-sent events."""
    names = _names(call.query.names)
    if call.request.method == "HEAD":
        return Response(media_type="text/event-stream")  # there is no stream to wait for
    listener = call.feed.listen()
    return StreamingResponse(call.feed.stream(listener, names, call.allowed), media_type="text/event-stream")


def _names(given: str | None) -> frozenset[str]:
    if given is None:
        return STREAMED
    names = frozenset(name.strip() for name in given.split(","))
    if not names <= STREAMED:
        raise ConfigurationError(f"the events are {', '.join(sorted(STREAMED))}; names holds others")
    return names
