"""The application: the operations as routes, and what surrounds each of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskharbor.acting import acting_as
from taskharbor.server import clients
from taskharbor.server.auth import Auth, Authorize, Caller
from taskharbor.server.clients import NO_ADDRESS
from taskharbor.server.dashboard.site import Dashboard
from taskharbor.server.docs_page import shown_documents, shown_operations
from taskharbor.server.errors import ApiError, api_error
from taskharbor.server.events import Feed
from taskharbor.server.large_bodies import LargeBodies, Place
from taskharbor.server.limits import converted, parsed_json, parsed_query, read_body, refuse_other_types
from taskharbor.server.openapi import openapi
from taskharbor.server.operation import Call, Operation
from taskharbor.server.routes import OPERATIONS, PREFIX, ROOT_OPERATIONS
from taskharbor.server.routing import NamedRoute
from taskharbor.server.unread import UnreadBodies
from taskharbor.telemetry.metrics.catalogue import PREFIX as METRICS_PREFIX
from taskharbor.telemetry.metrics.store_gauges import StoreGauges

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


def application(
    harbor: Harbor,
    *,
    open_on_loopback: bool = False,
    authorize: Authorize | None = None,
    trusted_proxies: Iterable[str] | None = None,
    metrics_prefix: str = METRICS_PREFIX,
) -> Starlette:
    """Build the REST interface and the dashboard of a harbor, to be served or mounted.

    `authorize` replaces the tokens in the store: it takes the request, and returns a role or None.
    `trusted_proxies` are the addresses whose `X-Forwarded-For` counts. `metrics_prefix` begins the names at `/metrics`.
    """
    from taskharbor import __version__

    auth = Auth(
        harbor.driver,
        open_on_loopback=open_on_loopback,
        authorize=authorize,
        proxies=clients.trusted_proxies(trusted_proxies),
    )
    api = Api(harbor, auth, metrics_prefix)
    described = [*((PREFIX, each) for each in OPERATIONS), *(("", each) for each in ROOT_OPERATIONS)]
    dashboard = Dashboard(api)
    app = Starlette(
        routes=[
            *_routes(api, described),
            *_documentation(dashboard, described, __version__),
            *dashboard.routes(),
        ],
        middleware=[Middleware(SecurityHeaders), Middleware(UnreadBodies)],
        exception_handlers={HTTPException: _http_exception},
    )
    app.router.redirect_slashes = False
    app.state.feed = api.feed
    app.state.dashboard = dashboard
    return app


def _routes(api: Api, described: Iterable[tuple[str, Operation]]) -> list[Route]:
    paths: dict[str, dict[str, Operation]] = {}
    for prefix, operation in described:
        paths.setdefault(prefix + operation.path, {})[operation.method] = operation
    return [NamedRoute(path, Path(api, operations)) for path, operations in paths.items()]


class Api:
    """What the operations of one application share."""

    def __init__(self, harbor: Harbor, auth: Auth, metrics_prefix: str) -> None:
        self.harbor = harbor
        self.auth = auth
        self.feed = Feed(harbor)
        self.large_bodies = LargeBodies()
        self.gauges = StoreGauges()
        self.metrics_prefix = metrics_prefix

    async def respond(self, operation: Operation, request: Request) -> Response:
        """Authorize the request, then check it, then handle it."""
        caller = await self._allow(operation, request)
        client = caller.key if caller is not None else NO_ADDRESS
        query = parsed_query(request.scope["query_string"], operation.query)
        with self.large_bodies.place(client) as place:
            body = await self._body(operation, request, place)
            allowed = lambda: self._allow(operation, request)  # noqa: E731
            call = Call(
                self.harbor,
                self.feed,
                request,
                request.path_params,
                query,
                body,
                client,
                allowed,
                place,
                operation.statuses[0],
                self.gauges,
                self.metrics_prefix,
                None if caller is None else caller.role,
            )
            with nullcontext() if caller is None else acting_as(caller.name):
                document = await operation.handle(call)
            if isinstance(document, Response):
                return document
            if document is None:
                return Response(status_code=call.status)
            encoded = await place.beside(msgspec.json.encode, document)
            return Response(encoded, call.status, media_type=operation.media_type)

    async def _allow(self, operation: Operation, request: Request) -> Caller | None:
        return None if operation.role is None else await self.auth.require(request, operation.role)

    async def _body(self, operation: Operation, request: Request, place: Place) -> Any:
        if operation.method in ("GET", "HEAD"):
            return None
        body = await read_body(request, place)
        refuse_other_types(request, has_body=bool(body))
        if not operation.body:
            if body.strip() not in (b"", b"{}", b"null"):
                raise ApiError(400, "malformed", "this path takes an empty body")
            return None
        if not body and not operation.body_required:
            return operation.body[0]()
        document = await place.beside(parsed_json, body)
        return converted(document, operation.choose(document) if operation.choose else operation.body[0])


class Path:
    """The operations at one path, by method."""

    def __init__(self, api: Api, operations: dict[str, Operation]) -> None:
        self._api = api
        self._operations = operations
        if "GET" in operations:
            operations["HEAD"] = operations["GET"]
        self._allow = ", ".join(sorted(operations))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._response(request)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        operation = self._operations.get(request.method)
        try:
            if operation is None:
                raise ApiError(
                    405,
                    "method_not_allowed",
                    f"this path takes {self._allow}",
                    headers={"Allow": self._allow},
                )
            return await self._api.respond(operation, request)
        except Exception as error:  # noqa: BLE001 - every error gets the one shape
            return api_error(error).response()


# -- around the operations -----------------------------------------------------------------------------------


class SecurityHeaders:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {
        404: ("not_found", "nothing is at this path; /docs lists every path"),
        405: ("method_not_allowed", "this path does not take this method; /docs lists every path"),
    }
    code, message = known.get(error.status_code, ("refused", str(error.detail)))
    refused = ApiError(error.status_code, code, message, headers=error.headers)
    if "text/html" in request.headers.get("accept", ""):  # a person looks at it
        dashboard: Dashboard = request.app.state.dashboard
        return await dashboard.refusal(request, refused)
    return refused.response()


def _documentation(dashboard: Dashboard, described: list[tuple[str, Operation]], version: str) -> list[Route]:
    def document(request: Request) -> dict[str, Any]:
        return openapi(described, version, servers=request.scope.get("root_path") or "/")

    async def openapi_json(request: Request) -> Response:
        return Response(msgspec.json.encode(document(request)), media_type="application/json")

    async def docs(request: Request) -> Response:
        shown = document(request)
        view = await dashboard.visit(request)
        return view.render(
            "docs.html",
            info=shown["info"],
            groups=shown_operations(shown, view.absolute().rstrip("/")),
            documents=shown_documents(shown),
        )

    return [Route("/openapi.json", openapi_json), Route("/docs", docs)]
