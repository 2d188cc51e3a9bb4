"""What of an HTTP job's payload is shown, once it is stored: not what opens doors.

The payload is kept as it was given, because a worker has to send it. Whatever shows it (lists, `inspect`, the REST
interface, a repr) shows what `shown_payload` makes of it. A header is taken for a secret unless it is known not to be
one: the name `X-Acme` does not show what it holds.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

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
# A parameter is secret if its name, decoded, speaks of a secret; the short words only count as whole words.
_SECRET_NAME = re.compile(
    "auth|bearer|code|cookie|cred|jwt|key|pass|pwd|saml|secret|sess|sig|token"
    "|(?<![a-z])(?:mac|otp|pin|pw|sid)(?![a-z])"
)
_HUMP = re.compile("(?<=[a-z0-9])(?=[A-Z])")  # where the next word of a name in camelCase begins
# Each part excludes what ends it, so that a text made to be slow to search is not.
_USERINFO = re.compile(r"(?P<before>[/\\]{2}|^(?=[^/?#@]*:))[^/?#\\]+(?=@)")
# A password with a slash that is not escaped: it goes on to the last @. Only looked for in what ends with an @.
_LONG_USERINFO = re.compile(r"(?<=//)[^/?#@:]*:(?![0-9]*(?:[/?#]|$)).*(?=@$)")
_SEGMENT, _PART, _PIECE = re.compile("[^/]+"), re.compile("[^?#&]+"), re.compile("[^;]+")
_QUERY = re.compile("[?#]")
_WORD = re.compile(r'[^\s,;"]+')
DECODINGS_MAX = 3  # of a name, and of a URL in a URL
SECRET_LENGTH_MIN = 6  # shorter ones would blank out ordinary words of an answer


def is_secret(header: str) -> bool:
    return header.lower() not in SHOWN_HEADERS


def is_secret_parameter(name: str) -> bool:
    """Tell whether a parameter's value is hidden, by its name in whatever spelling a server takes for the same one."""
    for _ in range(DECODINGS_MAX):
        name, before = unquote_plus(name), name
        if name == before:
            break
    words = _HUMP.sub("_", name).lower()
    return any(_SECRET_NAME.search(each) is not None for each in (name.lower(), words))


def shown_url(url: str) -> str:
    """The URL without user name and password, and without the values of parameters whose names speak of secrets."""
    end = url.rfind("@") + 1
    anonymous = _LONG_USERINFO.sub(MASK, _USERINFO.sub(rf"\g<before>{MASK}", url[:end])) + url[end:]
    return _shown(masked_url(anonymous), DECODINGS_MAX)


def _shown(url: str, depth: int) -> str:
    shown, position = [], 0
    for start, end in _secret_values(url, depth):
        shown += [url[position:start], MASK]
        position = end
    return "".join([*shown, url[position:]])


def _secret_values(url: str, depth: int) -> Iterator[tuple[int, int]]:
    """Where the values of secret parameters stand: in the query, the fragment, and after the semicolons of a path.

    A semicolon ends a value for some servers and belongs to it for others. So each name after one counts, and a
    secret value goes on to the next ampersand.
    """
    found = _QUERY.search(url)
    query = len(url) if found is None else found.start()
    parts = [*_SEGMENT.finditer(url, 0, query), *_PART.finditer(url, query)]
    for part in parts:
        for piece in _PIECE.finditer(url, part.start(), part.end()):
            name, equals, value = piece[0].partition("=")
            start = piece.start() + len(name) + 1
            if equals and start < part.end() and (is_secret_parameter(name) or _hides(value, depth)):
                yield start, part.end()
                break


def _hides(value: str, depth: int) -> bool:
    """Tell whether a value is, or ends in, a URL or a query that has a secret of its own."""
    text = unquote_plus(value)
    if depth == 0 or not ("=" in text or "@" in text):
        return False
    return _USERINFO.search(text) is not None or any(
        next(_secret_values(each, depth - 1), None) is not None for each in (text, f"?{text}")
    )


