"""What the tests of HTTP jobs share: a server that answers as it is told, and a network that leads nowhere else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpcore2

from taskharbor import Harbor
from taskharbor.http.client import Network
from taskharbor.http.task import http_task

CERTIFICATES = Path(__file__).parent / "certificates"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]
Handle = Callable[[Request], "bytes | Reply"]


def reply(status: int, body: bytes | str = b"", **headers: str) -> bytes:
    """An answer with these headers; underscores in their names stand for hyphens."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


@dataclass
class Server:
    """On loopback, on a port of its own."""

    port: int = 0
    handle: Handle = lambda request: reply(200, "ok")
    requests: list[Request] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def request(self) -> Request:
        """The only one."""
        [request] = self.requests
        return request

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read(reader)
            self.requests.append(request)
            self.arrived.set()
            answer = self.handle(request)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other end has gone
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except (ConnectionError, ssl.SSLError):
                pass


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


@asynccontextmanager
async def serving(*, tls: bool = False) -> AsyncIterator[Server]:
    server = Server()
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / "hooks.pem", CERTIFICATES / "hooks.key")
    serving: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        await server.serve(reader, writer)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


class FakeNetwork:
    """Names are as they are written down here; whatever is connected to is remembered, and is a server of the test."""

    def __init__(self, names: dict[str, list[str]], server: Server | None = None) -> None:
        self.names = names
        self.server = server
        self.resolved: list[str] = []
        self.connected: list[tuple[str, int]] = []
        self.dead: set[str] = set()  # addresses where nobody answers

    async def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append(host)
        return self.names[host]

    async def connect(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        self.connected.append((address, port))
        if self.server is None or address in self.dead:
            raise httpcore2.ConnectError("nobody answers")
        return await httpcore2.AnyIOBackend().connect_tcp("127.0.0.1", self.server.port)

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=CERTIFICATES / "hooks.pem")

    def use(self, harbor: Harbor) -> None:
        """Let this be the only way out of HTTP jobs of the harbor."""
        harbor.built_in["http"] = http_task(harbor, Network(self.resolve, self.connect, self.trust))
