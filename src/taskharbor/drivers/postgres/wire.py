"""The wire of a connection: whether bytes move on it, and what is done when they do not.

An answer that does not come in time counts as lost, because a network can swallow answers without telling anybody. But
a large result on a slow network is not lost: it moves. So the time runs from the last byte that went or came, not from
the begin of a statement.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import asyncpg

LOOKS = 4  # that are taken at a wire in the time that is given: what is sent between two looks goes unseen
# What the system keeps to send for us, at most: what it has taken is out of sight, whether it moves or not.
UNSENT_BYTES = 65_536


class Wire(asyncio.Protocol):
    """Stands between a connection and its transport, and notes when something came."""

    def __init__(
        self, connection: asyncpg.Connection, transport: asyncio.Transport, inner: asyncio.Protocol
    ) -> None:
        self.connection = connection
        self.heard_at = 0.0
        self._transport = transport
        self._inner = inner
        self._feed = inner.data_received
        self._time = asyncio.get_running_loop().time

    @classmethod
    def tap(cls, connection: asyncpg.Connection) -> Wire:
        """The wire of this connection, from here on."""
        transport: Any = connection._transport  # type: ignore[attr-defined]  # asyncpg shows it nowhere else
        wire = cls(connection, transport, transport.get_protocol())
        transport.set_protocol(wire)
        plug = transport.get_extra_info("socket")
        if plug is not None and plug.family in (socket.AF_INET, socket.AF_INET6):
            option = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # of Linux and macOS
            if option is not None:
                plug.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)
        return wire

    @property
    def unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._transport.get_write_buffer_size()

    # -- what the transport says is passed on --

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._time()
        self._feed(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class Watch:
    """Cuts a connection on which nothing has moved for `seconds` while a caller waits for an answer."""

    __slots__ = ("_loop", "_moved_at", "_timer", "_unsent", "_wire", "is_over", "seconds")

    def __init__(self, wire: Wire, seconds: float) -> None:
        self.is_over = False
        self.seconds = seconds
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._moved_at = self._loop.time()
        self._unsent = 0
        self._timer = self._loop.call_later(seconds / LOOKS, self._look)

    def expect(self, seconds: float) -> None:
        """From here on, it may take at least this long before the server has something to say."""
        self.seconds = seconds = max(seconds, self.seconds)
        self._moved_at = self._loop.time()
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds / LOOKS, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        unsent = self._wire.unsent
        if unsent != self._unsent:
            self._unsent = unsent
            self._moved_at = now
        left = max(self._moved_at, self._wire.heard_at) + self.seconds - now
        if left <= 0:
            self.is_over = True
            self._wire.connection.terminate()
            return
        self._timer = self._loop.call_later(min(left, self.seconds / LOOKS), self._look)
