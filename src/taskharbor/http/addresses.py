"""Which addresses an HTTP job may reach: public ones, and what an allow-list opens.

A worker is inside a network, and every producer of jobs names a URL. Without this check, a producer could use the
worker to reach what only the inside can reach: a database, an admin page, a cloud's metadata service with its
credentials. The check is on the address that is connected to, not on its name.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError
from taskharbor.http.urls import Address, parse

ALLOW_VARIABLE = "TASKHARBOR_HTTP_ALLOW"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Written out, not left to `ipaddress.is_global`, whose answers differ between versions of Python.
_CLOSED_V4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by a carrier's customers (CGNAT)",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a cloud's own service",
    "169.254.0.0/16": "link-local, where clouds keep their metadata",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "for documentation",
    "192.31.196.0/24": "reserved",
    "192.52.193.0/24": "reserved",
    "192.88.99.0/24": "a 6to4 relay",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "reserved",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_CLOSED_V6 = {
    "::/128": "unspecified",
    "::1/128": "loopback",
    "::ffff:0:0/96": "an IPv4 address in IPv6 form (mapped)",
    "::ffff:0:0:0/96": "an IPv4 address in IPv6 form (translated)",
    "::/96": "an IPv4 address in IPv6 form (compatible)",
    "64:ff9b::/96": "an IPv4 address behind NAT64",
    "64:ff9b:1::/48": "an IPv4 address behind a local NAT64",
    "100::/64": "discarded",
    "2001::/32": "an IPv4 address in a Teredo tunnel",
    "2001::/23": "reserved",
    "2001:db8::/32": "for documentation",
    "2002::/16": "an IPv4 address in a 6to4 tunnel",
    "3ffe::/16": "reserved",
    "3fff::/20": "for documentation",
    "fc00::/7": "unique-local",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")  # no other range is assigned for public use
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # the middle of an address whose end is an IPv4 address

_CLOSED: dict[int, tuple[tuple[Network, str], ...]] = {
    4: tuple((ipaddress.IPv4Network(text), why) for text, why in _CLOSED_V4.items()),
    6: tuple((ipaddress.IPv6Network(text), why) for text, why in _CLOSED_V6.items()),
}


def closed_because(address: Address) -> str | None:
    """Say why an address is closed by default; None for one that is public on the internet."""
    for network, why in _CLOSED[address.version]:
        if address in network:
            return why
    if isinstance(address, ipaddress.IPv6Address):
        if address not in _PUBLIC_V6:
            return "reserved"
        if int(address) >> 32 & 0xFFFF_FFFF in _ISATAP:
            return "an IPv4 address in an ISATAP tunnel"
    return None


# -- the allow-list ------------------------------------------------------------------------------


class Opening(NamedTuple):
    """One entry of an allow-list."""

    host: str | None  # a name; None where a network stands
    network: Network | None
    port: int | None  # None: any

    def opens(self, host: str, address: Address, port: int) -> bool:
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return address.version == self.network.version and address in self.network
        return host == self.host


AllowList = tuple[Opening, ...]

_ENTRY = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")


def allow_list(entries: Iterable[str] | None = None) -> AllowList:
    """The openings that these entries name, and those of $TASKHARBOR_HTTP_ALLOW (comma-separated)."""
    if entries is not None and (isinstance(entries, str) or not isinstance(entries, Iterable)):
        raise ConfigurationError(
            f'http_allow must be a list such as ["localhost:8080", "10.1.0.0/16"], not {shorten(entries)}'
        )
    named = [entry for entry in os.environ.get(ALLOW_VARIABLE, "").split(",") if entry.strip()]
    return tuple(_opening(entry) for entry in (*(entries or ()), *named))


def _opening(entry: object) -> Opening:
    text = entry.strip() if isinstance(entry, str) else ""
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"  # an IPv6 address alone, which cannot have a port
    found = _ENTRY.fullmatch(text)
    port = int(found["port"]) if found and found["port"] else None
    if found is None or (port is not None and not 1 <= port <= 65_535):
        raise _unfit(entry)
    name = found["v6"] or found["name"]
    try:
        return Opening(None, ipaddress.ip_network(name), port)
    except ValueError:
        pass
    try:
        if "/" in name or found["v6"]:
            raise ValueError(name)
        return Opening(parse(f"http://{name}").host, None, port)
    except ValueError:
        raise _unfit(entry) from None


def _unfit(entry: object) -> ConfigurationError:
    return ConfigurationError(
        f"an address to open for HTTP jobs is HOST or HOST:PORT, the host a name, an address or a network "
        f"(localhost:8080, 10.1.2.3, 10.1.0.0/16, [fd00::1]:443), not {shorten(entry)}"
    )


def refusal(host: str, address: Address, port: int, allow: AllowList) -> str | None:
    """Why this address may not be connected to, or None if it may."""
    why = closed_because(address)
    if why is None or any(opening.opens(host, address, port) for opening in allow):
        return None
    return f"{address} is {why}"
