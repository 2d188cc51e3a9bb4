"""Authorization: which caller sends a request, and its role."""

from __future__ import annotations

import inspect
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request

from taskharbor.acting import checked_actor
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Driver
from taskharbor.drivers.typed_records import TOKENS
from taskharbor.records import TokenRecord
from taskharbor.server.allowance import Allowance
from taskharbor.server.clients import Proxies, address_of, key_of
from taskharbor.server.errors import ApiError
from taskharbor.server.limits import Failures
from taskharbor.server.tokens import Role, checked_role, matching

TOKENS_SECONDS = 1.0  # how long a revoked token may still pass
SESSION_TOKENS_SECONDS = 5.0  # and the sessions of it: many open pages ask again and again
READINGS_AT_ONCE = 5  # of the tokens, for sign-ins with a token that is not known yet
READINGS_EACH_SECOND = 0.2

# A role, or a role and the name that the caller's actions are recorded under; None refuses the request.
Allowed = Role | str | tuple[Role | str, str] | None
Authorize = Callable[[Request], Allowed | Awaitable[Allowed]]


class Caller(NamedTuple):
    """The caller of a request: its role, its name, and the key that its limits are counted by."""

    role: Role
    key: str  # the token, or the address if there is no token
    name: str  # that its actions are recorded under


class Auth:
    """Authorizes requests by the application's own `authorize`, or else by the tokens in the store.

    With `open_on_loopback`, every caller on this machine is an admin until the store has a token. From then on the
    server stays closed, even if the last token is revoked. A proxy on this machine can pass on requests of strangers,
    and a browser those of any site that it shows: `refuse_strangers` recognizes both by what they send.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        open_on_loopback: bool = False,
        authorize: Authorize | None = None,
        proxies: Proxies = (),
    ) -> None:
        self._driver = driver
        self._open_on_loopback = open_on_loopback
        self._authorize = authorize
        self._proxies = proxies
        self._failures = Failures()
        self._tokens: dict[str, TokenRecord] = {}
        self._read_at: float | None = None
        self._store_now: tuple[float, int] | None = None  # when it was read, and what the store's clock said
        self._readings = Allowance(READINGS_AT_ONCE, READINGS_EACH_SECOND)

    async def require(self, request: Request, needed: Role) -> Caller:
        """Return the caller, or raise the error that refuses the request."""
        address = self.address_key(request)
        caller = await self._caller_without_token(request, address, "rest")
        if caller is None:
            caller = await self._caller_by_token(request, address, await self._current_tokens())
        refuse_too_low(caller.role, needed)
        return caller

    # -- for the dashboard, whose callers have a session instead of a token --

    async def caller_with_session(self, request: Request, token_id: str | None) -> Caller | None:
        """Return who looks at a page: the one whom `authorize` names, one on this machine, or the token of a session.

        None: it has to sign in.
        """
        caller = await self._caller_without_token(request, self.address_key(request), "web")
        if caller is not None or token_id is None:
            return caller
        record = (await self._current_tokens(SESSION_TOKENS_SECONDS)).get(token_id)
        if record is None or (record.expires_at is not None and record.expires_at <= await self._now()):
            return None
        return Caller(checked_role(record.role), f"token {record.id}", record.name)

    async def signed_in(self, request: Request, token: str) -> TokenRecord:
        """Return the record of this token, or raise the error that refuses it; wrong ones are counted."""
        record = await self._matching(token)
        if record is None and self._readings.is_left():
            # One that was made a moment ago must pass. Wrong ones do not make the store work each time.
            self._readings.spend(1)
            self._read_at = None
            record = await self._matching(token)
        if record is None:
            self._failures.count(self.address_key(request))
            raise ApiError(401, "unauthorized", "unknown token: it is mistyped, revoked or expired")
        return record

    @property
    def takes_tokens(self) -> bool:
        """Whether the tokens in the store decide, and not the application."""
        return self._authorize is None

    @property
    def proxies(self) -> Proxies:
        return self._proxies

    def address_key(self, request: Request) -> str:
        """Return the key of the address that a request comes from."""
        return key_of(address_of(request, self._proxies))

    async def _caller_without_token(self, request: Request, address: str, by: str) -> Caller | None:
        """Return the caller if the application or its address decides; None if a token has to."""
        if self._authorize is not None:
            answer = self._authorize(request)
            allowed = await answer if inspect.isawaitable(answer) else answer
            if allowed is None:
                raise _unauthorized("the application refuses this request")
            role, name = allowed if isinstance(allowed, tuple) else (allowed, _nameless(address, by))
            return Caller(checked_role(role), address, checked_actor(name))
        if self._open_on_loopback and await self._current_tokens():
            self._open_on_loopback = False
        if self._open_on_loopback:
            refuse_strangers(request)
            return Caller(Role.ADMIN, address, _nameless(address, by))
        return None

    async def _caller_by_token(
        self, request: Request, address: str, tokens: dict[str, TokenRecord]
    ) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized("send a token: Authorization: Bearer … (`taskharbor token create` makes one)")
        record = await self._matching(token.strip(), tokens)
        if record is None:
            self._failures.count(address)
            raise _unauthorized("unknown token: it is mistyped, revoked or expired")
        return Caller(checked_role(record.role), f"token {record.id}", record.name)

    async def _matching(self, token: str, tokens: dict[str, TokenRecord] | None = None) -> TokenRecord | None:
        """Return the record of this token, unless it is wrong or has expired. Only an expiry needs the store's time."""
        record = matching(token, await self._current_tokens() if tokens is None else tokens)
        if record is None or (
            record.expires_at is not None and record.expires_at <= await self._driver.now()
        ):
            return None
        return record

    async def _now(self) -> int:
        """Return the store's time, which was read some seconds ago: many open pages ask again and again."""
        read_at = time.monotonic()
        if self._store_now is None or read_at - self._store_now[0] >= SESSION_TOKENS_SECONDS:
            self._store_now = read_at, await self._driver.now()
        return self._store_now[1] + int((time.monotonic() - self._store_now[0]) * MICROS_PER_SECOND)

    async def _current_tokens(self, seconds: float | None = None) -> dict[str, TokenRecord]:
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= (TOKENS_SECONDS if seconds is None else seconds):
            self._tokens = {token.id: token for token in await TOKENS.all(self._driver)}
            self._read_at = now
        return self._tokens


