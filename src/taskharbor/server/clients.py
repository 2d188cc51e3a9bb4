"""Where a request comes from: the address that connected, or the one that a trusted proxy names."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable

from starlette.requests import Request

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

TRUSTED_VARIABLE = "TASKHARBOR_TRUSTED_PROXY"
NO_ADDRESS = (
    "no address"  # one key for everything that is not an address, so that a client cannot invent many
)
ADDRESS_CHARACTERS_MAX = 100
HOPS_MAX = 32
HOPS_CHARACTERS_MAX = 4_096

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Proxies = tuple[Network, ...]

_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]+)\](?::[0-9]{1,5})?|(?P<v4>[0-9.]+):[0-9]{1,5}")


def trusted_proxies(entries: Iterable[str] | None = None) -> Proxies:
    """Return the proxies of these entries and of $TASKHARBOR_TRUSTED_PROXY (comma-separated)."""
    if entries is not None and (isinstance(entries, str) or not isinstance(entries, Iterable)):
        raise ConfigurationError(
            f'trusted_proxies must be a list such as ["127.0.0.1", "10.1.0.0/16"], not {shorten(entries)}'
        )
    named = [entry for entry in os.environ.get(TRUSTED_VARIABLE, "").split(",") if entry.strip()]
    return tuple(_proxy(entry) for entry in (*(entries or ()), *named))


def _proxy(entry: object) -> Network:
    try:
        network = ipaddress.ip_network(entry.strip() if isinstance(entry, str) else "")
    except ValueError:
        raise ConfigurationError(
            f"a trusted proxy is an address or a network (127.0.0.1, 10.1.0.0/16, fd00::/8), not {shorten(entry)}"
        ) from None
    if network.prefixlen == 0:
        raise ConfigurationError(
            f"the trusted proxy {shorten(entry)} includes every address, so every caller could forge where it comes "
            "from; name the proxy's own address"
        )
    return network


def address_of(request: Request, proxies: Proxies) -> Address | None:
    """Return the client's address, or None if it is not an address.

    `X-Forwarded-For` counts only if a trusted proxy sends it. Each proxy appends the address that connected to it, so
    the last address that is not a trusted proxy's is the client's. The client may have written the ones before it.
    """
    client = parsed(request.client.host) if request.client is not None else None
    if not is_trusted(client, proxies):
        return client
    for hop in reversed(_hops(request)):
        client = parsed(hop)
        if not is_trusted(client, proxies):
            return client
    return client


def key_of(address: Address | None) -> str:
    """Return the key of a client: its address, or its network in IPv6, where one client has a whole network."""
    if address is None:
        return NO_ADDRESS
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(address), 64), strict=False))
    return str(address)


def parsed(text: str) -> Address | None:
    """Parse an address with or without a port; an IPv4 address in IPv6 form becomes IPv4."""
    text = text[:ADDRESS_CHARACTERS_MAX].strip()
    found = _WITH_PORT.fullmatch(text)
    try:
        address = ipaddress.ip_address((found["v6"] or found["v4"]) if found else text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def is_trusted(address: Address | None, proxies: Proxies) -> bool:
    return address is not None and any(
        address.version == network.version and address in network for network in proxies
    )


def _hops(request: Request) -> list[str]:
    given = ",".join(request.headers.getlist("x-forwarded-for"))[-HOPS_CHARACTERS_MAX:]
    return [hop for hop in given.split(",") if hop.strip()][-HOPS_MAX:]
