"""Sending a request to an address that was checked. The only module that needs the extra `http`.

`httpcore2` lets the connector be ours, which is the point: a name is resolved once, each address is checked, and that
very address is connected to, so that a name that resolves differently the next time (rebinding) gains nothing.
TLS is still for the name. A connection serves one request: nothing is shared between jobs, no cookie, no session.
Neither proxies nor passwords are taken from the environment.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import httpcore2
import httpx2

from taskharbor.errors import Unrecoverable
from taskharbor.http import resolver
from taskharbor.http.addresses import ALLOW_VARIABLE, AllowList, refusal
from taskharbor.http.answers import BODY_BYTES_MAX, Answer, HttpError, shown_value
from taskharbor.http.secrets import is_secret, secrets_in
from taskharbor.http.urls import Address, Target, UrlError

REDIRECTS_MAX = 5
ADDRESSES_MAX = 8  # of one name that are tried
READ_BYTES = 4_096  # at a time: a server can make work of each byte, and others have their turn in between
HEAD_BYTES_MAX = 131_072  # status line and headers, with all the provisional ones (1xx) before them
BODY_WIRE_BYTES_MAX = 16 * BODY_BYTES_MAX  # what a body that is read may take, sent in small chunks
CONNECT_SECONDS = 10.0  # for one address, so that a dead one leaves time for the next
_REDIRECTS = (301, 302, 303, 307, 308)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Connect = Callable[[str, int], Awaitable[httpcore2.AsyncNetworkStream]]

# At the level of debug it writes the headers of answers, cookies among them.
for _name in ("httpcore2", "httpx2"):
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.INFO)


class AddressRefused(Unrecoverable):
    """The request would go to an address that is closed to HTTP jobs."""


@dataclass(frozen=True)
class Network:
    """The ways out, each of which a test can replace: names to addresses, addresses to connections, whom to trust."""

    resolve: Resolve
    connect: Connect
    trust: Callable[[], ssl.SSLContext]


async def connect(address: str, port: int) -> httpcore2.AsyncNetworkStream:
    return await httpcore2.AnyIOBackend().connect_tcp(address, port, timeout=CONNECT_SECONDS)


@cache
def trust() -> ssl.SSLContext:
    """The system's certificates, or those of $SSL_CERT_FILE; made once, because it takes its time."""
    return httpx2.create_ssl_context()


SYSTEM = Network(resolver.SYSTEM.resolve, connect, trust)


# -- what comes back -----------------------------------------------------------------------------


