"""Signatures by Standard Webhooks, verified as its text says, not by our own code."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor import Worker
from taskharbor.errors import PayloadError
from taskharbor.http import http_payload
from taskharbor.http.signing import key_of, signature_headers
from tests.http.stage import reply

OLD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NEW = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def verifies(secret: str, headers: dict[str, str], body: bytes, now: int) -> bool:
    """A receiver: the signed text is id, timestamp and body with dots between; any signature of the list may fit."""
    if abs(int(headers["webhook-timestamp"]) - now) > 300:
        return False
    text = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    digest = hmac.digest(base64.b64decode(re.sub("^whsec_", "", secret)), text, hashlib.sha256)
    return any(
        version == "v1" and hmac.compare_digest(signature.encode(), base64.b64encode(digest))
        for version, _, signature in (part.partition(",") for part in headers["webhook-signature"].split(" "))
    )


def test_the_example_of_the_specification():
    headers = dict(
        signature_headers([OLD], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@settings(deadline=None)
@given(st.binary(min_size=24, max_size=64), st.binary(), st.integers(0, 2**40))
def test_a_receiver_verifies_what_was_sent_and_nothing_else(key: bytes, body: bytes, now: int):
    secret = base64.b64encode(key).decode()
    headers = dict(signature_headers([secret], "id", now, body))
    assert verifies(secret, headers, body, now)
    assert not verifies(secret, headers, body + b"x", now)
    assert not verifies(secret, headers, body, now + 301)
    assert not verifies(secret, {**headers, "webhook-id": "other"}, body, now)


async def test_a_signed_job_is_signed_with_every_secret_at_each_attempt(harbor, server, clock):
    server.handle = lambda request: reply(500)
    payload = http_payload(server.url, body={"order": 42}, signing_secret=[OLD, NEW])
    await harbor.aenqueue("http", payload)
    await Worker(harbor).drain()
    clock.advance(1)
    await Worker(harbor).drain()
    first, second = server.requests
    for request in (first, second):
        for secret in (OLD, NEW):
            assert verifies(secret, request.headers, request.body, clock.now() // 1_000_000)
        assert request.headers["webhook-id"] == request.headers["idempotency-key"]
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) == int(first.headers["webhook-timestamp"]) + 1


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "no base64!", "c2hvcnQ=", base64.b64encode(b"x" * 65).decode(), 5, []]
)
def test_a_secret_that_is_none_is_refused_and_not_quoted(secret):
    with pytest.raises(PayloadError) as caught:
        http_payload("https://example.com", signing_secret=secret)
    assert "signing_secret" in str(caught.value)
    if isinstance(secret, str) and secret not in ("", "whsec_"):
        assert secret not in str(caught.value)


def test_a_secret_is_base64_with_or_without_its_prefix():
    assert key_of(NEW) == key_of(NEW.removeprefix("whsec_")) == bytes(range(32))
