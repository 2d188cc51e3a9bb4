"""A server, or a name server, that does its worst costs its own job and no other."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import httpcore2
import pytest

from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock
from taskharbor.http.client import HEAD_BYTES_MAX, READ_BYTES
from taskharbor.http.resolver import Resolver
from taskharbor.records import State
from tests.http.stage import FakeNetwork, Server, reply

LIMIT = 60.0
JOBS = 40  # more than the loop's own threads, on any machine


# -- names -----------------------------------------------------------------------------------------


class NameServer:
    """Answers for quick.example; for every other name it waits until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()
        self.asked: list[str] = []
        self.busy = 0
        self.busiest = 0
        self._lock = threading.Lock()

    def getaddrinfo(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        self.look(host, port)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    def look(self, host: str, port: int) -> list[str]:
        with self._lock:
            self.asked.append(host)
            self.busy += 1
            self.busiest = max(self.busy, self.busiest)
        self.begun.set()
        try:
            if host != "quick.example":
                assert self.released.wait(LIMIT)
                raise socket.gaierror(f"{host} is not known")
        finally:
            with self._lock:
                self.busy -= 1
        return ["127.0.0.1"]


async def test_slow_names_do_not_hold_up_a_job_for_another_name(
    clock: ManualClock, server: Server, monkeypatch: pytest.MonkeyPatch
):
    names = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    async with Harbor("memory://", clock=clock, http_allow=["quick.example"]) as harbor:
        slow = [
            await harbor.aenqueue("http", {"url": f"http://n{n}.slow.example/"}, max_attempts=1)
            for n in range(JOBS)
        ]
        quick = await harbor.aenqueue("http", {"url": f"http://quick.example:{server.port}/"})
        draining = asyncio.create_task(Worker(harbor, concurrency=JOBS + 1).drain())
        try:
            await asyncio.wait_for(server.arrived.wait(), LIMIT)
            assert not names.released.is_set()
        finally:
            names.released.set()
            await draining
        assert (await quick.arefresh()).state is State.SUCCEEDED
        assert {(await job.arefresh()).state for job in slow} == {State.DEAD}
    assert names.busiest < JOBS


async def test_a_name_is_looked_up_once_for_all_who_ask():
    names = NameServer()
    resolver = Resolver(names.look)
    asking = [asyncio.create_task(resolver.resolve("slow.example", 80)) for _ in range(JOBS)]
    assert await asyncio.to_thread(names.begun.wait, LIMIT)
    names.released.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert names.asked == ["slow.example"]
    assert all(isinstance(answer, socket.gaierror) for answer in answers)
    assert await resolver.resolve("quick.example", 80) == ["127.0.0.1"]


async def test_the_names_of_a_domain_take_their_share_of_the_threads_and_all_come_to_an_end():
    names = NameServer()
    resolver = Resolver(names.look, threads=3, domain_threads=2)
    asking = [asyncio.create_task(resolver.resolve(f"n{n}.slow.example", 80)) for n in range(JOBS)]
    assert await resolver.resolve("quick.example", 80) == ["127.0.0.1"]
    names.released.set()
    await asyncio.gather(*asking, return_exceptions=True)
    assert len(names.asked) == JOBS + 1
    assert names.busiest <= 3


async def test_a_caller_who_leaves_leaves_nothing_behind():
    names = NameServer()
    resolver = Resolver(names.look, threads=1)
    begun = asyncio.create_task(resolver.resolve("begun.example", 80))
    assert await asyncio.to_thread(names.begun.wait, LIMIT)
    waiting = asyncio.create_task(resolver.resolve("waiting.example", 80))
    await asyncio.sleep(0)
    for task in (waiting, begun):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    names.released.set()
    assert await resolver.resolve("quick.example", 80) == ["127.0.0.1"]
    assert names.asked == ["begun.example", "quick.example"]


# -- answers ---------------------------------------------------------------------------------------

PROVISIONAL = b"HTTP/1.1 100 Continue\r\n\r\n"


async def error_of(harbor: Harbor, url: str, **payload: Any) -> str:
    job = await harbor.aenqueue("http", {"url": url, **payload}, max_attempts=1)
    await asyncio.wait_for(Worker(harbor).drain(), LIMIT)
    return str((await job.arefresh()).error)


@pytest.mark.parametrize(
    ("head", "more", "told"),
    [
        (b"", PROVISIONAL * 100, "its head takes more than"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100, "its head takes more than"),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 100, "its head takes more than|too long"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1;" + b"x" * 1_000 + b"\r\na\r\n",
            "bytes on the wire",
        ),
    ],
    ids=["100 Continue", "103 Early Hints", "headers", "extensions of chunks"],
)
async def test_an_answer_without_an_end_is_refused_and_not_timed_out(
    harbor: Harbor, server: Server, head: bytes, more: bytes, told: str
):
    """The clock stands still, so that no time-out ends it."""

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(more)
            await writer.drain()

    server.handle = lambda request: endless
    error = await error_of(harbor, server.url)
    assert any(each in error for each in told.split("|")), error


class WatchedStream(httpcore2.AsyncNetworkStream):
    """Counts the turns that the loop has between two reads, and how much is asked for."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._turns = 0
        self.turns: list[int] = []
        self.asked: list[int] = []

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.asked.append(max_bytes)
        self.turns.append(self._turns)
        self._turns = 0
        asyncio.get_running_loop().call_soon(self._turn)
        return await self._stream.read(max_bytes, timeout)

    def _turn(self) -> None:
        self._turns += 1

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


@pytest.mark.parametrize(
    "answer",
    [
        PROVISIONAL * (HEAD_BYTES_MAX // 2 // len(PROVISIONAL)) + reply(200),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n",
    ],
    ids=["100 Continue", "chunks of one byte"],
)
async def test_others_have_their_turn_while_much_is_made_of_few_bytes(
    harbor: Harbor, server: Server, answer: bytes
):
    network = FakeNetwork({}, server)
    streams: list[WatchedStream] = []

    async def connect(address: str, port: int) -> httpcore2.AsyncNetworkStream:
        stream = WatchedStream(await httpcore2.AnyIOBackend().connect_tcp(address, server.port))
        streams.append(stream)
        return stream

    network.connect = connect  # type: ignore[method-assign]
    network.use(harbor)
    server.handle = lambda request: answer
    job = await harbor.aenqueue("http", {"url": server.url})
    await Worker(harbor).drain()
    assert (await job.arefresh()).state is State.SUCCEEDED
    [stream] = streams
    assert max(stream.asked) <= READ_BYTES
    assert min(stream.turns[1:]) >= 1


async def test_an_answer_that_drips_has_no_more_time_than_any_other(
    harbor: Harbor, server: Server, clock: ManualClock
):
    dripped, next_drop = asyncio.Event(), asyncio.Event()

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            dripped.set()
            await next_drop.wait()
            next_drop.clear()

    server.handle = lambda request: drip
    job = await harbor.aenqueue("http", {"url": server.url, "timeout": 3}, max_attempts=1)
    draining = asyncio.create_task(Worker(harbor).drain())
    for _ in range(3):
        await dripped.wait()
        dripped.clear()
        clock.advance(1)
        next_drop.set()
    await asyncio.wait_for(draining, LIMIT)
    assert "within 3 s" in str((await job.arefresh()).error)
