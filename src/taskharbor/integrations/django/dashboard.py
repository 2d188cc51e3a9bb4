"""The dashboard and the REST interface at a URL of the project: `path("jobs/", include(dashboard_urls()))`.

Both are an ASGI application. Under ASGI it runs on the loop of the request. Under WSGI it runs on a loop that lasts as
long as the process, and streams of events are refused: each would occupy a thread of the server for as long as a page
is open. The dashboard then asks for changes every five seconds instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import re_path
from django.views.decorators.csrf import csrf_exempt

from taskharbor.integrations.django.harbors import get_harbor
from taskharbor.sync import run_on_loop_thread

Allowed = str | tuple[str, str] | None
Authorize = Callable[[Any], Allowed]

_REQUEST = "taskharbor.django"  # in the scope: what Django's request may do
_SAFE = ("GET", "HEAD", "OPTIONS")
_STREAM = "text/event-stream"
_FOR_PROGRAMS = ("api/", "metrics")  # a form to sign in would be no answer to a program


def staff(request: HttpRequest) -> Allowed:
    """Let staff read, and superusers do everything. The audit records the name of the user."""
    user = getattr(request, "user", None)
    if user is None or not user.is_active or not user.is_staff:
        return None
    return ("admin" if user.is_superuser else "read"), user.get_username()


def dashboard_urls(backend: str | None = None, *, authorize: Authorize = staff) -> list[Any]:
    """Return the URL patterns of the dashboard of a backend, or of the first one that is TaskHarbor's.

    `authorize` takes Django's request, and returns "read", "write" or "admin", or None to refuse; or one of these and
    the name that the audit records. A visitor who is not signed in is sent to LOGIN_URL.
    """
    served = _Served(backend, authorize)

    # Django checks a token that its own templates write. These pages have none: `_refuse_other_sites` protects them.
    @csrf_exempt  # type: ignore[untyped-decorator]
    async def dashboard(request: HttpRequest, path: str) -> HttpResponse:
        return await served.respond(request, path)

    return [re_path(r"^(?P<path>.*)$", dashboard, name="taskharbor")]


class _Served:
    """The application of one backend. It is made on first use, because URLs are read before a database is needed."""

    def __init__(self, backend: str | None, authorize: Authorize) -> None:
        self._backend = backend
        self._authorize = authorize
        self._made: dict[int, Any] = {}  # by the harbor, which tests replace

    async def respond(self, request: HttpRequest, path: str) -> HttpResponse:
        if not path and not request.path.endswith("/"):
            raise PermissionDenied("the URL of the dashboard ends with a slash")
        allowed = await sync_to_async(self._authorize)(request)  # it may ask the database for the user
        if allowed is None:
            return await sync_to_async(_refuse)(request, path)
        _refuse_other_sites(request)
        call = _Call(_scope(request, path, allowed), request.body)
        if isinstance(request, ASGIRequest):
            return await call.answer(self._app())
        return await asyncio.to_thread(run_on_loop_thread, call.whole_answer(self._app()))

    def _app(self) -> Any:
        harbor = get_harbor(self._backend)
        if id(harbor) not in self._made:
            self._made[id(harbor)] = harbor.asgi(authorize=lambda request: request.scope[_REQUEST])
        return self._made[id(harbor)]


def _refuse(request: HttpRequest, path: str) -> HttpResponse:
    user = getattr(request, "user", None)
    wants_page = (
        request.method in ("GET", "HEAD")
        and request.headers.get("Sec-Fetch-Dest", "document") == "document"
        and not path.startswith(_FOR_PROGRAMS)
    )
    if (user is None or not user.is_authenticated) and wants_page:
        return redirect_to_login(request.get_full_path())
    raise PermissionDenied


def _refuse_other_sites(request: HttpRequest) -> None:
    """Refuse a change that a page of another site sent: the session's cookie comes along with it."""
    if request.method in _SAFE:
        return
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if origin is None or site != "same-origin" or urlsplit(origin).netloc != request.get_host():
        raise PermissionDenied("the dashboard takes changes only from its own pages")


