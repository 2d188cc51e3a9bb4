"""Routes whose names may contain slashes."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.routing import Match, Route
from starlette.types import Scope


class NamedRoute(Route):
    """A route whose name may contain escaped slashes: `a%2Frun` is a name, and `a/run` runs `a`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        last = self.path.rpartition("/")[2]
        raw: bytes | None = scope.get("raw_path")
        if raw is not None and "{" not in last and unquote_to_bytes(raw.rpartition(b"/")[2]) != last.encode():
            return Match.NONE, {}
        return super().matches(scope)
