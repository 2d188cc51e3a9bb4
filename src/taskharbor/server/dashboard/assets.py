"""Scripts and styles: files of the package, at addresses that change with their content, so that browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from taskharbor.server.errors import ApiError

STATIC = Path(__file__).parent / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HASH_LENGTH = 12
_KEPT = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    """One file as it is served."""

    name: str
    kind: str
    plain: bytes
    zipped: bytes
    hash: str  # the beginning of its SHA-256


@cache
def assets() -> dict[str, Asset]:
    """Read every file once."""
    found = {}
    for file in sorted(STATIC.iterdir()):
        if file.suffix in KINDS:
            plain = file.read_bytes()
            digest = hashlib.sha256(plain).hexdigest()[:HASH_LENGTH]
            zipped = gzip.compress(plain, 9, mtime=0)
            found[file.name] = Asset(file.name, KINDS[file.suffix], plain, zipped, digest)
    return found


def address_of(name: str) -> str:
    """Return the path of an asset below the mount."""
    return f"/static/{assets()[name].hash}/{name}"


async def serve_asset(request: Request) -> Response:
    """Send an asset. An address of another version gets the present one, which the browser does not keep."""
    found = assets().get(request.path_params["name"])
    if found is None:
        return ApiError(404, "not_found", "there is no such file").response()
    takes_gzip = "gzip" in request.headers.get("accept-encoding", "").lower()
    headers = {
        "Cache-Control": _KEPT if request.path_params["hash"] == found.hash else "no-store",
        "Vary": "Accept-Encoding",
    }
    if takes_gzip:
        headers["Content-Encoding"] = "gzip"
    body = found.zipped if takes_gzip else found.plain
    return Response(body, headers=headers, media_type=found.kind)
