"""An operation of the interface: all that is known of it in one value, for serving, describing and testing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from taskharbor.server.tokens import Role

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.server.events import Feed


@dataclass
class Call:
    """A request that may pass, its parts read and checked."""

    harbor: Harbor
    feed: Feed
    request: Request
    params: dict[str, str]
    query: Any
    body: Any
    client: str  # what the caller is counted by
    allowed: Callable[[], Awaitable[object]]  # raises why it may not pass any more, for what takes long
    beside: Callable[..., Awaitable[Any]]  # does what a large body makes long, so that the loop need not wait


Handle = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True)
class Operation:
    method: str
    path: str  # below the prefix; {name:path} takes slashes as well
    handle: Handle
    summary: str
    role: Role | None  # None: for everybody
    tag: str
    answers: dict[int, Any]  # status → the document's type, or None for no document
    query: type[Any] | None = None
    body: tuple[type[Any], ...] = ()  # one of them
    body_required: bool = True
    choose: Callable[[Any], type[Any]] | None = None  # which of them, by what was sent
    errors: tuple[int, ...] = ()
    examples: dict[str, Any] = field(default_factory=dict)
    media_type: str = "application/json"

    @property
    def shown_path(self) -> str:
        return self.path.replace(":path}", "}")

    @property
    def id(self) -> str:
        return self.handle.__name__


class Routes(list[Operation]):
    """The operations of one resource, collected by a decorator."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def on(self, method: str, path: str, role: Role | None, **rest: Any) -> Callable[[Handle], Handle]:
        def collect(handle: Handle) -> Handle:
            summary = " ".join((handle.__doc__ or "").split())
            self.append(Operation(method, path, handle, summary, role, self._tag, **rest))
            return handle

        return collect


def answer(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def no_content() -> Response:
    return Response(status_code=204)
