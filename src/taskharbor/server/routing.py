"""Routes whose names may contain slashes, and an application below a path that a proxy adds."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError


class NamedRoute(Route):
    """A route whose name may contain escaped slashes: `a%2Frun` is a name, and `a/run` runs `a`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        last = self.path.rpartition("/")[2]
        raw: bytes | None = scope.get("raw_path")
        if raw is not None and "{" not in last and unquote_to_bytes(raw.rpartition(b"/")[2]) != last.encode():
            return Match.NONE, {}
        return super().matches(scope)


_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def checked_path_prefix(given: str) -> str:
    """Return the path that a server is reached below, without a slash at its end."""
    prefix = given.rstrip("/")
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(f"a path prefix is a path such as /harbor, not {shorten(given)}")
    return prefix


class Prefixed:
    """An application that callers reach below a path, whether the proxy before it removes that path or not."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._prefix:
            path = scope["path"]
            whole = (
                path if path == self._prefix or path.startswith(f"{self._prefix}/") else self._prefix + path
            )
            scope = {**scope, "root_path": self._prefix, "path": whole}
            if whole == self._prefix:  # without the slash at its end
                scope |= {"path": f"{whole}/", "raw_path": f"{whole}/".encode()}
        await self._app(scope, receive, send)