class Wire:
    """How much a server has sent, and how much it may: so that it can neither block the loop nor send without end."""

    def __init__(self) -> None:
        self._left = HEAD_BYTES_MAX
        self._too_much = (
            f"its head takes more than {HEAD_BYTES_MAX:,} bytes, provisional answers (1xx) included"
        )

    def begin_body(self) -> None:
        self._left = BODY_WIRE_BYTES_MAX
        self._too_much = (
            f"{BODY_WIRE_BYTES_MAX:,} bytes on the wire bring less than {BODY_BYTES_MAX:,} of a body"
        )

    def count(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise HttpError(f"the answer is refused: {self._too_much}")


class MeteredStream(httpcore2.AsyncNetworkStream):
    """Reads a little at a time, counts it, and lets others have their turn after each."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await asyncio.sleep(0)  # what has arrived already would be read without
        data = await self._stream.read(min(max_bytes, READ_BYTES), timeout)
        self._wire.count(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return MeteredStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._wire)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


# -- the way out ---------------------------------------------------------------------------------


class CheckedConnector(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were checked, and to nothing else."""

    def __init__(self, network: Network, allow: AllowList, wire: Wire) -> None:
        self._network = network
        self._allow = allow
        self._wire = wire

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to one of the host's addresses, the first that answers."""
        failure: Exception | None = None
        for address in await self._open_addresses(host, port):
            try:
                return MeteredStream(await self._network.connect(str(address), port), self._wire)
            except (httpcore2.NetworkError, httpcore2.TimeoutException, OSError) as error:
                failure = failure or error
        raise HttpError(f"connection to {host} port {port} failed: {_told(failure)}") from failure

    async def _open_addresses(self, host: str, port: int) -> list[Address]:
        refusals: list[str] = []
        open_addresses: list[Address] = []
        for address in await self._addresses(host, port):
            why = refusal(host, address, port, self._allow)
            if why is None:
                open_addresses.append(address)
            else:
                refusals.append(why)
        if not open_addresses:
            raise AddressRefused(
                f"{host} port {port} is closed to HTTP jobs: {'; '.join(refusals[:3])}. "
                f"To open it, name it in ${ALLOW_VARIABLE}, --http-allow or Harbor(http_allow=[…])"
            )
        return open_addresses[:ADDRESSES_MAX]

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            pass
        try:
            found = await self._network.resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise HttpError(
                f"connection failed: the name {host} cannot be resolved: {_told(error)}"
            ) from error
        if not found:
            raise HttpError(f"connection failed: the name {host} has no address")
        return [ipaddress.ip_address(address.partition("%")[0]) for address in found]


# -- one exchange --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outgoing:
    """A request as it goes over the wire."""

    target: Target
    method: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None

    def redirected(self, status: int, location: str, secrets: Sequence[str] = ()) -> Outgoing:
        """The request that a redirect asks for instead."""
        try:
            target = self.target.redirected(location)
        except UrlError as error:
            # What the error itself quotes is a part of the URL, and may be a part of a secret.
            shown = shown_value(location, secrets)[:200]
            raise HttpError(
                f"{self.target} redirects to what cannot be followed, {shown}: {error.problem}"
            ) from None
        if self.target.scheme == "https" and target.scheme == "http":
            raise HttpError(f"{self.target} redirects from https to http ({target}), which is not followed")
        headers, body, method = self.headers, self.body, self.method
        if target.origin != self.target.origin:
            # Another server must not see what was meant for the first.
            headers = tuple(each for each in headers if not is_secret(each[0]))
        if status == 303 or (status in (301, 302) and method == "POST"):
            if method != "HEAD":
                method = "GET"
            body = None
            headers = tuple(each for each in headers if not _is_about_body(each[0]))
        return replace(self, target=target, headers=headers, body=body, method=method)


async def exchange(
    outgoing: Outgoing,
    allow: AllowList,
    *,
    follow_redirects: bool = False,
    network: Network = SYSTEM,
    secrets: list[str] | None = None,
) -> Answer:
    """Send a request and read the answer, as much of it as is kept. Time is the caller's to limit.

    The caller takes the secrets out of whatever this raises or returns. Those of the URLs that redirects lead to are
    added to `secrets`.
    """
    secrets = [] if secrets is None else secrets
    for _ in range(REDIRECTS_MAX + 1):
        answer = await _send(outgoing, allow, network)
        location = answer.header("location")
        if not follow_redirects or answer.status not in _REDIRECTS or not location:
            return answer
        outgoing = outgoing.redirected(answer.status, location, secrets)
        secrets += secrets_in(location)
    raise HttpError(f"more than {REDIRECTS_MAX} redirects, the last one to {outgoing.target}")


async def _send(outgoing: Outgoing, allow: AllowList, network: Network) -> Answer:
    target = outgoing.target
    is_tls = target.scheme == "https"
    wire = Wire()
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=network.trust() if is_tls else None,
        max_connections=1,
        max_keepalive_connections=0,
        network_backend=CheckedConnector(network, allow, wire),
    )
    try:
        async with (
            pool,
            pool.stream(
                outgoing.method,
                httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path),
                headers=[("Host", target.authority), *outgoing.headers],
                content=_content(outgoing),
            ) as response,
        ):
            wire.begin_body()
            body, truncated = await _read(response)
            return Answer(
                response.status,
                tuple((_text(name), _text(value)) for name, value in response.headers),
                body,
                truncated,
            )
    except (httpcore2.NetworkError, httpcore2.TimeoutException, OSError) as error:
        raise HttpError(f"connection to {target} failed: {_told(error)}") from None
    except httpcore2.ProtocolError as error:
        raise HttpError(f"{target} does not speak HTTP as it should: {_told(error)}") from None


def _content(outgoing: Outgoing) -> bytes | None:
    """Send a length of 0 with methods that usually have a body, as servers expect."""
    if outgoing.body is None and outgoing.method in ("POST", "PUT", "PATCH"):
        return b""
    return outgoing.body


async def _read(response: httpcore2.Response) -> tuple[bytes, bool]:
    body = bytearray()
    async with aclosing(response.aiter_stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                return bytes(body[:BODY_BYTES_MAX]), True
    return bytes(body), False


def _text(header: bytes) -> str:
    """Headers are ASCII; where they are not, mostly UTF-8."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header.decode("latin-1")


def _is_about_body(header: str) -> bool:
    return header.lower().startswith(("content-", "webhook-"))


def _told(error: BaseException | None) -> str:
    """What an error says; some say nothing but their name. The task takes the secrets out, and then shortens it."""
    return str(error).strip() or type(error).__name__