def _scope(request: HttpRequest, path: str, allowed: Allowed) -> dict[str, Any]:
    """Return what ASGI says of a request, with the place of the dashboard as the root of its paths."""
    root = request.path[: len(request.path) - len(path)].rstrip("/")
    address = request.META.get("REMOTE_ADDR")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.get_full_path().partition("?")[0].encode("ascii", "surrogateescape"),
        "root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": _headers(request),
        "client": (address, int(request.META.get("REMOTE_PORT") or 0)) if address else None,
        "server": (request.META.get("SERVER_NAME", ""), int(request.META.get("SERVER_PORT") or 0)),
        "state": {},
        _REQUEST: allowed,
    }


def _headers(request: HttpRequest) -> list[tuple[bytes, bytes]]:
    # The host is the one that Django has checked, and that a proxy may name if the settings trust it.
    named = {name.lower(): value for name, value in request.headers.items()} | {"host": request.get_host()}
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]


class _Call:
    """One request to the ASGI application, and its answer as Django has it."""

    def __init__(self, scope: dict[str, Any], body: bytes) -> None:
        self._scope = scope
        self._body: bytes | None = body
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=16)
        self._gone = asyncio.Event()

    async def whole_answer(self, app: Any) -> HttpResponse:
        """Return the answer as a whole; refuse a stream, which has no end."""
        return await self._answered(app, streams=False)

    async def answer(self, app: Any) -> HttpResponse:
        """Return the answer; a stream goes on while the server reads it."""
        return await self._answered(app, streams=True)

    async def _answered(self, app: Any, streams: bool) -> HttpResponse:
        running = asyncio.get_running_loop().create_task(app(self._scope, self._receive, self._sent.put))
        lasts = False
        try:
            start = await self._next(running)
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
            kind = next((value for name, value in headers if name.lower() == "content-type"), "")
            if not kind.startswith(_STREAM) or self._scope["method"] == "HEAD":
                content = b"".join([part async for part in self._parts(running)])
                return _with_headers(HttpResponse(content, status=start["status"]), headers)
            if not streams:
                text = "this server runs under WSGI, which has no room for streams of events: ask again instead\n"
                return HttpResponse(text, status=503, content_type="text/plain; charset=utf-8")
            lasts = True
            stream = _Stream(self._parts(running), partial(self._end_soon, running))
            return _with_headers(StreamingHttpResponse(stream, status=start["status"]), headers)
        finally:
            if not lasts:
                await self._end(running)

    async def _parts(self, running: asyncio.Task[None]) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._next(running)
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def _next(self, running: asyncio.Task[None]) -> dict[str, Any]:
        """Return the next message that the application sends, or raise what it raised."""
        waiting = asyncio.ensure_future(self._sent.get())
        try:
            await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if not self._sent.empty():
                return self._sent.get_nowait()
            running.result()
            raise RuntimeError("the dashboard ended before its answer did")
        finally:
            waiting.cancel()

    async def _end(self, running: asyncio.Task[None]) -> None:
        self._end_soon(running)
        await asyncio.wait([running])

    def _end_soon(self, running: asyncio.Task[None]) -> None:
        self._gone.set()
        running.cancel()

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}


class _Stream:
    """An answer without an end. The application stops with its reader, even with one that never began to read.

    Django calls `close`, from any thread, unless the visitor left while the answer was on its way through middleware:
    then it drops the answer.
    """

    def __init__(self, parts: AsyncIterator[bytes], end: Callable[[], object]) -> None:
        self._parts = parts
        self._end = end
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    def close(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop is closed, and the application with it
            pass

    __del__ = close


def _with_headers(response: Any, headers: list[tuple[str, str]]) -> Any:
    del response.headers["Content-Type"]
    for name, value in headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        elif name.lower() != "content-length":  # Django's own middleware counts what it sends
            response.headers[name] = value
    return response
