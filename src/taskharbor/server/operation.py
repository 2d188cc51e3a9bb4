"""An operation of the interface: one value with all that serving, describing and testing it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, get_type_hints

from starlette.requests import Request

from taskharbor.server.large_bodies import Place
from taskharbor.server.tokens import Role

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.server.events import Feed
    from taskharbor.telemetry.metrics.store_gauges import StoreGauges


@dataclass
class Call:
    """A request that is authorized, and whose parts are read and checked."""

    harbor: Harbor
    feed: Feed
    request: Request
    params: dict[str, str]
    query: Any
    body: Any
    client: str  # the token or address whose share of the limits the request uses
    allowed: Callable[[], Awaitable[object]]  # raises if the caller may no longer pass; for long responses
    place: Place  # runs the work that a large body makes slow
    status: int  # of the response
    gauges: StoreGauges  # what `/metrics` shows, read at most once a second
    metrics_prefix: str
    role: Role | None  # of the caller; None where no token is needed

    async def job_id(self) -> str:
        """Return the id of the path, which may be the beginning of one."""
        return await self.harbor.jobs._whole_id(self.params["id"])


Handle = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    """What is served at one path by one method. The handler's return annotation is the document of its response."""

    method: str
    path: str  # below the prefix; {name:path} takes slashes as well
    handle: Handle
    role: Role | None  # None: no token is needed
    tag: str
    statuses: tuple[int, ...] = (200,)  # the first one, unless the handler sets another
    query: type[Any] | None = None
    body: tuple[type[Any], ...] = ()  # one of them
    body_required: bool = True
    choose: Callable[[Any], type[Any]] | None = None  # which of them, by what was sent
    errors: tuple[int, ...] = ()
    examples: dict[str, Any] = field(default_factory=dict)
    event: type[Any] | None = None  # the document of each event, if the response is a stream
    text: str | None = None  # the media type of a response that is text and no document

    @property
    def summary(self) -> str:
        return " ".join((self.handle.__doc__ or "").split())

    @property
    def document(self) -> Any:
        """The type of the document in the response; None if there is no document."""
        returned = str if self.event or self.text else get_type_hints(self.handle)["return"]
        return None if returned is NoneType else returned

    @property
    def media_type(self) -> str:
        return self.text or ("text/event-stream" if self.event else "application/json")

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
            self.append(Operation(method, path, handle, role, self._tag, **rest))
            return handle

        return collect
