"""`MetricsEndpoint`: `GET /metrics` over HTTP, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from taskharbor.errors import ConfigurationError
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.metrics")

PATH = "/metrics"
REQUEST_MAX = 8_192  # bytes of a request's line and headers; a body is never read
ANSWER_SECONDS = 10.0  # from a connection's begin to its end
CONNECTIONS_MAX = 8  # at once; further ones are closed
CLOSE_SECONDS = 5.0

Render = Callable[[str], tuple[str, bytes]]  # from the Accept header to the content type and the text

_NO_PAGE = b"the metrics are at /metrics\n"
_NO_METHOD = b"ask for the metrics with GET\n"
_NO_ANSWER = b"the metrics could not be read; the log says why\n"


class MetricsEndpoint:
    """Answers scrapes, one at a time, beside a worker whose own loop does nothing for them.

    It is meant for loopback or a private network: it asks for no token. What it shows is names of queues and tasks, and
    numbers. Slow and silent clients are cut off, and only a few may be connected at once.
    """

    def __init__(self, render: Render, host: str, port: int) -> None:
        self._render = render
        self._host = host
        self._port = port
        self._connections = 0
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None

    @property
    def port(self) -> int:
        """The port that it listens on: with port 0, the one that the system chose."""
        return self._port

    def start(self) -> None:
        """Listen; if that cannot be, raise a `ConfigurationError` that says why."""
        try:
            family, _, _, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.create_server(address, family=family, backlog=CONNECTIONS_MAX)
        except (OSError, UnicodeError) as error:
            at = f"[{self._host}]" if ":" in self._host else self._host
            raise ConfigurationError(
                f"no metrics port at {at}:{self._port}: {_reason(error)}; name another one"
            ) from None
        self._port = listening.getsockname()[1]
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        self._thread = threading.Thread(
            target=self._serve, args=(loop, listening, stop), name="taskharbor-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and let the thread end."""
        if self._thread is not None:
            self._stop()

    def close(self) -> None:
        """Stop listening, and wait until the thread has ended."""
        if self._thread is not None:
            self._stop()
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def _serve(self, loop: asyncio.AbstractEventLoop, listening: socket.socket, stop: asyncio.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # cancels what it finds at the end
            runner.run(self._listen(listening, stop))

    async def _listen(self, listening: socket.socket, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, sock=listening, limit=REQUEST_MAX)
        await stop.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(ANSWER_SECONDS):
                    writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
                    writer.write_eof()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a malformed or slow request gets no answer
        finally:
            self._connections -= 1
            with suppress(OSError):
                writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, path, headers = _parsed(request)
        if path != PATH:
            return _response("404 Not Found", "text/plain; charset=utf-8", _NO_PAGE)
        if method != "GET":
            return _response("405 Method Not Allowed", "text/plain; charset=utf-8", _NO_METHOD, "Allow: GET")
        try:
            content_type, body = self._render(headers.get("accept", ""))
        except Exception as error:  # noqa: BLE001 - a scrape that fails must cost the worker nothing
            log_line(logger, logging.ERROR, "the metrics could not be read: {error}", {"error": repr(error)})
            return _response("500 Internal Server Error", "text/plain; charset=utf-8", _NO_ANSWER)
        return _response("200 OK", content_type, body)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)  # its own text repeats the address
    return str(getattr(error, "strerror", None) or error)


def _parsed(request: bytes) -> tuple[str, str, dict[str, str]]:
    """Return the method, the path without its query, and the headers."""
    first, *lines = request.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return method, path, headers


def _response(status: str, content_type: str, body: bytes, *lines: str) -> bytes:
    head = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *lines,
        "\r\n",
    ]
    return "\r\n".join(head).encode("latin-1") + body
