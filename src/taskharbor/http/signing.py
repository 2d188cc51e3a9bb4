"""Signatures by Standard Webhooks, version 1: HMAC-SHA256 over the id, the time and the body.

https://www.standardwebhooks.com describes how a receiver verifies them; there are libraries for most languages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from taskharbor.errors import PayloadError

PREFIX = "whsec_"
KEY_BYTES_MIN, KEY_BYTES_MAX = 24, 64
HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


def key_of(secret: object) -> bytes:
    """Decode a secret: base64, with or without `whsec_` in front. The error does not quote it."""
    try:
        if isinstance(secret, str):
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
            if KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
                return key
    except (binascii.Error, ValueError):
        pass
    raise PayloadError(
        f"signing_secret must be base64 of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, after {PREFIX} or by itself; "
        "make one with: openssl rand -base64 32"
    )


def signature_headers(
    secrets: Sequence[str], message_id: str, timestamp: int, body: bytes
) -> list[tuple[str, str]]:
    """Return the three headers, with a signature for each secret: a receiver may know the old or the new secret."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = [
        "v1," + base64.b64encode(hmac.new(key_of(secret), signed, hashlib.sha256).digest()).decode()
        for secret in secrets
    ]
    return list(zip(HEADERS, (message_id, str(timestamp), " ".join(signatures)), strict=True))
