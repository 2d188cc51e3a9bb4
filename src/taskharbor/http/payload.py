"""An HTTP job's payload: made by producers, checked when it is enqueued and again before it is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from taskharbor.clock import check_seconds
from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.http import signing
from taskharbor.http.urls import Target, parse
from taskharbor.telemetry.logs import MASK

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
HEADERS_MAX = 100
HEADER_BYTES_MAX = 32_768  # all of them together
TIMEOUT_SECONDS = 30.0
TIMEOUT_SECONDS_MAX = 3_600.0
SIGNING_SECRETS_MAX = 5

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
# They belong to the connection, not to the request; with another Host or length the server would read another
# request than the one that was checked.
_OURS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OUR_PREFIXES = ("proxy-", "taskharbor-")


@dataclass(frozen=True)
class Call:
    """A checked payload: what to send, and where."""

    target: Target
    method: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes | None = field(repr=False)
    timeout: float | None
    follow_redirects: bool
    signing_secrets: tuple[str, ...] = field(repr=False)


def http_payload(
    url: str,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    body: Any = None,
    timeout: float | None = None,
    follow_redirects: bool = False,
    signing_secret: str | list[str] | None = None,
) -> dict[str, Any]:
    """The payload of a job of the task `http`, checked.

        harbor.enqueue("http", http_payload("https://example.com/hook", body={"order": 42}))

    `method` is POST where there is a body, else GET. A `body` that is text is sent as it is, anything else as JSON.
    `timeout` is the seconds that the whole exchange may take, 30 if neither this nor the job's own timeout is given.
    `signing_secret` signs the request by Standard Webhooks; two of them, while receivers change from one to the other.
    """
    given: dict[str, Any] = {
        "url": url,
        "method": method,
        "headers": None if headers is None else _as_dict(headers),
        "body": body,
        "timeout": timeout,
        "follow_redirects": follow_redirects or None,
        "signing_secret": signing_secret,
    }
    payload = {name: value for name, value in given.items() if value is not None}
    checked_call(payload)
    return payload


def checked_call(payload: Mapping[str, Any]) -> Call:
    """What a payload asks for, or a `PayloadError` that says what is wrong with it and quotes no secret."""
    target = parse(payload.get("url"))
    if f"={MASK}" in target.path:
        raise _shown_instead_of_secret("url")
    secrets = _signing_secrets(payload.get("signing_secret"))
    body, kind = _body(payload.get("body"))
    headers = _headers(payload.get("headers"), is_signed=bool(secrets))
    if kind is not None and "content-type" not in {name.lower() for name, _ in headers}:
        headers = (("Content-Type", kind), *headers)
    follow = payload.get("follow_redirects") or False
    if not isinstance(follow, bool):
        raise PayloadError(f"follow_redirects must be true or false, not {shorten(follow)}")
    return Call(
        target,
        _method(payload.get("method"), body),
        headers,
        body,
        _timeout(payload.get("timeout")),
        follow,
        secrets,
    )


def _method(method: object, body: bytes | None) -> str:
    if method is None:
        return "GET" if body is None else "POST"
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise PayloadError(f"method must be one of {', '.join(METHODS)}, not {shorten(method)}")
    return method.upper()


def _as_dict(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise PayloadError(
            f'headers must map names to values, as in {{"Accept": "text/plain"}}, not a {type(headers).__name__}'
        )
    return dict(headers)


def _headers(given: object, *, is_signed: bool) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    headers = _as_dict(given)  # type: ignore[arg-type]
    if len(headers) > HEADERS_MAX:
        raise PayloadError(f"a request takes at most {HEADERS_MAX} headers, not {len(headers)}")
    seen: set[str] = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise PayloadError(f"{shorten(name)} cannot be the name of a header")
        _check_header(name, value, is_signed=is_signed)
        if name.lower() in seen:
            raise PayloadError(f"the header {name} is given twice, in different spellings; give it once")
        seen.add(name.lower())
    if sum(len(name) + len(value) for name, value in headers.items()) > HEADER_BYTES_MAX:
        raise PayloadError(f"the headers take more than {HEADER_BYTES_MAX:,} bytes together")
    return tuple(headers.items())


def _check_header(name: str, value: object, *, is_signed: bool) -> None:
    lower = name.lower()
    if lower in _OURS or lower.startswith(_OUR_PREFIXES) or (is_signed and lower in signing.HEADERS):
        raise PayloadError(f"the header {name} is set by TaskHarbor itself; leave it out")
    # The value may be a secret: an error that quoted it would bring it into logs and histories.
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise PayloadError(
            f"the value of the header {name} must be text of printable ASCII characters, without blanks at its ends"
        )
    if value == MASK:
        raise _shown_instead_of_secret(f"the header {name}")


def _shown_instead_of_secret(what: str) -> PayloadError:
    return PayloadError(
        f"{what} holds {MASK}, which is how a secret is shown, not the secret; give the secret itself"
    )


def _body(body: object) -> tuple[bytes | None, str | None]:
    """Return the bytes to send, and their content type."""
    if body is None:
        return None, None
    try:
        if isinstance(body, str):
            return body.encode(), "text/plain; charset=utf-8"
        return msgspec.json.encode(body), "application/json"
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"the body cannot be sent as JSON: {type(error).__name__}") from None


def _timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    try:
        seconds = check_seconds(timeout, "timeout")  # type: ignore[arg-type]
    except ConfigurationError as error:
        raise PayloadError(str(error)) from None
    if not 0 < seconds <= TIMEOUT_SECONDS_MAX:
        raise PayloadError(
            f"timeout must be more than 0 and at most {TIMEOUT_SECONDS_MAX:g} seconds, not {shorten(timeout)}"
        )
    return seconds


def _signing_secrets(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    secrets = tuple(given) if isinstance(given, list | tuple) else (given,)
    if MASK in secrets:
        raise _shown_instead_of_secret("signing_secret")
    if not 1 <= len(secrets) <= SIGNING_SECRETS_MAX:
        raise PayloadError(f"signing_secret takes 1 to {SIGNING_SECRETS_MAX} secrets, not {len(secrets)}")
    for secret in secrets:
        signing.key_of(secret)
    return tuple(str(secret) for secret in secrets)
