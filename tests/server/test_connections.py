"""What one client does to a server, with real sockets: others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from taskharbor import Harbor
from taskharbor.server.app import application
from taskharbor.server.clients import trusted_proxies
from taskharbor.server.connections import LOG_LINES_MAX, Connections, guarded
from taskharbor.server.events import CLIENT_STREAMS_MAX, STREAMS_MAX
from taskharbor.server.large_bodies import CLIENT_LARGE_BODIES_MAX, LARGE_BYTES
from taskharbor.server.limits import CONTAINERS_MAX, VALUES_MAX, parsed_json
from taskharbor.server.tokens import create_token
from tests.server.conftest import client_of
from tests.server.test_resources import API, error_of

LIMIT = 60.0
HEAD = "taskharbor.server.connections.HEAD_SECONDS"
STALLED = "taskharbor.server.connections.STALLED_SECONDS"


class Peer:
    """A client by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, text: str | bytes) -> None:
        self.writer.write(text.encode() if isinstance(text, str) else text)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), LIMIT)
        except ConnectionError:
            return b""

    async def until(self, end: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(end), LIMIT)

    async def ask(self, path: str, *, token: str | None = None) -> bytes:
        """The head of the answer."""
        await self.send(get(path, token=token))
        return await self.until(b"\r\n\r\n")


def get(path: str, *, token: str | None = None) -> str:
    shown = "" if token is None else f"Authorization: Bearer {token}\r\n"
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{shown}\r\n"


def post(length: int, token: str) -> str:
    return (
        f"POST {API}/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )


Connect = Callable[..., Any]


@asynccontextmanager
async def listening(app: ASGIApp, connections: Connections) -> AsyncIterator[Connect]:
    """A server on loopback, of the protocol that `serve` uses; what it yields opens a connection from an address."""
    config = uvicorn.Config(app, http=guarded(connections), lifespan="off", log_config=None, ws="none")
    config.load()
    state = ServerState()

    def protocol() -> asyncio.Protocol:
        return config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peers: list[Peer] = []

    async def connect(address: str = "127.0.0.1") -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
        peers.append(peer)
        return peer

    try:
        yield connect
    finally:
        server.close()
        for peer in peers:
            peer.writer.close()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)


