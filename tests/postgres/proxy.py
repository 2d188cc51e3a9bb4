"""A TCP proxy between clients and a PostgreSQL server that loses what a network can lose, or is slow.

It reads along: which statement a client has sent, and when the server is done with it. So an answer can be lost at a
chosen moment, after the commit, which no amount of killing at random would hit often enough.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

CHUNK = 65536
SLOW_BUFFER = 16384  # what a slow network takes in advance
SSL_REQUEST, CANCEL_REQUEST = 80877103, 80877102


class Proxy:
    """Start it on a loop; `dsn` leads through it. Its other methods are for that loop's thread."""

    def __init__(self, dsn: str, *, bytes_per_second: float | None = None) -> None:
        self._target = dsn
        self.bytes_per_second = bytes_per_second  # in each direction of each connection
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.in_hole = False
        self._swallowing: list[_Swallowing] = []
        self.swallowed = 0  # answers
        self.statements: list[tuple[int, str]] = []  # (connection, text) of everything that was executed
        self._connections = 0

    @property
    def dsn(self) -> str:
        assert self._server is not None
        parts = urlsplit(self._target)
        port = self._server.sockets[0].getsockname()[1]
        return parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()

    async def start(self) -> None:
        listener = self.new_socket()
        listener.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._connected, sock=listener, limit=self.chunk)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- what is slow --

    @property
    def chunk(self) -> int:
        return CHUNK if self.bytes_per_second is None else SLOW_BUFFER // 4

    def new_socket(self) -> socket.socket:
        """One that lets its peer send no further ahead than a network of this speed would."""
        made = socket.socket()
        if self.bytes_per_second is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
        made.setblocking(False)
        return made

    async def take_time(self, size: int) -> None:
        if self.bytes_per_second is not None:
            await asyncio.sleep(size / self.bytes_per_second)

    # -- what is lost --

    def swallow_answer(self, statement: str, *, times: int = 1, cut: bool = True) -> None:
        """Lose the answers to the next statements that contain this text, once the server is done with them.

        Then the connection is cut; without `cut` it stays, and neither side ever hears of the other again.
        """
        self._swallowing.append(_Swallowing(statement.encode(), times, cut))

    def dig_hole(self) -> None:
        """From here on nothing gets through, in either direction, and nobody is told."""
        self.in_hole = True

    def fill_hole(self) -> None:
        """New connections get through. Those that lost something in the hole have lost it for good."""
        self.in_hole = False

    def meets(self, statement: bytes) -> _Swallowing | None:
        for each in self._swallowing:
            if each.statement in statement:
                each.times -= 1
                if not each.times:
                    self._swallowing.remove(each)
                return each
        return None

    # -- connections --

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        wire = _Wire(self, self._connections, reader, writer)
        try:
            await wire.carry(urlsplit(self._target))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            wire.cut()
            self._tasks.discard(task)


class _Swallowing:
    def __init__(self, statement: bytes, times: int, cut: bool) -> None:
        self.statement = statement
        self.times = times
        self.cut = cut


