"""`/help`: what the dashboard shows, its keys, and where to read more."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.server.dashboard.pages import Pages
from taskharbor.server.dashboard.view import View

pages = Pages()


@pages.page("/help")
async def show_help(view: View) -> Response:
    """Explain the pages, the words and the keys."""
    return view.render("help.html")
