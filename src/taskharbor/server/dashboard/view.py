"""A view: one request for a page or an action, authorized, with what its handler needs."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from taskharbor.client.naming import store_words
from taskharbor.clock import from_micros
from taskharbor.codec.problems import reason_of
from taskharbor.server.auth import Caller, refuse_too_low
from taskharbor.server.clients import NO_ADDRESS
from taskharbor.server.dashboard import rendering
from taskharbor.server.dashboard.origin import is_secure, own_host
from taskharbor.server.dashboard.shared import QUERIES_OF_ONE, STALE_SECONDS, Reader
from taskharbor.server.errors import ApiError, malformed
from taskharbor.server.limits import choices
from taskharbor.server.operation import Call, Handle, Operation
from taskharbor.server.routes import OPERATIONS, ROOT_OPERATIONS
from taskharbor.server.tokens import Role

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.server.dashboard.site import Dashboard

LIVE_HEADER = "x-taskharbor-live"  # a request for the parts of a page that follow the store
LIVE_SECONDS = 1.0  # how long live updates share an answer of the store
# How many statements the operations are that live pages ask; others are QUERIES_OF_ONE at most, as a test finds out.
QUERIES = {
    "get_history": 4,
    "get_job": 2,
    "get_schedule": 1,
    "get_workflow": 1,
    "list_actions": 1,
    "list_dead_jobs": 1,
    "list_error_groups": 1,
    "list_jobs": 1,
    "list_schedules": 1,
    "list_streams": 1,
    "list_tasks": 2,
    "list_workflows": 1,
}
NOTICE_COOKIE = "taskharbor_notice"
NOTICE_MAX = 300  # characters

# What a line for a shell may name: a client, or a proxy that passes everything on, writes the header.
_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
_OPERATION_OF: dict[Handle, Operation] = {each.handle: each for each in (*OPERATIONS, *ROOT_OPERATIONS)}

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    # With no-referrer, browsers send forms with the origin `null`, which another site's forms may have as well.
    "Referrer-Policy": "same-origin",
}


class View:
    """One request. See the package's docstring for how pages use it."""

    def __init__(
        self, dashboard: Dashboard, request: Request, caller: Caller | None, query: Any, form: Any
    ) -> None:
        self._dashboard = dashboard
        self.request = request
        self.caller = caller
        self.query = query
        self.form = form
        self._reader = Reader.PERSON
        if self.is_live:
            is_left = dashboard.documents.allowance.is_left()
            self._reader = Reader.OPEN_PAGE if is_left else Reader.LATE_PAGE

    @property
    def harbor(self) -> Harbor:
        return self._dashboard.api.harbor

    @property
    def dashboard(self) -> Dashboard:
        return self._dashboard

    @property
    def params(self) -> dict[str, str]:
        """The parts of the path."""
        return self.request.path_params

    @property
    def mount(self) -> str:
        """Where the application is mounted: nothing, or a path without a slash at its end."""
        return mount_of(self.request)

    @property
    def path(self) -> str:
        """The path of this page below the mount."""
        return path_of(self.request)

    @property
    def is_live(self) -> bool:
        """Whether a page that is open asks for what changed."""
        return LIVE_HEADER in self.request.headers

    @property
    def is_from_script(self) -> bool:
        return self.request.headers.get("hx-request") == "true"

    def may(self, role: Role | str) -> bool:
        """Whether the caller has this role. Templates leave out what the caller may not do."""
        return self.caller is not None and self.caller.role.allows(Role(role))

    def url(self, *parts: object, **query: object) -> str:
        """Write an address below the mount from parts of a path, each escaped, and a query without its None."""
        path = "/".join(quote(str(part), safe="") for part in parts)
        given = {name: str(value) for name, value in query.items() if value is not None}
        return f"{self.mount}/{path}" + (f"?{urlencode(given)}" if given else "")

    def absolute(self, *parts: object) -> str:
        """Write a whole address, for a line to copy."""
        proxies = self._dashboard.api.auth.proxies
        scheme = "https" if is_secure(self.request, proxies) else "http"
        host = own_host(self.request, proxies)
        return f"{scheme}://{host if _HOST.fullmatch(host) else 'localhost'}{self.url(*parts)}"

    def on_store(self, line: str) -> str:
        """Return a line of the command line to copy, so that it acts on this store; any other text as it is.

        Who has not signed in learns nothing of where the store is.
        """
        if not line.startswith("taskharbor ") or self.caller is None:
            return line
        words = store_words(self.harbor)
        if words.startswith(" -A "):
            line = line.replace(" -A app:harbor", "")
        elif " -A " in line:  # of an application that this server does not know
            return line
        return line + words

    def asset(self, name: str) -> str:
        return self.mount + rendering.asset_address(name)

    async def ask(
        self,
        handle: Handle,
        *,
        params: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | msgspec.Struct | None = None,
        body: Mapping[str, Any] | msgspec.Struct | None = None,
        seconds: float | None = None,
        stale: float = STALE_SECONDS,
        wait: float | None = None,
    ) -> Any:
        """Do what an operation of REST does, with its checks and its role; return its document.

        A document of the store may be up to `seconds` old: by default a second for a live update, and else not at all.
        One that is slow to read may be up to `stale` seconds old while it is renewed. With `wait`, the answer is None
        if it takes longer than these seconds.
        """
        operation = _OPERATION_OF[handle]
        if operation.role is not None:
            refuse_too_low(self.caller.role if self.caller is not None else Role.READ, operation.role)
        asked = _converted(query, operation.query)
        if operation.method != "GET":
            with self._dashboard.acting(self.caller):
                return await self._call(operation, dict(params or {}), asked, body)
        if seconds is None:
            seconds = LIVE_SECONDS if self.is_live else 0.0
        if not seconds:
            return await self._call(operation, dict(params or {}), asked, None)
        role = None if self.caller is None else self.caller.role
        key = (
            operation.id,
            role,
            *sorted((params or {}).items()),
            b"" if asked is None else msgspec.json.encode(asked),
        )
        return await self._dashboard.documents.read(
            key,
            seconds,
            lambda: self._call(operation, dict(params or {}), asked, None),
            reader=self._reader,
            queries=QUERIES.get(operation.id, QUERIES_OF_ONE),
            stale=stale,
            wait=wait,
        )

    async def _call(self, operation: Operation, params: dict[str, str], query: Any, body: Any) -> Any:
        api = self._dashboard.api
        client = self.caller.key if self.caller is not None else NO_ADDRESS
        sent = None
        if operation.body:
            given = {} if body is None else body
            sent = _converted(given, operation.choose(given) if operation.choose else operation.body[0])

        async def allowed() -> None:
            await self._dashboard.require(self.request, operation.role)

        with api.large_bodies.place(client) as place:
            call = Call(
                api.harbor,
                api.feed,
                self.request,
                params,
                query,
                sent,
                client,
                allowed,
                place,
                operation.statuses[0],
                api.gauges,
                api.metrics_prefix,
                None if self.caller is None else self.caller.role,
            )
            return await operation.handle(call)

    async def share(
        self,
        key: str,
        seconds: float,
        ask: Callable[[], Awaitable[Any]],
        *,
        queries: int = QUERIES_OF_ONE,
        wait: float | None = None,
    ) -> Any:
        """Return what `ask` reads, up to `seconds` old, shared by every tab. It must be the same for every role.

        `queries` is how many statements that is. With `wait`, the answer is None if it takes longer.
        """
        return await self._dashboard.documents.read(
            (key, None), seconds, ask, reader=self._reader, queries=queries, wait=wait
        )

    async def now(self) -> datetime:
        """Return the store's time, up to a second ago."""
        return from_micros(await self.share("now", LIVE_SECONDS, self.harbor.driver.now, queries=1))

    # -- responses --

    def render(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """Render a page, or the parts of it that follow the store."""
        notice = None if self.is_live else self.request.cookies.get(NOTICE_COOKIE)
        text = rendering.render(
            template,
            {
                "view": self,
                "layout": "fragments.html" if self.is_live else "layout.html",
                "entries": self._dashboard.entries,
                "notice": _readable(notice),
                **context,
            },
        )
        response = HTMLResponse(text, status, headers=PAGE_HEADERS)
        if notice is not None:
            response.delete_cookie(NOTICE_COOKIE, self.mount or "/")
        return response

    def done(self, message: str, to: str) -> Response:
        """Say what an action did: on the page that is open, or on the page `to` if the browser runs no script."""
        if self.is_from_script:
            shown = {"harbor:notice": {"text": message[:NOTICE_MAX], "tone": "good"}, "harbor:refresh": {}}
            return Response(status_code=204, headers={"HX-Trigger": json.dumps(shown), **PAGE_HEADERS})
        return self.go(to, message)

    def failed(self, error: ApiError) -> Response:
        """Say on the page that is open why an action was refused."""
        shown = {"harbor:notice": {"text": error.message[:NOTICE_MAX], "tone": "bad"}}
        headers = {**error.headers, **PAGE_HEADERS, "HX-Trigger": json.dumps(shown)}
        return Response(status_code=error.status, headers=headers)

    def go(self, to: str, message: str | None = None) -> Response:
        """Open another page, which shows the message."""
        if self.is_from_script:
            response: Response = Response(status_code=204, headers={"HX-Redirect": to, **PAGE_HEADERS})
        else:
            response = RedirectResponse(to, 303, headers=PAGE_HEADERS)
        if message is not None:
            response.set_cookie(
                NOTICE_COOKIE,
                quote(message[:NOTICE_MAX], safe=""),
                max_age=60,
                path=self.mount or "/",
                secure=is_secure(self.request, self._dashboard.api.auth.proxies),
                httponly=True,
                samesite="strict",
            )
        return response


def mount_of(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def path_of(request: Request) -> str:
    path, mount = str(request.scope["path"]), mount_of(request)
    return path[len(mount) :] if mount and path.startswith(mount) else path


def _converted(given: Any, kind: type[Any] | None) -> Any:
    """Check what a page asks for, as REST checks what a caller sends."""
    if kind is None or isinstance(given, kind):
        return given
    try:
        return msgspec.convert({} if given is None else given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise malformed(f"the page cannot ask for this: {reason_of(error)}{choices(error, kind)}") from None


def _readable(notice: str | None) -> str | None:
    return None if notice is None else unquote(notice)[:NOTICE_MAX]