class _Wire:
    """One client's connection, and the one to the server that it stands for."""

    def __init__(
        self, proxy: Proxy, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._number = number
        self._client = (reader, writer)
        self._writers = [writer]
        self._requests = _Requests()
        self._answers = _Answers()
        self._swallowing: _Swallowing | None = None
        self._dead = False  # something was lost in a hole

    async def carry(self, target: Any) -> None:
        if self._proxy.in_hole:
            await self._into_the_hole()
        upstream = self._proxy.new_socket()
        try:
            await asyncio.get_running_loop().sock_connect(upstream, (target.hostname, target.port))
        except BaseException:
            upstream.close()
            raise
        reader, writer = await asyncio.open_connection(sock=upstream, limit=self._proxy.chunk)
        self._writers.append(writer)
        up = asyncio.ensure_future(self._pump(self._client[0], writer, self._on_request))
        down = asyncio.ensure_future(self._pump(reader, self._client[1], self._on_answer))
        try:
            # When one side closes, the other one is told; but not through a hole.
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            if self._dead or self._proxy.in_hole or (self._swallowing and not self._swallowing.cut):
                await self._into_the_hole()
        finally:
            up.cancel()
            down.cancel()
            await asyncio.wait([up, down])

    async def _into_the_hole(self) -> None:
        """Neither side ever hears of the other again."""
        await asyncio.Event().wait()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on: Callable[[bytes], bool]
    ) -> None:
        while data := await reader.read(self._proxy.chunk):
            await self._proxy.take_time(len(data))
            if self._proxy.in_hole or self._dead:
                self._dead = True  # a stream with a gap in it is no stream
            elif on(data):
                writer.write(data)
                await writer.drain()

    def _on_request(self, data: bytes) -> bool:
        if self._swallowing is not None:
            return False
        for statement in self._requests.feed(data):
            self._proxy.statements.append((self._number, statement.rstrip(b"\0").decode()))
            self._swallowing = self._swallowing or self._proxy.meets(statement)
        return True

    def _on_answer(self, data: bytes) -> bool:
        done = self._answers.feed(data, ssl_asked=self._requests.ssl_asked)
        if self._swallowing is None:
            return True
        if done:
            self._proxy.swallowed += 1
            if self._swallowing.cut:
                self.cut()
        return False

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class _Requests:
    """What a client sends: gives the text of each statement that is executed, whether it is prepared or not."""

    def __init__(self) -> None:
        self._buffer = b""
        self._started = False
        self._prepared: dict[bytes, bytes] = {}
        self.ssl_asked = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        while (message := self._next()) is not None:
            kind, body = message
            if kind == b"P":  # Parse
                name, statement, _ = body.split(b"\0", 2)
                self._prepared[name] = statement
            elif kind == b"B":  # Bind: it is followed by Execute
                _portal, name, _ = body.split(b"\0", 2)
                yield self._prepared.get(name, b"")
            elif kind == b"Q":
                yield body

    def _next(self) -> tuple[bytes, bytes] | None:
        head = 1 if self._started else 0  # the first messages of a connection have no kind
        if len(self._buffer) < head + 4:
            return None
        (length,) = struct.unpack_from("!I", self._buffer, head)
        if len(self._buffer) < head + length:
            return None
        kind, body = self._buffer[:head], self._buffer[head + 4 : head + length]
        self._buffer = self._buffer[head + length :]
        if not self._started:
            (code,) = struct.unpack_from("!I", body)
            self.ssl_asked = self.ssl_asked or code == SSL_REQUEST
            self._started = code not in (SSL_REQUEST, CANCEL_REQUEST)
        return kind, body


class _Answers:
    """What the server sends: tells when it is done with what it was asked."""

    def __init__(self) -> None:
        self._buffer = b""
        self._begun = False

    def feed(self, data: bytes, *, ssl_asked: bool) -> bool:
        self._buffer += data
        if not self._begun:
            self._begun = True
            if ssl_asked:
                self._buffer = self._buffer[1:]  # the answer to that is a single byte
        done = False
        while len(self._buffer) >= 5:
            (length,) = struct.unpack_from("!I", self._buffer, 1)
            if len(self._buffer) < 1 + length:
                break
            done = done or self._buffer[:1] == b"Z"  # ReadyForQuery
            self._buffer = self._buffer[1 + length :]
        return done


class ProxyThread:
    """A proxy on a loop of its own, for tests that are busy with processes."""

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        self.proxy = proxy
        self._loop = loop

    @property
    def dsn(self) -> str:
        return self.proxy.dsn

    def do(self, action: Callable[[], T]) -> T:
        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(60)

    def wait_for(self, awaitable: Callable[[], Awaitable[T]]) -> T:
        async def wait() -> T:
            return await awaitable()

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(60)


@contextmanager
def proxy_thread(dsn: str) -> Iterator[ProxyThread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    mine = ProxyThread(Proxy(dsn), loop)
    mine.wait_for(mine.proxy.start)
    try:
        yield mine
    finally:
        mine.wait_for(mine.proxy.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
