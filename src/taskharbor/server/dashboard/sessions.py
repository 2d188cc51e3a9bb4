"""Sessions: browsers that signed in with a token. The store keeps a digest of what the browser keeps."""

from __future__ import annotations

import hashlib
import secrets
import time

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Driver
from taskharbor.drivers.typed_records import SESSIONS
from taskharbor.records import SessionRecord, TokenRecord

COOKIE = "taskharbor_session"
LASTS_SECONDS = 12 * 3600
OF_TOKEN_MAX = 50  # more sign-ins with one token end the oldest of its sessions
READ_SECONDS = 5.0  # how long a session may still pass that expired, or that another server ended
VALUE_MAX = 200  # characters of a cookie that are looked at


class Sessions:
    """The sessions of one store."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: dict[str, SessionRecord] = {}
        self._read_at: float | None = None

    async def begin(self, token: TokenRecord) -> str:
        """Keep a new session of this token; return what the browser keeps."""
        await self._read()
        of_token = [each for each in self._known.values() if each.token_id == token.id]
        if len(of_token) >= OF_TOKEN_MAX:
            oldest = sorted(of_token, key=lambda each: each.created_at)[: len(of_token) - OF_TOKEN_MAX + 1]
            await SESSIONS.drop(self._driver, [each.digest for each in oldest])
        value = secrets.token_urlsafe(32)
        record = SessionRecord(_digest(value), token.id, await self._driver.now())
        await SESSIONS.put(self._driver, [record], LASTS_SECONDS * MICROS_PER_SECOND)
        self._read_at = None
        return value

    async def find(self, value: str | None) -> SessionRecord | None:
        """Return the session of this browser, if it has one that has neither ended nor expired."""
        if not value or len(value) > VALUE_MAX:
            return None
        if self._read_at is None or time.monotonic() - self._read_at >= READ_SECONDS:
            await self._read()
        # Digests are looked up, not compared letter by letter: the time says nothing about the value.
        return self._known.get(_digest(value))

    async def end(self, value: str | None) -> None:
        """End the session of this browser."""
        if value and len(value) <= VALUE_MAX:
            self._known.pop(_digest(value), None)
            await SESSIONS.drop(self._driver, [_digest(value)])

    async def _read(self) -> None:
        self._known = {record.digest: record for record in await SESSIONS.all(self._driver)}
        self._read_at = time.monotonic()


def _digest(value: str) -> str:
    # 256 random bits need no slow hash: trying them all is impossible.
    return hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()
