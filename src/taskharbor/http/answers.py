"""What an answer means: a result, a failure, or a failure that says when to try again. Pure functions over values."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from taskharbor.clock import MICROS_PER_SECOND, to_micros
from taskharbor.codec import clean_text, counted
from taskharbor.errors import RetryAfter
from taskharbor.http.secrets import scrubbed, shown_url
from taskharbor.telemetry.logs import MASK

BODY_BYTES_MAX = 65_536  # read of an answer, and unpacked from it; what follows is not waited for
RESULT_BODY_MAX = 16_384  # characters kept of a success
ERROR_BODY_MAX = 1_000  # and of a failure
RESULT_HEADERS_MAX = 50
RESULT_HEADER_MAX = 500  # characters of one value
RETRY_AFTER_SECONDS_MAX = 86_400.0

# Python knows more codecs than there are charsets, and some of them take their time (punycode).
_CHARSET = re.compile(
    r"charset=\"?((?:us-)?ascii|utf-(?:8|16|32)|iso-8859-\d\d?|windows-\d{3,4}|koi8-[ru]|shift_jis|euc-(?:jp|kr)|big5"
    r"|gbk|gb2312|gb18030)(?![\w-])",
    re.IGNORECASE,
)
HEADER_READ_MAX = 2_000  # characters of a header that are looked at
EXCHANGE_ERROR_MAX = 1_000  # characters of what went wrong before there was an answer
_HIDDEN_HEADERS = frozenset({"set-cookie", "set-cookie2", "authorization", "proxy-authenticate"})


class HttpError(Exception):
    """The exchange came to nothing, or the answer's status is not 2xx."""


class HttpRetryAfter(RetryAfter, HttpError):
    """The same, and the answer says when to try again."""


@dataclass(frozen=True)
class Answer:
    """What a server said, as far as it was read."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool  # there was more of it

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found.lower() == name), None)


def result_of(answer: Answer, secrets: Sequence[str]) -> dict[str, Any]:
    """What is kept of a success: status, headers and the beginning of the body."""
    text = scrubbed(text_of(answer), secrets, is_cut=answer.truncated)
    return {
        "status": answer.status,
        "headers": {
            clean_text(scrubbed(name, secrets), RESULT_HEADER_MAX): _shown_header(name, value, secrets)
            for name, value in answer.headers[:RESULT_HEADERS_MAX]
        },
        "body": clean_text(text[:RESULT_BODY_MAX], RESULT_BODY_MAX),
        "truncated": answer.truncated or len(text) > RESULT_BODY_MAX,
    }


def failure_of(answer: Answer, place: object, secrets: Sequence[str], now: int) -> HttpError:
    """The error that an answer without success is; `now` is in microseconds."""
    words = f"{answer.status} {_phrase(answer.status)}".strip() + f" from {scrubbed(str(place), secrets)}"
    location = answer.header("location")
    if 300 <= answer.status < 400 and location:
        words += f" (it leads to {shown_value(location, secrets)[:200]}, which is not followed)"
    # In this order: half a secret is one as well.
    text = " ".join(scrubbed(text_of(answer), secrets, is_cut=answer.truncated).split())
    if text:
        words += f": {text[:ERROR_BODY_MAX]}{'…' if len(text) > ERROR_BODY_MAX else ''}"
    seconds = retry_after_seconds(answer.header("retry-after"), now)
    return HttpError(words) if seconds is None else HttpRetryAfter(seconds, words)


def told_without(secrets: Sequence[str], text: str) -> str:
    """What went wrong in an exchange, in one line. A library's error may quote whatever a server sent."""
    words = " ".join(scrubbed(text, secrets).split())
    return words if len(words) <= EXCHANGE_ERROR_MAX else f"{words[:EXCHANGE_ERROR_MAX]}…"


def retry_after_seconds(value: str | None, now: int) -> float | None:
    """The delay that a `Retry-After` header asks for, in seconds or as a date; None if it asks for none.

    At most a day: a server must not be able to delay a job without end.
    """
    if value is None:
        return None
    value = value[:HEADER_READ_MAX].strip()
    if value.isascii() and value.isdigit():
        seconds = float(value[:9])
    else:
        try:
            instant = parsedate_to_datetime(value)
            aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
            seconds = (to_micros(aware, "Retry-After") - now) / MICROS_PER_SECOND
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return min(seconds, RETRY_AFTER_SECONDS_MAX) if seconds > 0 else None


def text_of(answer: Answer) -> str:
    """The body as text, unpacked as far as the limit allows. What cannot be read is replaced."""
    body = _unpacked(answer.body, (answer.header("content-encoding") or "").strip().lower())
    found = _CHARSET.search(answer.header("content-type") or "")
    try:
        return body.decode(found[1] if found else "utf-8", errors="replace")
    except LookupError:  # a charset that this Python does not know
        return body.decode(errors="replace")


def _unpacked(body: bytes, encoding: str) -> bytes:
    # Never with a library's decoder that unpacks all there is: a kilobyte may hold a gigabyte.
    if encoding in ("", "identity"):
        return body
    if encoding in ("gzip", "x-gzip", "deflate"):
        for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):  # gzip or zlib by its header; deflate without one
            try:
                return zlib.decompressobj(bits).decompress(body, BODY_BYTES_MAX)
            except zlib.error:
                continue
    return f"({counted(len(body), 'byte')}, encoded as {encoding[:40]!r})".encode()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _shown_header(name: str, value: str, secrets: Sequence[str]) -> str:
    if name.lower() in _HIDDEN_HEADERS:
        return MASK
    return clean_text(shown_value(value, secrets), RESULT_HEADER_MAX)


def shown_value(value: str, secrets: Sequence[str]) -> str:
    """The beginning of a header's value, without the secrets of our own and of a URL that it holds.

    Our own go first: a URL that is shown may not have them in one piece any more.
    """
    read = value[:HEADER_READ_MAX]
    return shown_url(scrubbed(read, secrets, is_cut=len(read) < len(value)))
