"""What is made of an answer, whatever it holds: within bounds of size and of time."""

from __future__ import annotations

import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.codec import encode_result
from taskharbor.http.answers import (
    BODY_BYTES_MAX,
    RESULT_BODY_MAX,
    Answer,
    failure_of,
    result_of,
    retry_after_seconds,
    text_of,
)
from taskharbor.http.secrets import shown_url


def answer(body: bytes = b"", status: int = 200, **headers: str) -> Answer:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(status, named, body, truncated=False)


@pytest.mark.parametrize(
    ("body", "headers", "text"),
    [
        ("grün".encode(), {}, "grün"),
        ("grün".encode("latin-1"), {"content_type": "text/plain; charset=ISO-8859-1"}, "grün"),
        ("grün".encode("utf-16"), {"content_type": 'text/plain; charset="utf-16"'}, "grün"),
        (b"\xff\xfe", {}, "\ufffd\ufffd"),
        (b"a", {"content_type": "text/plain; charset=nonsense"}, "a"),
        (b"a-", {"content_type": "text/plain; charset=punycode"}, "a-"),
        (zlib.compress(b"packed"), {"content_encoding": "deflate"}, "packed"),
        (zlib.compress(b"packed", wbits=-15), {"content_encoding": "deflate"}, "packed"),
        (zlib.compress(b"packed", wbits=31), {"content_encoding": " GZIP"}, "packed"),
        (b"not packed", {"content_encoding": "gzip"}, "(10 bytes, encoded as 'gzip')"),
        (b"x", {"content_encoding": "br"}, "(1 byte, encoded as 'br')"),
    ],
)
def test_a_body_is_read_as_text(body, headers, text):
    assert text_of(answer(body, **headers)) == text


def test_a_bomb_is_unpacked_to_the_limit_only():
    bomb = zlib.compress(b"x" * 10_000_000)
    assert len(text_of(answer(bomb, content_encoding="deflate"))) == BODY_BYTES_MAX


_headers = st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=4)


@settings(deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from(["utf-8", "utf-16", "utf-32", "big5", "idna", "hex", "unicode_escape", "utf-7", "\0"]),
    st.sampled_from(["", "gzip", "deflate", "br", "x" * 100]),
    st.integers(100, 999),
    _headers,
)
def test_any_answer_is_a_result_that_can_be_stored_or_an_error(body, charset, encoding, status, headers):
    found = Answer(
        status,
        (
            *headers.items(),
            ("content-type", f"text/plain; charset={charset}"),
            ("content-encoding", encoding),
        ),
        body,
        truncated=False,
    )
    result = result_of(found, ["secret"])
    encode_result(result)
    assert len(result["body"]) <= RESULT_BODY_MAX
    assert len(str(failure_of(found, "there", ["secret"], now=0))) < 2_000


@settings(deadline=None)
@given(st.text(), st.integers(0, 2**50))
def test_any_retry_after_is_a_delay_within_bounds_or_none(value, now):
    seconds = retry_after_seconds(value, now)
    assert seconds is None or 0 < seconds <= 86_400


@pytest.mark.parametrize(
    "text", ["?" * 60_000, "?a" * 30_000, "?key" * 15_000, "a://" * 15_000, "&=" * 30_000]
)
def test_no_header_takes_long_to_read(text):
    began = time.process_time()
    found = answer(b"", 302, location=text, retry_after=text, x_header=text)
    failure_of(found, "there", [], now=0)
    result_of(found, [])
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "url", ["https://example.com/" + "?" * 8_000, "https://example.com/" + "?key" * 2_000]
)
def test_no_url_takes_long_to_show(url):
    began = time.process_time()
    shown_url(url)
    assert time.process_time() - began < 2
