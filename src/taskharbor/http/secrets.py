"""What of an HTTP job's payload is shown, once it is stored: not what opens doors.

The payload is kept as it was given, because a worker has to send it. Whatever shows it (lists, `inspect`, the REST
interface, a repr) shows what `shown_payload` makes of it. A header is taken for a secret unless it is known not to be
one: nobody can tell from the name `X-Acme` what it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote_plus

from taskharbor.telemetry.logs import MASK, masked_url

SHOWN_HEADERS = frozenset(
    {
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "content-encoding",
        "content-language",
        "content-type",
        "date",
        "idempotency-key",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-unmodified-since",
        "pragma",
        "prefer",
        "range",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-correlation-id",
        "x-request-id",
    }
)
# Each part excludes what ends it, so that a text made to be slow to search is not.
_PARAMETER = re.compile(r"(?P<name>[?&;][^=&;#?]*)=(?P<value>[^&;#]+)")
_SECRET_NAME = re.compile("auth|code|cred|key|passw|pwd|secret|session|sig|token", re.IGNORECASE)
SECRET_LENGTH_MIN = 6  # shorter ones would blank out ordinary words of an answer


def is_secret(header: str) -> bool:
    return header.lower() not in SHOWN_HEADERS


def shown_url(url: str) -> str:
    """The URL without a password, and without the values of parameters whose names speak of secrets."""
    return _PARAMETER.sub(_masked_parameter, masked_url(url))


def _masked_parameter(found: re.Match[str]) -> str:
    return f"{found['name']}={MASK}" if _SECRET_NAME.search(found["name"]) else found[0]


def shown_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of an HTTP job, every secret in it replaced by `***`.

    Whatever it holds: a payload that somebody wrote wrongly is shown as well, and its secrets are not.
    """
    shown = dict(payload)
    url, headers = shown.get("url"), shown.get("headers")
    if isinstance(url, str):
        shown["url"] = shown_url(url)
    if isinstance(headers, Mapping):
        shown["headers"] = {name: MASK if is_secret(name) else value for name, value in headers.items()}
    elif headers is not None:
        shown["headers"] = MASK
    if shown.get("signing_secret") is not None:
        shown["signing_secret"] = MASK
    return shown


def secrets_in(
    path: str, headers: Iterable[tuple[str, str]], signing_secrets: Iterable[str] = ()
) -> list[str]:
    """The secrets themselves, the longest first; of `Bearer abc` also the second word."""
    found = {part for secret in signing_secrets for part in (secret, secret.removeprefix("whsec_"))}
    for parameter in _PARAMETER.finditer(path):
        if _SECRET_NAME.search(parameter["name"]):
            found |= {parameter["value"], unquote_plus(parameter["value"])}
    for name, value in headers:
        if is_secret(name):
            found |= {value, *value.split()}
    return sorted((each for each in found if len(each) >= SECRET_LENGTH_MIN), key=len, reverse=True)


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """A text from outside, without the secrets that we sent there: some servers answer with what they were sent."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
