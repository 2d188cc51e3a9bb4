"""A URL taken apart once, strictly: what is checked is what is connected to, and nothing parses it again.

Two parsers that disagree about a URL are how a check is got round. So whatever is odd is refused rather than
guessed at: user names in front of the host, addresses in another spelling than their own, backslashes, blanks,
percent signs and letters beyond ASCII in the host.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import quote, urljoin

from taskharbor.codec import shorten
from taskharbor.errors import PayloadError
from taskharbor.http.secrets import shown_url
from taskharbor.telemetry.logs import MASK

URL_MAX = 8_192  # characters
DEFAULT_PORTS = {"http": 80, "https": 443}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PARTS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?:#.*)?"
)
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNFIT = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_SAFE = "!$&'()*+,;=:@/?%-._~[]"


class UrlError(PayloadError):
    """A URL that cannot be called; `problem` says why and quotes nothing of it."""

    def __init__(self, problem: str, quoting: str = "") -> None:
        super().__init__(problem + quoting)
        self.problem = problem


class Target(NamedTuple):
    """Where a request goes."""

    scheme: str
    host: str  # a name in lower case, or an address in its own spelling, without brackets
    port: int
    path: str  # with the query

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    def __str__(self) -> str:
        """Return the URL for messages, without the query, which may contain secrets."""
        path, query, _ = self.path.partition("?")
        return shown_url(f"{self.scheme}://{self.authority}{path}") + ("?…" if query else "")

    def redirected(self, location: str) -> Target:
        """Where a `Location` header leads from here."""
        try:
            if not _UNFIT.search(location):
                return parse(urljoin(self.url, location))
        except UrlError:
            raise
        except ValueError:  # it cannot even be joined
            pass
        raise UrlError("the redirect leads to no URL")


def parse(url: object) -> Target:
    """The target that a URL names; `UrlError` for anything that is not plainly an http or https URL."""
    if not isinstance(url, str) or not url:
        raise UrlError("url must be text such as https://example.com/hook", f", not {shorten(url)}")
    if len(url) > URL_MAX:
        raise UrlError(f"url is {len(url):,} characters long; the limit is {URL_MAX:,}")
    if _UNFIT.search(url):
        raise UrlError(
            "url holds a blank, a control character or a backslash",
            f": {shorten(shown_url(url))}; percent-encode it",
        )
    parts = _PARTS.fullmatch(url)
    if parts is None or parts["scheme"].lower() not in DEFAULT_PORTS:
        raise UrlError("url must begin with http:// or https://", f", and {shorten(shown_url(url))} does not")
    scheme, authority = parts["scheme"].lower(), parts["authority"]
    if "@" in authority:
        raise UrlError(
            "url holds a user name or a password in front of its host (…@host); "
            "leave them out and send an Authorization header"
        )
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        # With an @ further on, this is a user name and the beginning of a password that holds a slash.
        shown = MASK if "@" in url else shorten(authority)
        raise UrlError("url names no host and port that can be read", f": {shown}")
    host = _bracketed(found["v6"]) if found["v6"] is not None else _host(found["name"])
    query = "" if parts["query"] is None else f"?{_quoted(parts['query'])}"
    return Target(scheme, host, _port(found["port"], scheme), (_quoted(parts["path"]) or "/") + query)


def _port(text: str | None, scheme: str) -> int:
    if not text:
        return DEFAULT_PORTS[scheme]
    if len(text) > 5 or not 1 <= int(text) <= 65_535:
        raise UrlError("the port of url must be from 1 to 65535")
    return int(text)


def _bracketed(text: str) -> str:
    try:
        if "%" not in text:  # a zone id names an interface of the machine it is used on
            return str(ipaddress.IPv6Address(text))
    except ValueError:
        pass
    raise UrlError("the host of url is no IPv6 address", f": {shorten(text)}")


def _host(text: str) -> str:
    if not text.isascii():
        raise UrlError(
            "the host of url holds letters beyond ASCII",
            f": {shorten(text)}; write the ASCII form of the name (xn--…)",
        )
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    # What ends in a number is an address to some resolvers, whatever stands before it: 127.1, 2130706433, 0x7f.1.
    if _NUMBER.fullmatch(labels[-1]):
        try:
            if str(ipaddress.IPv4Address(host)) == host:
                return host
        except ValueError:
            pass
        raise UrlError(
            "the host of url is an address in an odd spelling",
            f": {shorten(text)}; write four numbers, as in 192.0.2.1",
        )
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise UrlError("the host of url is no host name", f": {shorten(text)}")
    return host


def _quoted(text: str) -> str:
    return quote(text, safe=_SAFE)
