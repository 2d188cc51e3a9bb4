"""`/streams`: the topics that live workers read, partition by partition."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.routes import streams

pages = Pages()

STREAMS_SECONDS = 5.0


@pages.page("/streams", nav=Nav("Streams", key="m", order=70))
async def show_streams(view: View) -> Response:
    """Show the lag and the state of each partition."""
    found = await view.ask(streams.list_streams, seconds=STREAMS_SECONDS)
    return view.render("streams.html", streams=found.items)