def shown_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of an HTTP job, every secret in it replaced by `***`.

    Whatever it holds: a payload that was written wrongly is shown as well, and its secrets are not.
    """
    shown = dict(payload)
    url, headers = shown.get("url"), shown.get("headers")
    if url is not None:
        shown["url"] = shown_url(url) if isinstance(url, str) else MASK
    if isinstance(headers, Mapping):
        shown["headers"] = {name: MASK if is_secret(name) else value for name, value in headers.items()}
    elif headers is not None:
        shown["headers"] = MASK
    if shown.get("signing_secret") is not None:
        shown["signing_secret"] = MASK
    return shown


# -- texts from outside --------------------------------------------------------------------------


def secrets_in(
    path: str, headers: Iterable[tuple[str, str]] = (), signing_secrets: Iterable[str] = ()
) -> list[str]:
    """The secrets of a request, in the spellings in which a text may quote them, the longest first."""
    found = {part for secret in signing_secrets for part in (secret, secret.removeprefix("whsec_"))}
    found |= set(_parameter_secrets(path, DECODINGS_MAX))
    for name, value in headers:
        if is_secret(name):
            found |= set(_header_secrets(value))
    spelled = {spelling for secret in found if _is_long(secret) for spelling in _spellings(secret)}
    return sorted(filter(_is_long, spelled), key=len, reverse=True)


def _is_long(secret: str) -> bool:
    return len(secret) >= SECRET_LENGTH_MIN


def _parameter_secrets(url: str, depth: int) -> Iterator[str]:
    for start, end in _secret_values(url, depth):
        value = url[start:end]
        yield value
        if depth and _hides(value, depth):
            text = unquote_plus(value)
            yield from _parameter_secrets(text, depth - 1)
            yield from _parameter_secrets(f"?{text}", depth - 1)


def _header_secrets(value: str) -> Iterator[str]:
    """The value as a whole, its words (of `Bearer abc` the second), what its words assign, and a Basic password."""
    yield value
    for word in _WORD.findall(value):
        yield word
        yield word.partition("=")[2]
        try:
            decoded = base64.b64decode(word, validate=True).decode()
        except (binascii.Error, ValueError):
            continue
        yield decoded
        yield decoded.partition(":")[2]


def _spellings(secret: str) -> Iterator[str]:
    for text in (secret, unquote(secret, errors="replace"), unquote_plus(secret, errors="replace")):
        yield text
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield html.escape(text)
        yield repr(text)[1:-1]
        raw = text.encode(errors="surrogatepass")
        yield repr(raw)[2:-1]  # h11 quotes what it was sent like this
        yield raw.decode("latin-1")
        yield quote(raw, safe="")
        yield quote(raw)
        yield quote_plus(raw)


def scrubbed(text: str, secrets: Iterable[str], *, is_cut: bool = False) -> str:
    """A text from outside, without the secrets that we sent there: some servers answer with what they were sent.

    Upper and lower case are the same here, because a host name is read so. Of a text that `is_cut`, an end that may be
    the beginning of a secret goes as well.
    """
    raw = text.encode(errors="surrogatepass")
    lower = raw.lower()  # of bytes: it leaves every length as it is
    spans: list[tuple[int, int]] = []
    for secret in secrets:
        wanted = secret.encode(errors="surrogatepass").lower()
        start = lower.find(wanted)
        while start >= 0:
            spans.append((start, start + len(wanted)))
            start = lower.find(wanted, start + len(wanted))
        if is_cut and (begun := _begun(lower, wanted)) is not None:
            spans.append((begun, len(raw)))
    if not spans:
        return text
    kept, position = [], 0
    for start, end in sorted(spans):
        if start >= position:
            kept += [raw[position:start], MASK.encode()]
        position = max(position, end)
    return b"".join([*kept, raw[position:]]).decode(errors="surrogatepass")


def _begun(text: bytes, secret: bytes) -> int | None:
    """Where the beginning of a secret stands at the very end of a text; less than three letters of it tell nothing."""
    start = text.find(secret[:3], max(0, len(text) - len(secret) + 1))
    while start >= 0:
        if secret.startswith(text[start:]):
            return start
        start = text.find(secret[:3], start + 1)
    return None
