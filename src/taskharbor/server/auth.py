"""Who asks, and what they may do."""

from __future__ import annotations

import inspect
import ipaddress
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.requests import Request

from taskharbor.drivers.base import Driver
from taskharbor.job import TokenRecord
from taskharbor.server.errors import ApiError
from taskharbor.server.limits import Failures
from taskharbor.tokens import Role, checked_role, matching

TOKENS_SECONDS = 1.0  # for so long a token that was revoked may still be taken

Authorize = Callable[[Request], Role | str | None | Awaitable[Role | str | None]]


class Auth:
    """Decides by the application's own `authorize`, or else by the tokens in the store.

    With `open_on_loopback`, everybody who can reach a server on loopback may do everything, until the store has a
    token. From then on it stays closed, also when the last one is revoked: a proxy may stand before it. Browsers can
    reach an open one as well, for any site they show: those are told by the names they use.
    """

    def __init__(
        self, driver: Driver, *, open_on_loopback: bool = False, authorize: Authorize | None = None
    ) -> None:
        self._driver = driver
        self._open_on_loopback = open_on_loopback
        self._authorize = authorize
        self._failures = Failures()
        self._tokens: dict[str, TokenRecord] = {}
        self._read_at: float | None = None

    async def require(self, request: Request, needed: Role) -> None:
        """Let the request pass, or raise why it may not."""
        role = await self._role_of(request)
        if not role.allows(needed):
            raise ApiError(
                403, "forbidden", f"this takes the role {needed}, and yours is {role}", {"role": str(role)}
            )

    async def _role_of(self, request: Request) -> Role:
        if self._authorize is not None:
            answer = self._authorize(request)
            role = await answer if inspect.isawaitable(answer) else answer
            if role is None:
                raise _unauthorized("the application does not let you in")
            return checked_role(role)
        tokens = await self._current_tokens()
        if tokens:
            self._open_on_loopback = False
        if self._open_on_loopback:
            refuse_other_sites(request)
            return Role.ADMIN
        return await self._role_by_token(request, tokens)

    async def _role_by_token(self, request: Request, tokens: dict[str, TokenRecord]) -> Role:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized("give a token: Authorization: Bearer … (`taskharbor token create` makes one)")
        record = matching(token.strip(), tokens, await self._driver.now())
        if record is None:
            self._failures.count(request.client.host if request.client is not None else "")
            raise _unauthorized("the token is not known here: it is mistyped, revoked, or has expired")
        return checked_role(record.role)

    async def _current_tokens(self) -> dict[str, TokenRecord]:
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= TOKENS_SECONDS:
            self._tokens = {token.id: token for token in await self._driver.tokens()}
            self._read_at = now
        return self._tokens


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="taskharbor"'})


def refuse_other_sites(request: Request) -> None:
    """Without tokens, whatever a browser sends for another site is refused: by its name for us, or by its own."""
    host = request.headers.get("host", "")
    if "@" in host or not is_loopback(_host_of(f"//{host}")):
        raise ApiError(
            403, "host_refused", "without tokens, only loopback names such as localhost are served"
        )
    origins = request.headers.getlist("origin")
    if any(_place_of(origin) != host.lower() for origin in origins):
        raise ApiError(403, "origin_refused", "without tokens, pages of other sites are not served")


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _place_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
