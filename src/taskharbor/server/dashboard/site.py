"""The dashboard as a whole: every page and every action, who may have them, and what a refusal looks like."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from taskharbor.acting import acting_as
from taskharbor.errors import StoreError
from taskharbor.server.auth import Caller, refuse_too_low
from taskharbor.server.dashboard import (
    routes_enqueue,
    routes_errors,
    routes_help,
    routes_job,
    routes_jobs,
    routes_live,
    routes_overview,
    routes_queues,
    routes_schedules,
    routes_sign_in,
    routes_streams,
    routes_system,
    routes_workers,
    routes_workflows,
)
from taskharbor.server.dashboard.assets import serve_asset
from taskharbor.server.dashboard.forms import parsed_form, read_form
from taskharbor.server.dashboard.origin import refuse_other_origins
from taskharbor.server.dashboard.pages import Action, Page
from taskharbor.server.dashboard.routes_sign_in import NEXT_MAX
from taskharbor.server.dashboard.sessions import COOKIE, Sessions
from taskharbor.server.dashboard.shared import NotNow, SharedDocuments
from taskharbor.server.dashboard.view import PAGE_HEADERS, View, path_of
from taskharbor.server.errors import ApiError, api_error
from taskharbor.server.limits import parsed_query
from taskharbor.server.routing import NamedRoute
from taskharbor.server.tokens import Role

if TYPE_CHECKING:
    from taskharbor.server.app import Api

MODULES = (
    routes_overview,
    routes_jobs,
    routes_job,
    routes_errors,
    routes_schedules,
    routes_workflows,
    routes_workers,
    routes_streams,
    routes_enqueue,
    routes_system,
    routes_queues,
    routes_help,
    routes_sign_in,
    routes_live,
)
PAGES: tuple[Page, ...] = tuple(page for module in MODULES for page in module.pages.pages)
ACTIONS: tuple[Action, ...] = tuple(action for module in MODULES for action in module.pages.actions)


class Dashboard:
    """What the pages of one application share."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.sessions = Sessions(api.harbor.driver)
        self.documents = SharedDocuments()
        named = [page for page in PAGES if page.nav is not None]
        self.entries = sorted(named, key=lambda page: page.nav.order if page.nav is not None else 0)

    def routes(self) -> list[BaseRoute]:
        """Return a route for each path, and the one of the assets."""
        paths: dict[str, dict[str, Page | Action]] = {}
        declared: list[Page | Action] = [*PAGES, *ACTIONS]
        for each in declared:
            if each.method in paths.setdefault(each.path, {}):
                raise AssertionError(f"{each.method} {each.path} is declared twice")
            paths[each.path][each.method] = each
        # A path with a fixed end comes first: /queues/{name}/pause is not the page of a queue.
        order = sorted(paths, key=lambda path: (path.endswith("}"), -path.count("/")))
        return [
            *(NamedRoute(path, _Path(self, paths[path])) for path in order),
            Route("/static/{hash}/{name}", serve_asset),
        ]

    def acting(self, caller: Caller | None) -> AbstractContextManager[None]:
        """Let what is done be recorded under the caller's name, and let every page show it at once."""
        self.documents.forget()
        return nullcontext() if caller is None else acting_as(caller.name)

    async def caller(self, request: Request) -> Caller | None:
        """Return who looks at a page; None: it has to sign in."""
        session = None
        if self.api.auth.takes_tokens:
            session = await self.sessions.find(request.cookies.get(COOKIE))
        return await self.api.auth.caller_with_session(request, None if session is None else session.token_id)

    async def require(self, request: Request, needed: Role | None) -> Caller | None:
        """Return the caller, or raise the error that refuses the request."""
        if needed is None:
            return None
        caller = await self.caller(request)
        if caller is None:
            raise ApiError(401, "unauthorized", "sign in first")
        refuse_too_low(caller.role, needed)
        return caller

    async def visit(self, request: Request) -> View:
        """Return a view for a page that anyone may see, with its caller if there is one."""
        try:
            caller = await self.caller(request)
        except (ApiError, StoreError):
            caller = None
        return View(self, request, caller, None, None)

    async def respond(self, entry: Page | Action, request: Request) -> Response:
        """Authorize the request, then check it, then handle it."""
        if isinstance(entry, Action):
            refuse_other_origins(request, self.api.auth.proxies)
        caller = await self.require(request, entry.role)
        query: Any = None
        form: Any = None
        if isinstance(entry, Page):
            query = parsed_query(request.scope["query_string"], entry.query)
        else:
            parsed_query(request.scope["query_string"], None)
            form = parsed_form(await read_form(request, self.api.large_bodies, caller), entry.form)
        view = View(self, request, caller, query, form)
        try:
            response = await entry.handle(view)
        except NotNow:
            response = Response(status_code=204, headers=PAGE_HEADERS)  # the page stays as it is
        if isinstance(entry, Action):
            self.documents.forget()
        return response

    async def refusal(self, request: Request, error: ApiError) -> Response:
        """Say what is wrong: on the sign-in page, on the page that is open, or on a page of its own."""
        view = View(self, request, None, None, None)
        if view.is_live:
            return error.response()
        if error.status == 401 and self.api.auth.takes_tokens and not view.is_from_script:
            if request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
                return _once_more()
            after = path_of(request) if request.method == "GET" else "/"
            query = request.url.query if request.method == "GET" else ""
            wanted = after + (f"?{query}" if query else "")
            is_kept = wanted != "/" and len(wanted) <= NEXT_MAX
            return view.go(view.url("sign-in", next=wanted if is_kept else None))
        if view.is_from_script:
            return view.failed(error)
        view = await self.visit(request)
        response = view.render("error.html", status=error.status, error=error)
        response.headers.update(error.headers)
        return response


def _once_more() -> Response:
    """Let the browser ask again by itself: it sends a strict cookie only with requests that our own page begins."""
    page = '<!doctype html><html lang="en"><title>TaskHarbor</title><meta http-equiv="refresh" content="0"></html>'
    return HTMLResponse(page, headers=PAGE_HEADERS)


class _Path:
    """What is at one path, by method."""

    def __init__(self, dashboard: Dashboard, entries: dict[str, Page | Action]) -> None:
        self._dashboard = dashboard
        self._entries = entries
        if "GET" in entries:
            entries["HEAD"] = entries["GET"]
        self._allow = ", ".join(sorted(entries))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._response(request)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        try:
            try:
                entry = self._entries.get(request.method)
                if entry is None:
                    headers = {"Allow": self._allow}
                    message = f"this path takes {self._allow}"
                    raise ApiError(405, "method_not_allowed", message, headers=headers)
                return await self._dashboard.respond(entry, request)
            except Exception as error:  # noqa: BLE001 - every error gets the one shape
                return await self._dashboard.refusal(request, api_error(error))
        except Exception as error:  # noqa: BLE001 - nor may the page of an error fail
            return api_error(error).response()
