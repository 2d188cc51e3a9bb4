"""`/live`: tells an open page that the store changed, so that the page asks for its parts anew."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from taskharbor.server.clients import NO_ADDRESS
from taskharbor.server.dashboard.pages import Pages
from taskharbor.server.dashboard.view import PAGE_HEADERS, View
from taskharbor.server.events import CHANGE, Feed, Listener
from taskharbor.server.tokens import Role

pages = Pages()


@pages.page("/live")
async def live(view: View) -> Response:
    """Stream `change`, at most once a second. One watch of the store serves every reader of this process."""
    if view.request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=PAGE_HEADERS)
    feed = view.dashboard.api.feed
    client = view.caller.key if view.caller is not None else NO_ADDRESS
    return LiveStream(view, feed, feed.listen(client, frozenset({CHANGE})))


class LiveStream(StreamingResponse):
    """A stream that gives its place back when it ends."""

    def __init__(self, view: View, feed: Feed, listener: Listener) -> None:
        async def allowed() -> None:
            await view.dashboard.require(view.request, Role.READ)

        messages = feed.stream(listener, allowed)
        super().__init__(messages, media_type="text/event-stream", headers=PAGE_HEADERS)
        self._feed = feed
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # From ASGI 2.4 on, only a failing send shows that the reader left, and some servers never fail there.
        asked_for = {**scope, "asgi": {**scope.get("asgi", {}), "spec_version": "2.3"}}
        try:
            await super().__call__(asked_for, receive, send)
        finally:
            self._feed.leave(self._listener)
