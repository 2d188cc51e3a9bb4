"""Where a form was sent from: only a page of this dashboard may change anything."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from taskharbor.server.clients import Proxies, is_trusted, parsed
from taskharbor.server.errors import ApiError

_PORTS = {"http": 80, "https": 443}


def refuse_other_origins(request: Request, proxies: Proxies) -> None:
    """Refuse a request unless its browser says that a page of this host sent it.

    Browsers send `Origin` with every POST. The scheme may differ: a proxy that ends TLS passes plain HTTP on.
    """
    sites = request.headers.getlist("sec-fetch-site")
    if any(site.strip().lower() != "same-origin" for site in sites):
        raise _refused("another site sent it")
    origins = request.headers.getlist("origin")
    if len(origins) != 1:
        raise _refused("it has no Origin header" if not origins else "it has several Origin headers")
    scheme, host, port = _parts(origins[0])
    if scheme not in _PORTS or not host:
        raise _refused("its Origin is no address of a web page")
    if (host, port) != _parts(f"{scheme}://{own_host(request, proxies)}")[1:]:
        raise _refused("its Origin is another host than the one that it was sent to")


def _parts(origin: str) -> tuple[str, str, int | None]:
    try:
        split = urlsplit(origin)
        return split.scheme, (split.hostname or ""), split.port or _PORTS.get(split.scheme)
    except ValueError:
        return "", "", None


def own_host(request: Request, proxies: Proxies) -> str:
    """Return the host that the browser asked, which a trusted proxy may name."""
    hosts = request.headers.getlist("host")
    forwarded = request.headers.getlist("x-forwarded-host")
    if len(forwarded) == 1 and comes_from_proxy(request, proxies):
        return forwarded[0].partition(",")[0].strip()
    return hosts[0] if len(hosts) == 1 else ""


def is_secure(request: Request, proxies: Proxies) -> bool:
    """Whether the browser speaks TLS, with this server or with a proxy before it."""
    if request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://"):
        return True
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return forwarded == "https" and comes_from_proxy(request, proxies)


def comes_from_proxy(request: Request, proxies: Proxies) -> bool:
    return request.client is not None and is_trusted(parsed(request.client.host), proxies)


def _refused(why: str) -> ApiError:
    return ApiError(
        403,
        "origin_refused",
        f"the dashboard takes changes only from its own pages, and refuses this one: {why}; "
        "reload the page and try again (a proxy must pass on the headers Host and Origin)",
    )
