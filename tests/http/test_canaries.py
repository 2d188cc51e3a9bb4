"""Secrets are planted in every place of an HTTP job, every kind of failure is provoked, and nothing shows them."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import ssl
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpcore2
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from taskharbor import Harbor, Worker
from taskharbor.cli import cli
from taskharbor.clock import ManualClock
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Period, Rollup
from taskharbor.http.answers import BODY_BYTES_MAX
from taskharbor.http.secrets import shown_url
from taskharbor.records import State
from taskharbor.rules.rollups import HOUR, begin_of
from taskharbor.telemetry.events import JOB_EVENTS
from taskharbor.telemetry.logs import JsonFormatter, KeyValueFormatter
from tests.http.stage import FakeNetwork, Request, Server, reply, serving
from tests.server.conftest import client_of
from tests.worker.stage import attempts_of

CANARY = "canary"  # in every secret, so that half of one is found as well
SIGNING = "whsec_" + base64.b64encode(b"canary-of-the-signing-secret").decode()
BASIC = base64.b64encode(b"user:canary-basic").decode()
HEADERS = {
    "Authorization": f"Basic {BASIC}",
    "Cookie": "a=canary-cookie; b=canary-crumb",
    "X-Acme": """canary'quo"ted\\back""",
}
QUERY = (
    "api_key=canary-1;canary-2&p%61ss=canary%20three&JWT=canary+four&tok%2565n=canary-5"
    f"&next={quote('https://x/?a=1&password=canary-6', safe='')}&token=canary-7&token=canary-8&page=7"
)
PATH = f"/x;jsessionid=canary-9/y?{QUERY}"
TOLD = [
    *HEADERS.values(),
    "canary-basic",
    "canary-crumb",
    "canary-1;canary-2",
    "canary three",
    "canary four",
    "canary-5",
    "canary-6",
    "canary-8",
    "canary-9",
    SIGNING,
    SIGNING.removeprefix("whsec_"),
]
EVERYTHING = " ".join(TOLD)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def harbor(clock: ManualClock, server: Server, tmp_path: Path) -> AsyncIterator[Harbor]:
    async with Harbor(f"sqlite:///{tmp_path}/harbor.db", clock=clock, http_allow=[server.place]) as harbor:
        yield harbor


class Watched:
    """All that is shown of an HTTP job while it fails."""

    def __init__(self, harbor: Harbor, caplog: pytest.LogCaptureFixture) -> None:
        self.harbor = harbor
        self.seen: list[str] = []
        self._caplog = caplog
        self._workers: list[Worker] = []
        caplog.set_level(logging.DEBUG)
        for name in JOB_EVENTS:
            harbor.events.subscribe(name, lambda event: self.seen.append(repr(event)))

        @harbor.middleware
        async def look(ctx: Any, call: Any) -> Any:
            try:
                return await call()
            except Exception as error:
                self.seen += _chain(error)
                raise

    def worker(self) -> Worker:
        """Return a worker whose metrics are among what is shown."""
        self._workers.append(Worker(self.harbor, metrics=True))
        return self._workers[-1]

    async def rollups(self) -> list[Rollup]:
        """Return what the workers have left in the store; they have, if one has ended."""
        end = begin_of(self.harbor.driver.clock.now(), Period.HOUR) + HOUR
        return await Rollups.of(self.harbor.driver).rollups(0, end, Period.MINUTE)

    def metrics(self) -> list[str]:
        formats = ("", "application/openmetrics-text")
        return [each.collector().render(how)[1].decode() for each in self._workers for how in formats]

    async def all_of(self, job: Any) -> list[str]:
        found = await job.arefresh()
        self.seen += [str(found.error), repr(found), str(found.payload), str(found.record.result)]
        self.seen += [repr(attempt) for attempt in await attempts_of(job)]
        for formatter in (JsonFormatter(), KeyValueFormatter(), logging.Formatter()):
            self.seen += [formatter.format(record) for record in self._caplog.records]
        async with client_of(self.harbor.asgi(authorize=lambda request: "admin")) as client:
            for path in (f"jobs/{job.id}", f"jobs/{job.id}/history", "jobs", "dlq"):
                self.seen.append((await client.get(f"/api/v1/{path}")).text)
            self.seen.append((await client.get("/metrics")).text)
            self.seen.append((await client.get("/api/v1/stats/series")).text)
        self.seen += [repr(row) for row in await self.rollups()]
        self.seen += self.metrics()
        return self.seen


