"""Reads and drops the unread rest of a request's body, so that the client gets its response.

Closing a connection while its client still sends resets it, and the client loses a response that it has not read yet.
Most clients send a whole body before they read the response.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskharbor.server.limits import BODY_BYTES_MAX

DROPPED_BYTES_MAX = 8 * BODY_BYTES_MAX
DROPPED_SECONDS_MAX = 10.0


class UnreadBodies:
    """Sends the response, then drops the rest of the body, up to a limit, then closes the connection.

    A short body is left to the server, which keeps the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _may_be_long(headers := Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body = _Body(receive, is_asked_for="expect" not in headers)
        is_left = False

        async def answer(message: Message) -> None:
            nonlocal is_left
            if message["type"] == "http.response.start":
                is_left = not body.ended
                if is_left:
                    MutableHeaders(scope=message)["Connection"] = "close"
            elif is_left and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await body.drop()
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, body.receive, answer)


def _may_be_long(headers: Headers) -> bool:
    length = headers.get("content-length", "")
    return "transfer-encoding" in headers or (length.isdecimal() and int(length[:20]) > BODY_BYTES_MAX)


class _Body:
    def __init__(self, receive: Receive, *, is_asked_for: bool) -> None:
        self._receive = receive
        self._is_asked_for = is_asked_for  # otherwise the client waits for permission to send it
        self.ended = False

    async def receive(self) -> Message:
        self._is_asked_for = True
        message = await self._receive()
        self.ended = not message.get("more_body", False)  # or the client disconnected
        return message

    async def drop(self) -> None:
        """Drop the rest of the body, up to a limit of bytes and of time."""
        if not self._is_asked_for:
            return
        dropped = 0
        try:
            async with asyncio.timeout(DROPPED_SECONDS_MAX):
                while not self.ended and dropped < DROPPED_BYTES_MAX:
                    dropped += len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
