"""A payload is checked when it is made, with one clear message that quotes no secret."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.errors import PayloadError
from taskharbor.http import http_payload
from taskharbor.http.payload import HEADER_BYTES_MAX, HEADERS_MAX, checked_call

URL = "https://example.com/hook"


def test_only_what_is_given_is_stored():
    assert http_payload(URL) == {"url": URL}
    assert http_payload(URL, method="PUT", headers={"A": "b"}, body=0, timeout=5, follow_redirects=True) == {
        "url": URL,
        "method": "PUT",
        "headers": {"A": "b"},
        "body": 0,
        "timeout": 5,
        "follow_redirects": True,
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": "TRACE"}, "method must be one of"),
        ({"method": "CONNECT"}, "method must be one of"),
        ({"method": "GET /x"}, "method must be one of"),
        ({"method": 5}, "method must be one of"),
        ({"headers": ["a"]}, "headers must map names to values"),
        ({"headers": {"a b": "c"}}, "cannot be the name of a header"),
        ({"headers": {"a\r\nb": "c"}}, "cannot be the name of a header"),
        ({"headers": {"": "c"}}, "cannot be the name of a header"),
        ({"headers": {"A": "b", "a": "c"}}, "given twice"),
        ({"headers": {"Host": "evil"}}, "set by TaskHarbor itself"),
        ({"headers": {"content-length": "5"}}, "set by TaskHarbor itself"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "set by TaskHarbor itself"),
        ({"headers": {"Connection": "upgrade"}}, "set by TaskHarbor itself"),
        ({"headers": {"Proxy-Authorization": "x"}}, "set by TaskHarbor itself"),
        ({"headers": {"TaskHarbor-Job": "x"}}, "set by TaskHarbor itself"),
        ({"headers": {f"h{n}": "x" for n in range(HEADERS_MAX + 1)}}, "at most 100 headers"),
        ({"headers": {"a": "x" * HEADER_BYTES_MAX}}, "bytes together"),
        ({"headers": {"a": "***"}}, "how a secret is shown"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": 3601}, "at most 3600"),
        ({"timeout": "5"}, "timeout must be"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"follow_redirects": "yes"}, "follow_redirects must be"),
        ({"body": object()}, "cannot be sent as JSON"),
    ],
)
def test_what_cannot_be_sent_is_refused(options, told):
    with pytest.raises(PayloadError, match=told):
        http_payload(URL, **options)


@pytest.mark.parametrize(
    "value", ["hush\r\nX: y", "hush\n", "hush\0", " hush", "hush ", "hüsh", 5, None, b"hush"]
)
def test_a_header_that_cannot_be_sent_is_refused_and_not_quoted(value):
    with pytest.raises(PayloadError, match="Authorization must be text") as caught:
        http_payload(URL, headers={"Authorization": value})
    assert "hush" not in str(caught.value)


def test_a_masked_url_is_no_url():
    with pytest.raises(PayloadError, match="how a secret is shown"):
        http_payload("https://example.com/?token=***")


def test_the_repr_of_a_call_holds_no_secret():
    call = checked_call({"url": URL, "headers": {"Authorization": "hush"}, "body": "hush"})
    assert "hush" not in repr(call)


_scalars = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20)
_values = (
    _scalars | st.lists(_scalars, max_size=3) | st.dictionaries(st.text(max_size=9), _scalars, max_size=3)
)
_NAMES = ["url", "method", "headers", "body", "timeout", "follow_redirects", "signing_secret"]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(_NAMES), _values)
def test_any_value_makes_a_call_or_a_payload_error(name, value):
    try:
        call = checked_call({"url": URL, name: value})
    except PayloadError:
        return
    assert call.target.url.startswith(("http://", "https://"))