def _chain(error: BaseException | None) -> list[str]:
    """An error and whatever it brings along, shown or not."""
    if error is None:
        return []
    whole = "".join(traceback.format_exception(error))
    return [repr(error), str(error), whole, *_chain(error.__cause__), *_chain(error.__context__)]


@pytest.fixture
def watched(harbor: Harbor, caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(harbor, caplog)


async def enqueued(harbor: Harbor, url: str, **payload: Any) -> Any:
    given = {"headers": HEADERS, "body": "hello", "signing_secret": SIGNING, **payload}
    return await harbor.aenqueue("http", {"url": f"{url}{PATH}", **given}, max_attempts=1)


async def assert_hidden(watched: Watched, job: Any, state: State = State.DEAD) -> str:
    found = await job.arefresh()
    assert found.state is state
    assert CANARY in found.record.payload  # stored
    for text in await watched.all_of(job):
        assert CANARY not in text.lower(), text
        assert BASIC not in text, text
        assert SIGNING.removeprefix("whsec_") not in text, text
    return str(found.error)


def echoed(request: Request) -> str:
    return " ".join([request.path, *request.headers.values(), EVERYTHING])


BROKEN: dict[str, Callable[[Request], bytes]] = {
    "status line": lambda request: b"HTTP/9.9 " + echoed(request).encode() + b"\r\n\r\n",
    "header line": lambda request: b"HTTP/1.1 200 OK\r\nno header " + echoed(request).encode() + b"\r\n\r\n",
    "header name": lambda request: b"HTTP/1.1 200 OK\r\n\xe9" + echoed(request).encode() + b": x\r\n\r\n",
    "length": lambda request: b"HTTP/1.1 200 OK\r\nContent-Length: " + echoed(request).encode() + b"\r\n\r\n",
    "chunk": lambda request: (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + echoed(request).encode() + b"\r\n"
    ),
    "chunk's end": lambda request: (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na" + b"canary'quo"
    ),
    "half a body": lambda request: (
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + echoed(request).encode()
    ),
    "no answer": lambda request: b"",
    "status": lambda request: reply(500, echoed(request), X_Echo=EVERYTHING),
    "json": lambda request: reply(500, json.dumps(TOLD)),
    "percent-encoded": lambda request: reply(500, quote(EVERYTHING)),
    "repr": lambda request: reply(500, repr(TOLD) + repr([each.encode() for each in TOLD])),
    "redirect": lambda request: reply(302, "", Location=f"/z?token=canary-of-theirs&{request.path}"),
    "retry-after": lambda request: reply(503, echoed(request), Retry_After="5"),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_an_answer_that_fails_a_job_shows_no_secret(
    harbor: Harbor, server: Server, watched: Watched, kind: str
):
    server.handle = BROKEN[kind]
    job = await enqueued(harbor, server.url)
    await watched.worker().drain()
    assert server.request.headers["authorization"] == HEADERS["Authorization"]  # sent
    await assert_hidden(watched, job)


async def test_a_payload_shows_in_no_metric_and_no_log(
    harbor: Harbor, watched: Watched, caplog: pytest.LogCaptureFixture
):
    """Nor do tags, keys, the names of tasks that no one declared, and what a handler returns."""

    @harbor.task(name="send", max_attempts=2)
    async def send(token: str, fails: bool) -> str:
        if fails:
            raise ValueError("no luck")
        return token

    for fails in (True, False):
        await send.using(tags=["canary-tag"], idempotency_key=f"canary-{fails}").aenqueue(
            token="canary-token", fails=fails
        )
    await harbor.aenqueue("canary-task", {"password": "canary-password"})
    await watched.worker().drain()
    shown = watched.metrics()
    assert any('task="send"' in text and 'task="_other"' in text for text in shown)
    rows = await watched.rollups()
    assert {row.task for row in rows} == {"send", "_other"}
    for text in (*shown, repr(rows)):
        assert CANARY not in text
    records = [record for record in caplog.records if "canary-task" not in record.getMessage()]
    for formatter in (JsonFormatter(), KeyValueFormatter(), logging.Formatter()):
        for record in records:
            assert CANARY not in formatter.format(record)


async def test_a_store_that_is_away_shows_no_password_in_metrics_or_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    harbor = Harbor("postgresql://user:canary-password@127.0.0.1:1/db")
    async with client_of(harbor.asgi(authorize=lambda request: "read")) as client:
        response = await client.get("/metrics")
    assert "taskharbor_store_up 0.0" in response.text
    assert CANARY not in response.text
    assert any("cannot be read for its metrics" in record.getMessage() for record in caplog.records)
    for formatter in (JsonFormatter(), KeyValueFormatter(), logging.Formatter()):
        for record in caplog.records:
            assert CANARY not in formatter.format(record)


async def test_inspect_shows_no_secret(
    server: Server, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    url = f"sqlite:///{tmp_path}/harbor.db"
    server.handle = BROKEN["status line"]
    async with Harbor(url, clock=clock, http_allow=[server.place]) as harbor:
        watched = Watched(harbor, caplog)
        job = await enqueued(harbor, server.url)
        await Worker(harbor).drain()
        await assert_hidden(watched, job)
        for arguments in (["--traceback"], ["--json"]):
            inspect = ["inspect", job.id, *arguments, "--url", url]
            shown = await asyncio.to_thread(CliRunner().invoke, cli, inspect)
            assert shown.exit_code == 0, shown.output
            assert "does not speak HTTP" in shown.output
            assert CANARY not in shown.output.lower()


REDIRECTS = {
    "another scheme": "ftp://{secret}/?token=canary-of-theirs",
    "no scheme": "canary-user:canary-of-theirs@host",
    "user name": "http://canary-user:canary-of-theirs@127.0.0.1/",
    "user name alone": "//canary-user@127.0.0.1/",
    "password with a slash": "http://canary-user:canary/of@127.0.0.1/",
    "blank": "http://127.0.0.1/ {secret}",
    "backslash": "http:\\\\canary-user:canary-of-theirs@127.0.0.1",
    "no IPv6 address": "http://[{secret}]/",
    "unfinished": "http://[{secret}",
    "odd address": "http://{secret}.1/",
    "odd port": "http://127.0.0.1:{secret}/",
    "long host": "http://{secret}" + "x" * 300,
    "long": "http://127.0.0.1/" + "x" * 9_000 + "{secret}",
    "closed address": "http://10.0.0.1/{secret}?token=canary-of-theirs",
    "too many": "/{secret}?token=canary-of-theirs",
    "name": "http://{secret}.example/",
}


@pytest.mark.parametrize("kind", REDIRECTS)
async def test_a_redirect_that_fails_a_job_shows_no_secret(
    harbor: Harbor, server: Server, watched: Watched, kind: str
):
    async def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror(f"{host} is not known")

    network = FakeNetwork({}, server)
    network.resolve = resolve  # type: ignore[method-assign]
    network.use(harbor)
    for secret in ("canary-9", "CANARY-CRUMB", BASIC):
        location = REDIRECTS[kind].format(secret=secret)
        server.handle = lambda request, location=location: reply(302, "", Location=location)  # type: ignore[misc]
        job = await enqueued(harbor, server.url, follow_redirects=True)
        await watched.worker().drain()
        await assert_hidden(watched, job)


async def test_a_secret_of_a_redirect_is_hidden_where_it_led_to(
    harbor: Harbor, server: Server, watched: Watched
):
    def handle(request: Request) -> bytes:
        if "theirs" in request.path:
            return reply(500, f"no {request.path} canary-of-theirs")
        return reply(307, "", Location="/z?sig=canary-of-theirs")

    server.handle = handle
    job = await enqueued(harbor, server.url, follow_redirects=True)
    await watched.worker().drain()
    assert "500 Internal Server Error" in await assert_hidden(watched, job)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_body_that_is_cut_shows_no_half_of_a_secret(
    harbor: Harbor, server: Server, watched: Watched, status: int
):
    """A body of nothing but secrets is short once they are masked, and its end is seen."""
    secret = HEADERS["X-Acme"]
    server.handle = lambda request: reply(status, secret * (BODY_BYTES_MAX // len(secret) + 2))
    job = await enqueued(harbor, server.url)
    await watched.worker().drain()
    await assert_hidden(watched, job, State.SUCCEEDED if status == 200 else State.DEAD)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_request_of_many_secrets_shows_none_of_them(
    harbor: Harbor, server: Server, watched: Watched, status: int
):
    headers = {f"X-{n}": " ".join(f"canary{n}-{k}" for k in range(20)) for n in range(90)}
    server.handle = lambda request: reply(status, " ".join(request.headers.values()))
    job = await enqueued(harbor, server.url, headers=headers)
    await watched.worker().drain()
    await assert_hidden(watched, job, State.SUCCEEDED if status == 200 else State.DEAD)


async def test_a_time_out_shows_no_secret(
    harbor: Harbor, server: Server, clock: ManualClock, watched: Watched
):
    async def stall(_: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    server.handle = lambda request: stall
    job = await enqueued(harbor, server.url, timeout=5)
    draining = asyncio.create_task(watched.worker().drain())
    await server.arrived.wait()
    clock.advance(5)
    await draining
    assert "no full answer" in await assert_hidden(watched, job)


@pytest.mark.parametrize(
    "error",
    [
        httpcore2.ConnectError(EVERYTHING),
        httpcore2.LocalProtocolError(EVERYTHING),
        httpcore2.UnsupportedProtocol(EVERYTHING),
        ssl.SSLError(1, EVERYTHING),
        OSError(5, EVERYTHING),
        ValueError(EVERYTHING),
        ExceptionGroup("several", [KeyError(EVERYTHING)]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_library_raises_shows_no_secret(
    harbor: Harbor, server: Server, watched: Watched, error: Exception
):
    async def connect(address: str, port: int) -> httpcore2.AsyncNetworkStream:
        try:
            raise RuntimeError(EVERYTHING)
        except RuntimeError as cause:
            raise error from cause

    network = FakeNetwork({}, server)
    network.connect = connect  # type: ignore[method-assign]
    network.use(harbor)
    job = await enqueued(harbor, server.url)
    await watched.worker().drain()
    await assert_hidden(watched, job)


async def test_a_failed_handshake_shows_no_secret(harbor: Harbor, server: Server, watched: Watched):
    async def answer_in_plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(200, EVERYTHING))
        writer.close()

    async with await asyncio.start_server(answer_in_plain, "127.0.0.1", 0) as plain:
        server.port = plain.sockets[0].getsockname()[1]
        FakeNetwork({"hooks.example": ["93.184.216.34"]}, server).use(harbor)
        job = await enqueued(harbor, "https://hooks.example")
        await watched.worker().drain()
    assert "connection to https://hooks.example" in await assert_hidden(watched, job)


SECRET_NAMES = [
    "pass",
    "password",
    "jwt",
    "token",
    "access_token",
    "api_key",
    "client_secret",
    "sig",
    "auth",
    "sid",
]


def spelled(text: str, choices: list[int]) -> str:
    """Each letter as it is, in upper case, percent-encoded, or percent-encoded twice."""
    ways: list[Callable[[str], str]] = [
        str,
        str.upper,
        lambda letter: f"%{ord(letter):02x}",
        lambda letter: f"%25{ord(letter):02X}",
    ]
    return "".join(ways[choice](letter) for letter, choice in zip(text, choices, strict=False))


@given(
    st.sampled_from(SECRET_NAMES),
    st.lists(st.integers(0, 3), min_size=20, max_size=20),
    st.sampled_from(["?", "?a=b&", "?a=b;", "#", "#/x?", ";", "y;a=b;", "?a&", "?a=1?"]),
    st.text(st.characters(exclude_characters="&#?/", exclude_categories=["Cs"])),
    st.sampled_from(["", "&page=7", "#x"]),
)
def test_a_secret_parameter_is_masked_however_its_name_is_spelled(
    name: str, choices: list[int], before: str, value: str, after: str
):
    parameter = f"https://x/{before}{spelled(name, choices)}"
    # What follows may be taken for a part of the value: an ampersand ends no parameter of a path.
    shown = shown_url(f"{parameter}=canary{value}{after}")
    assert shown in (f"{parameter}=***{after}", f"{parameter}=***")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://x/?pass=hush&page=7", "https://x/?pass=***&page=7"),
        ("https://x/?JWT=hush", "https://x/?JWT=***"),
        ("https://x//y;token=hush@z", "https://x//***@z"),  # after two slashes it looks like credentials
        ("https://x/?p%61ss=hush", "https://x/?p%61ss=***"),
        ("https://x/?p%2561ss=hush", "https://x/?p%2561ss=***"),
        ("https://x/?%70%61%73%73=hush", "https://x/?%70%61%73%73=***"),
        ("https://x/?user+key=hush", "https://x/?user+key=***"),
        ("https://x/?userPin=hush&spinner=1", "https://x/?userPin=***&spinner=1"),
        ("https://x/?auth[token]=hush", "https://x/?auth[token]=***"),
        ("https://x/?a=1;sid=hush;b=2&page=7", "https://x/?a=1;sid=***&page=7"),
        ("https://x/?token=a;hush&page=7", "https://x/?token=***&page=7"),
        ("https://x/?token=hush&token=hush", "https://x/?token=***&token=***"),
        ("https://x/?a=1&amp;token=hush", "https://x/?a=1&amp;token=***"),
        ("https://x/?a=1?token=hush", "https://x/?a=1?token=***"),
        ("https://x/?to=https%3A%2F%2Fy%2F%3Fsig%3Dhush", "https://x/?to=***"),
        ("https://x/?to=https%3A%2F%2Fu%3Ahush%40y", "https://x/?to=***"),
        ("https://x/?state=token%3Dhush", "https://x/?state=***"),
        ("https://x/;jsessionid=hush/y?page=7", "https://x/;jsessionid=***/y?page=7"),
        ("https://x/#access_token=hush&page=7", "https://x/#access_token=***&page=7"),
        ("https://x/#/a?token=hush", "https://x/#/a?token=***"),
        ("https://hush:hush@x/", "https://***@x/"),
        ("https://hush@x/", "https://***@x/"),
        ("//hush:hush hush@x/", "//***@x/"),
        ("https://x/?page=7&empty=&pass=", "https://x/?page=7&empty=&pass="),
        ("https://hush:hu/sh@x/", "https://***@x/"),
        ("https://x:80/@me", "https://x:***@me"),  # for it may be a password of digits and a slash
        ("https://x/@me?mail=a@b.c", "https://x/@me?mail=a@b.c"),
    ],
)
def test_a_url_is_shown_without_what_its_names_call_secret(url: str, shown: str):
    assert shown_url(url) == shown