async def answered(connect: Connect, request: str) -> Peer:
    """A connection whose request came in time, on a machine as busy as it likes."""
    while True:
        peer: Peer = await connect()
        await peer.send(request)
        try:
            if b" 200 " in await peer.until(b"\r\n\r\n"):
                return peer
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it was late


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends by time, unless a test says so."""
    monkeypatch.setattr(HEAD, LIMIT)
    monkeypatch.setattr(STALLED, LIMIT)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def serve(harbor: Harbor, stack: AsyncExitStack) -> Callable[..., Any]:
    async def serve(
        total: int = 500, *, proxies: tuple[str, ...] = (), app: ASGIApp | None = None
    ) -> Connect:
        app = app or application(harbor, open_on_loopback=True)
        connections = Connections(total, trusted_proxies(proxies))
        return await stack.enter_async_context(listening(app, connections))

    return serve


# -- heads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["", "GET", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_a_head_that_is_not_sent_to_its_end_is_given_up(serve, monkeypatch, sent: str):
    monkeypatch.setattr(HEAD, 0.5)  # in which what is sent arrives, also on a busy machine
    connect = await serve()
    peer = await connect()
    await peer.send(sent)
    answer = await peer.rest()
    assert answer.startswith(b"HTTP/1.1 408 ") if sent else answer == b""


async def test_requests_that_are_no_http_are_errors_like_others_and_do_not_fill_the_log(serve, caplog):
    connect = await serve()
    for _ in range(LOG_LINES_MAX + 5):
        peer = await connect()
        await peer.send("\x16\x03\x01 no HTTP\r\n\r\n")
        answer = await peer.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"code":"malformed"' in answer
    assert caplog.messages == ["a request from 127.0.0.1 is not HTTP; answered with 400"] * LOG_LINES_MAX


async def test_a_body_that_is_no_http_is_answered_once(serve, caplog):
    connect = await serve()
    peer = await connect()
    await peer.send(
        f"POST {API}/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n5\r\n{}   \r\nno length\r\n"
    )
    answer = await peer.rest()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert caplog.messages == ["a request from 127.0.0.1 is not HTTP; answered with 400"]


async def test_a_request_for_a_websocket_is_answered_as_any_other_and_logs_nothing(serve, caplog):
    connect = await serve()
    peer = await connect()
    await peer.send(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert b" 200 " in await peer.until(b"\r\n\r\n")
    assert [each.getMessage() for each in caplog.records if each.name != "uvicorn.access"] == []


async def test_a_head_that_drips_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(HEAD, 0.05)
    connect = await serve()
    peer = await connect()
    await peer.send("GET /healthz HTTP/1.1\r\nX-Slow: ")

    async def drip() -> None:
        while True:
            await peer.send("x")
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    await peer.rest()  # it comes to its end; what is sent after that may take the answer with it
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


async def test_the_next_head_on_a_connection_has_no_more_time(serve, monkeypatch):
    monkeypatch.setattr(HEAD, 0.05)
    connect = await serve()
    peer = await answered(connect, get("/healthz"))
    await peer.send("GET /healthz HTT")
    await peer.rest()  # and it comes to its end


async def test_the_rest_of_a_body_that_was_answered_has_no_more_time(serve, monkeypatch):
    monkeypatch.setattr(HEAD, 0.05)
    connect = await serve()
    peer = await answered(connect, get("/healthz").replace("\r\n\r\n", "\r\nContent-Length: 9\r\n\r\nx"))
    await peer.rest()  # and it comes to its end


async def test_a_request_under_way_may_take_longer_than_its_head(harbor: Harbor, serve, monkeypatch):
    monkeypatch.setattr(HEAD, 0.05)
    connect = await serve()
    stream = await answered(connect, get(f"{API}/events?names=enqueued"))
    await stream.until(b": connected")
    late = await connect()
    await late.rest()  # which began later, and its time is over
    await harbor.aenqueue("t")
    await stream.until(b"event: enqueued")


# -- connections -----------------------------------------------------------------------------------


async def test_who_says_nothing_makes_room_for_who_does(serve):
    connect = await serve(4)
    silent = [await connect(f"127.0.0.{n}") for n in (2, 3, 4, 5)]
    await silent[1].send("GET /heal")
    asking = await connect()
    assert b" 200 " in await asking.ask("/healthz")
    assert await silent[0].rest() == b""  # the oldest one
    assert b" 200 " in await silent[3].ask("/healthz")


async def test_many_half_sent_heads_keep_nobody_out(serve):
    connect = await serve(10)
    for n in range(100):
        await (await connect(f"127.0.1.{n}")).send("GET /he")
    assert b" 200 " in await (await connect()).ask("/healthz")


async def test_one_client_has_at_most_half_of_the_connections(serve):
    connect = await serve(4)
    for _ in range(2):
        stream = await connect()
        assert b" 200 " in await stream.ask(f"{API}/events")
    refused = await (await connect()).rest()
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"busy"' in refused
    assert b" 200 " in await (await connect("127.0.0.2")).ask("/healthz")


async def test_a_trusted_proxy_may_have_all_of_them_and_no_more(serve):
    connect = await serve(4, proxies=("127.0.0.0/8",))
    streams = [await connect() for _ in range(4)]
    for stream in streams:
        assert b" 200 " in await stream.ask(f"{API}/events")
    assert b" 503 " in await (await connect()).rest()
    streams[0].writer.close()
    while b" 503 " in (answer := await (await connect()).ask("/healthz")):
        pass  # the server has not seen it yet
    assert b" 200 " in answer


async def test_a_client_that_reads_nothing_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(STALLED, 0.05)
    ended = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        sending = asyncio.create_task(_send_on(send))
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()
        ended.set()

    connect = await serve(app=endless)
    peer = await connect()
    await peer.send(get("/"))
    await asyncio.wait_for(ended.wait(), LIMIT)


async def _send_on(send: Send) -> None:
    while True:
        await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})


# -- streams ---------------------------------------------------------------------------------------


async def test_one_client_cannot_use_up_the_streams(harbor: Harbor, serve):
    mine, _ = await create_token(harbor.driver, "mine", "read")
    theirs, _ = await create_token(harbor.driver, "theirs", "read")
    assert CLIENT_STREAMS_MAX < STREAMS_MAX
    connect = await serve(app=harbor.asgi())
    streams = [await connect() for _ in range(CLIENT_STREAMS_MAX)]
    for stream in streams:
        assert b" 200 " in await stream.ask(f"{API}/events", token=mine)
    one_more = await connect()
    assert b" 429 " in await one_more.ask(f"{API}/events", token=mine)
    assert b" 200 " in await (await connect()).ask(f"{API}/events", token=theirs)
    streams[0].writer.close()
    while b" 429 " in (answer := await (await connect()).ask(f"{API}/events", token=mine)):
        pass  # the server has not seen it yet
    assert b" 200 " in answer  # the place was given back


@pytest.mark.parametrize("version", ["2.3", "2.4"])  # which say differently how a server tells of it
async def test_a_reader_who_has_gone_leaves_its_place(harbor: Harbor, version: str):
    app = application(harbor, open_on_loopback=True)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": version},
        "http_version": "1.1",
        "method": "GET",
        "path": f"{API}/events",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    statuses = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.append(message["status"])
        await asyncio.sleep(0)

    for _ in range(CLIENT_STREAMS_MAX + 5):
        await asyncio.wait_for(app(dict(scope), receive, send), LIMIT)
    assert set(statuses) == {200}


# -- large bodies ----------------------------------------------------------------------------------


async def test_others_are_served_while_a_large_body_is_read_as_json(
    harbor: Harbor, bearer, monkeypatch: pytest.MonkeyPatch
):
    begun, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(body: bytes) -> Any:
        if len(body) > LARGE_BYTES:
            loop.call_soon_threadsafe(begun.set)
            assert released.wait(LIMIT)
        return parsed_json(body)

    monkeypatch.setattr("taskharbor.server.app.parsed_json", slow)
    large = {"task": "t", "payload": {"x": "x" * LARGE_BYTES}}
    async with client_of(harbor.asgi(), headers=await bearer("write")) as client:
        sending = asyncio.create_task(client.post(f"{API}/jobs", json=large))
        try:
            await asyncio.wait_for(begun.wait(), LIMIT)
            assert (await client.post(f"{API}/jobs", json={"task": "t"})).status_code == 201
            assert not sending.done()
        finally:
            released.set()
        assert (await sending).status_code == 201


async def test_large_bodies_that_do_not_come_to_an_end_hold_up_their_own_client_only(harbor: Harbor, serve):
    mine, _ = await create_token(harbor.driver, "mine", "write")
    theirs, _ = await create_token(harbor.driver, "theirs", "write")
    body = b'{"task": "t", "payload": {"x": "' + b"x" * LARGE_BYTES + b'"}}'
    connect = await serve(app=harbor.asgi())
    held = [await connect() for _ in range(CLIENT_LARGE_BODIES_MAX)]
    for peer in held:
        await peer.send(post(len(body), mine) + "{")
        await peer.send("")
    for token, sent in ((theirs, body), (mine, b'{"task": "t"}')):
        peer = await connect()
        await peer.send(post(len(sent), token).encode() + sent)
        assert b" 201 " in await peer.until(b"\r\n\r\n")
    waiting = await connect()
    await waiting.send(post(len(body), mine).encode() + body)
    held[0].writer.close()  # its place is given back
    assert b" 201 " in await waiting.until(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"[" + b"[]," * (CONTAINERS_MAX - 3) + b"1]", 201),
        (b"[" + b"[]," * CONTAINERS_MAX + b"1]", 413),
        (b"[" + b"{}," * CONTAINERS_MAX + b"1]", 413),
        (b"[" + b'{"[":"]"},' * CONTAINERS_MAX + b"1]", 413),
        (b"[" * CONTAINERS_MAX * 2, 413),
        (b"[" + b"1," * VALUES_MAX + b"1]", 413),
        (b'"' + b"[{," * (VALUES_MAX // 2) + b'"', 201),  # in a text, they are letters
        (b'"' + rb"\"[\\" * CONTAINERS_MAX + b'"', 201),
        (b'"' + rb"\\" * CONTAINERS_MAX + b'"', 201),
    ],
    ids=[
        "enough",
        "arrays",
        "objects",
        "objects with texts",
        "deep",
        "numbers",
        "text",
        "escaped",
        "backslashes",
    ],
)
async def test_a_body_of_more_objects_than_can_be_read_quickly_is_refused(
    harbor: Harbor, bearer, value: bytes, status: int
):
    body = b'{"task": "t", "payload": {"x": ' + value + b"}}"
    headers = {**await bearer("write"), "Content-Type": "application/json"}
    async with client_of(harbor.asgi(), headers=headers) as client:
        response = await client.post(f"{API}/jobs", content=body)
    assert response.status_code == status, response.text[:300]
    if status == 413:
        assert error_of(response)["code"] == "too_large"
