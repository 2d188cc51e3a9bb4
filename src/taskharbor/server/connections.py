"""Limits of connections: the time for a request's head, and the number of connections.

uvicorn waits for a request's head without a limit, and accepts every connection. The protocol here gives a head a
deadline, ends connections whose client reads nothing, and bounds their number. At the limit, it ends the connection
that has been without a request for the longest time, so idle connections give way to active ones.

It is based on h11, the parser that uvicorn always has, even if httptools is installed: one parser is tested.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from taskharbor.server.clients import Address, Proxies, is_trusted, key_of, parsed
from taskharbor.server.errors import encoded_error
from taskharbor.server.limits import Throttled
from taskharbor.server.shares import Shares

HEAD_SECONDS = 10.0  # from the connection, or the end of the previous response, to the end of the head
STALLED_SECONDS = 30.0  # how long a client may read nothing of a response
CONNECTIONS_MAX = 500
LOG_LINES_MAX = 10  # about requests that are not HTTP, within LOG_SECONDS
LOG_SECONDS = 60.0


class Connections:
    """The connections of a server. One client has at most half of them, unless it is a trusted proxy."""

    def __init__(self, total: int = CONNECTIONS_MAX, proxies: Proxies = ()) -> None:
        self._shares = Shares(total, max(1, total // 2))
        self._log = Throttled(LOG_LINES_MAX, LOG_SECONDS)
        self._proxies = proxies
        self._keys: dict[GuardedProtocol, str] = {}
        self._idle: dict[GuardedProtocol, None] = {}  # without a current request, the longest first

    def admit(self, connection: GuardedProtocol) -> bool:
        """Give a new connection a place; return False if there is none."""
        address = connection.address
        key = key_of(address)
        if is_trusted(address, self._proxies):
            key = f"proxy {id(connection)}"  # each counts as a client, because it serves many
        if self._shares.is_full_for(key) and not self._make_room(key):
            return False
        if self._shares.is_full() and not self._make_room(None):
            return False
        self._shares.take(key)
        self._keys[connection] = key
        self._idle[connection] = None
        return True

    def _make_room(self, key: str | None) -> bool:
        """End the oldest connection without a request, of this client or of all."""
        for connection in self._idle:
            if key is None or self._keys[connection] == key:
                self.leave(connection)
                connection.transport.abort()
                return True
        return False

    def set_idle(self, connection: GuardedProtocol, *, is_idle: bool) -> None:
        if not is_idle:
            self._idle.pop(connection, None)
        elif connection in self._keys:
            self._idle.setdefault(connection)

    def log_malformed(self, connection: GuardedProtocol) -> None:
        """Log a request that cannot be read as HTTP. Any client can send as many as it likes."""
        key = key_of(connection.address)
        self._log.warning("a request from %s is not HTTP; answered with 400", key)

    def leave(self, connection: GuardedProtocol) -> None:
        key = self._keys.pop(connection, None)
        self._idle.pop(connection, None)
        if key is not None:
            self._shares.give_back(key)


def guarded(connections: Connections) -> type[GuardedProtocol]:
    """Return the protocol class of a server with these connections."""
    return type("Guarded", (GuardedProtocol,), {"all": connections})


class GuardedProtocol(H11Protocol):
    all: Connections
    _head_timer: asyncio.TimerHandle | None = None
    _stalled_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = _LOGGER

    @property
    def address(self) -> Address | None:
        return parsed(self.client[0]) if self.client else None

    @property
    def is_idle(self) -> bool:
        """Whether there is no current request."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.all.admit(self):
            self._keep_time()
            return
        transport.write(_BUSY)
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.leave(self)
        for timer in (self._head_timer, self._stalled_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # -- the head --

    def handle_events(self) -> None:
        super().handle_events()
        self._keep_time()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._keep_time()

    def _keep_time(self) -> None:
        self.all.set_idle(self, is_idle=self.is_idle)
        if not self.is_idle:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it does not read its last response either
            return
        if (
            self.conn.their_state is h11.IDLE
            and self.conn.trailing_data[0]
            and not self.transport.is_closing()
        ):
            self.transport.write(_LATE)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self.all.log_malformed(self)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # otherwise a response has begun
            self.transport.write(_MALFORMED)
        self.transport.close()

    # -- the response --

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        if self._stalled_timer is not None:
            self._stalled_timer.cancel()
            self._stalled_timer = None
        super().resume_writing()

    def _watch_reader(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._stalled_timer = self.loop.call_later(STALLED_SECONDS, self._end_if_stalled)

    def _end_if_stalled(self) -> None:
        if self.transport.get_write_buffer_size() >= self._unread_bytes:
            self.transport.abort()
        else:
            self._watch_reader()


class _WithoutWarnings(logging.Logger):
    """uvicorn's logger without its warnings: any client could fill the log with malformed requests."""

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        pass


_LOGGER = _WithoutWarnings("uvicorn.error", logging.INFO)
_LOGGER.parent = logging.getLogger("uvicorn.error")


def _refusal(status: str, code: str, message: str) -> bytes:
    """Build a response outside of the application, in the shape of its errors."""
    body = encoded_error(code, message, {})
    retry_after = "" if status.startswith("400") else "Retry-After: 5\r\n"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{retry_after}Connection: close\r\n\r\n"
    )
    return head.encode() + body


_BUSY = _refusal("503 Service Unavailable", "busy", "too many connections are open; try again later")
_LATE = _refusal("408 Request Timeout", "too_slow", "the head of the request did not arrive in time")
_MALFORMED = _refusal("400 Bad Request", "malformed", "the request cannot be read as HTTP/1.1")
