"""What the dashboard is made of: pages to look at, and actions that change something, each declared once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from taskharbor.server.tokens import Role

if TYPE_CHECKING:
    from taskharbor.server.dashboard.view import View

Handle = Callable[["View"], Awaitable[Response]]


@dataclass(frozen=True)
class Nav:
    """A page's entry in the navigation."""

    label: str
    key: str  # the letter that opens it
    order: int  # its place: 10 is the overview, 20 the queues …


@dataclass(frozen=True)
class Page:
    """What a path shows."""

    path: str
    handle: Handle
    role: Role | None  # None: no one has to sign in
    query: type[Any] | None
    nav: Nav | None

    @property
    def method(self) -> str:
        return "GET"


@dataclass(frozen=True)
class Action:
    """What a form changes."""

    path: str
    handle: Handle
    role: Role | None  # None: only to sign in
    form: type[Any] | None

    @property
    def method(self) -> str:
        return "POST"


class Pages:
    """The pages and actions of one module, collected by decorators."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.actions: list[Action] = []

    def page(
        self,
        path: str,
        role: Role | None = Role.READ,
        *,
        query: type[Any] | None = None,
        nav: Nav | None = None,
    ) -> Callable[[Handle], Handle]:
        """Collect the handler of GET at this path."""

        def collect(handle: Handle) -> Handle:
            self.pages.append(Page(path, handle, role, query, nav))
            return handle

        return collect

    def action(
        self, path: str, role: Role | None, *, form: type[Any] | None = None
    ) -> Callable[[Handle], Handle]:
        """Collect the handler of POST at this path."""

        def collect(handle: Handle) -> Handle:
            self.actions.append(Action(path, handle, role, form))
            return handle

        return collect