def refuse_too_low(role: Role, needed: Role) -> None:
    """Raise the error for a caller whose role is too low."""
    if not role.allows(needed):
        raise ApiError(
            403, "forbidden", f"this needs the role {needed}; yours is {role}", {"role": str(role)}
        )


def _nameless(address: str, by: str) -> str:
    """Return what a caller's actions are recorded under that has no name: `rest@` or `web@`, and its address."""
    return f"{by}@{address}"


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="taskharbor"'})


# Headers that proxies add to the requests that they pass on.
_OF_PROXIES = frozenset(
    {
        "cf-connecting-ip",
        "client-ip",
        "fastly-client-ip",
        "fly-client-ip",
        "forwarded",
        "forwarded-for",
        "true-client-ip",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-real-ip",
    }
)
_OF_PROXIES_PREFIXES = (
    "cf-",
    "x-amzn-trace",
    "x-arr-",
    "x-envoy-",
    "x-forwarded",
    "x-original-",
    "x-proxyuser-",
)
_HOST = re.compile(
    r"(?:(?P<name>localhost\.?|127(?:\.[0-9]{1,3}){3})|\[(?P<v6>[0-9a-f:]+)\])(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE,
)
_MAKE_A_TOKEN = "make a token with `taskharbor token create`, and send it"


def refuse_strangers(request: Request) -> None:
    """Without tokens, accept only requests that come directly from a program on this machine or from our own pages."""
    client = request.client.host if request.client is not None else ""
    if not is_loopback(client):
        raise ApiError(
            403, "address_refused", f"without tokens, the server accepts only this machine: {_MAKE_A_TOKEN}"
        )
    for name in map(str.lower, request.headers):
        if name in _OF_PROXIES or name.startswith(_OF_PROXIES_PREFIXES):
            raise _from_proxy(f"it has the header {name[:50]}")
    if request.scope.get("http_version") == "1.0":
        raise _from_proxy("it uses HTTP/1.0, as some proxies do")
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not is_loopback_host(hosts[0]):
        raise ApiError(
            403,
            "host_refused",
            "without tokens, the server accepts only loopback names, such as localhost and 127.0.0.1: "
            f"use one of them, or {_MAKE_A_TOKEN}",
        )
    origins = request.headers.getlist("origin")
    sites = request.headers.getlist("sec-fetch-site")
    if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins) or any(
        site.strip().lower() not in ("same-origin", "none") for site in sites
    ):
        raise ApiError(
            403, "origin_refused", f"without tokens, the server refuses pages of other sites: {_MAKE_A_TOKEN}"
        )


def _from_proxy(sign: str) -> ApiError:
    return ApiError(
        403,
        "proxy_refused",
        f"without tokens, the server refuses requests through a proxy, and this looks like one: {sign}; "
        f"{_MAKE_A_TOKEN}",
    )


def is_loopback_host(host: str) -> bool:
    """Whether a `Host` header is a loopback name or address, with or without a port, and nothing else."""
    found = _HOST.fullmatch(host)
    return (
        found is not None
        and is_loopback(found["name"] or found["v6"])
        and (found["port"] is None or 1 <= int(found["port"]) <= 65_535)
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
