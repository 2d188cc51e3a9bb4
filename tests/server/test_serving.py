"""`taskharbor serve` as a process, and the stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from taskharbor import Harbor
from taskharbor.drivers.typed_records import TOKENS
from taskharbor.server.limits import BODY_BYTES_MAX, FAILURES_MAX
from taskharbor.server.tokens import create_token

API = "/api/v1"
LIMIT = 60.0


@contextlib.contextmanager
def serving(url: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-P", "-m", "taskharbor.cli", "serve", "--url", url, "--port", "0", *options]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"http://[0-9.:]+", line):
                yield process, found[0]
                break
        else:
            pytest.fail(f"it never served: {process.wait(LIMIT)}")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT)
        process.stderr.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/harbor.db"


def test_a_stop_ends_streams_and_the_process(url: str):
    with (
        serving(url) as (process, base),
        httpx.Client(base_url=base, timeout=LIMIT) as client,
        client.stream("GET", f"{API}/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        job = client.post(f"{API}/jobs", json={"task": "t"})
        assert job.status_code == 201
        told = list(_until(lines, "event: enqueued"))
        assert told[-1] == "event: enqueued"
        assert job.json()["id"] in next(lines)
        process.send_signal(signal.SIGTERM)
        for _ in lines:
            pass  # to its end
        assert process.wait(LIMIT) == 0


def test_what_other_processes_do_shows_in_the_counts(url: str):
    with (
        serving(url) as (_, base),
        httpx.Client(base_url=base, timeout=LIMIT) as client,
        client.stream("GET", f"{API}/events?names=counts") as stream,
    ):
        lines = stream.iter_lines()
        list(_until(lines, "event: counts"))
        with Harbor(url) as harbor:
            harbor.enqueue("t")
        list(_until(lines, "event: counts"))
        assert '"ready":1' in next(lines)


def test_a_stream_ends_with_the_token_that_opened_it(url: str):
    with Harbor(url) as harbor:
        token, record = asyncio.run(create_token(harbor.driver, "reader", "read"))
    headers = {"Authorization": f"Bearer {token}"}
    with (
        serving(url) as (_, base),
        httpx.Client(base_url=base, timeout=LIMIT, headers=headers) as client,
        client.stream("GET", f"{API}/events?names=counts") as stream,
        Harbor(url) as harbor,
    ):
        lines = stream.iter_lines()
        list(_until(lines, "event: counts"))
        assert asyncio.run(TOKENS.drop(harbor.driver, [record.id])) == 1
        while client.get(f"{API}/stats").status_code != 401:
            time.sleep(0.05)
        harbor.enqueue("t")
        assert not any('"ready":1' in line for line in lines)  # and it comes to its end


def test_the_head_of_a_stream_has_no_stream(url: str):
    with serving(url) as (_, base), httpx.Client(base_url=base, timeout=LIMIT) as client:
        head = client.head(f"{API}/events")
        assert (head.status_code, head.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        assert client.get(f"{API}/jobs").status_code == 200  # on the same connection


def test_a_body_that_is_too_large_is_answered_before_the_connection_ends(url: str):
    """Sent in one go, with its length or in chunks; the answer is whole, and no reset comes before it."""
    size = 2 * BODY_BYTES_MAX
    chunk = b"%x\r\n" % size + b" " * size + b"\r\n0\r\n\r\n"
    with serving(url) as (_, base), httpx.Client(base_url=base, timeout=LIMIT) as client:
        place = ("127.0.0.1", int(base.rpartition(":")[2]))
        for head, body in [
            (b"Content-Length: %d" % size, b" " * size),
            (b"Transfer-Encoding: chunked", chunk),
        ]:
            with socket.create_connection(place, timeout=LIMIT) as connection:
                connection.sendall(
                    b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    + head
                    + b"\r\n\r\n"
                    + body
                )
                answer = b"".join(iter(lambda: connection.recv(2**16), b""))
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b'"code":"too_large"' in answer
        for content in (b" " * size, iter([b" " * size])):
            response = client.post(
                f"{API}/jobs", content=content, headers={"Content-Type": "application/json"}
            )
            assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")
        curl = shutil.which("curl") or ""
        for expect in ("Expect: 100-continue", "Expect:") if curl else ():
            command = [
                curl,
                "-sS",
                "-H",
                expect,
                "-H",
                "Content-Type: application/json",
                "--data-binary",
                "@-",
            ]
            told = subprocess.run(
                [*command, f"{base}{API}/jobs"],
                input=b" " * size,
                capture_output=True,
                timeout=LIMIT,
                check=True,
            )
            assert b'"code":"too_large"' in told.stdout
        assert client.get(f"{API}/stats").json()["counts"]["ready"] == 0


def _until(lines: Iterator[str], wanted: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line == wanted:
            return


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """To its end."""
    command = [sys.executable, "-P", "-m", "taskharbor.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_a_public_bind_without_a_token_is_refused(url: str):
    done = run_serve("--url", url, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 1
    assert "Error: the store has no token" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_without_tokens_serves_no_proxy(url: str):
    refused = run_serve("--url", url, "--port", "0", "--trusted-proxy", "127.0.0.1")
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert "Error: the store has no token" in refused.stderr
    with serving(url) as (_, base), httpx.Client(base_url=base, timeout=LIMIT) as client:
        assert client.get(f"{API}/jobs").status_code == 200
        passed_on = client.get(f"{API}/jobs", headers={"X-Forwarded-For": "192.0.2.1"})
        assert (passed_on.status_code, passed_on.json()["error"]["code"]) == (403, "proxy_refused")
        # nginx does it so by default.
        with socket.create_connection(
            ("127.0.0.1", int(base.rpartition(":")[2])), timeout=LIMIT
        ) as connection:
            host = base.removeprefix("http://").encode()
            connection.sendall(
                b"GET /api/v1/jobs HTTP/1.0\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
            )
            assert b" 403 " in connection.recv(2**16)


def test_a_silent_connection_makes_room_on_a_real_server(url: str):
    with serving(url, "--max-connections", "1") as (_, base):
        place = ("127.0.0.1", int(base.rpartition(":")[2]))
        with socket.create_connection(place, timeout=LIMIT) as silent:
            silent.sendall(b"GET /heal")
            assert httpx.get(f"{base}/healthz", timeout=LIMIT).status_code == 200
            with contextlib.suppress(ConnectionResetError):
                assert silent.recv(1) == b""


def test_a_forged_address_does_not_get_round_the_limit_of_a_real_server(url: str):
    with Harbor(url) as harbor:
        asyncio.run(create_token(harbor.driver, "reader", "read"))

    def answers(client: httpx.Client) -> list[int]:
        wrong = {"Authorization": "Bearer thb_no_no"}
        return [
            client.get(f"{API}/jobs", headers={**wrong, "X-Forwarded-For": f"192.0.2.{n}"}).status_code
            for n in range(FAILURES_MAX + 1)
        ]

    with serving(url) as (_, base), httpx.Client(base_url=base, timeout=LIMIT) as client:
        assert answers(client) == [401] * FAILURES_MAX + [429]
    with (
        serving(url, "--trusted-proxy", "127.0.0.0/8") as (_, base),
        httpx.Client(base_url=base, timeout=LIMIT) as client,
    ):
        assert answers(client) == [401] * (FAILURES_MAX + 1)  # each is another client's


def test_tokens_are_made_listed_and_revoked(url: str):
    from click.testing import CliRunner

    from taskharbor.cli import cli

    run = CliRunner()
    made = run.invoke(cli, ["token", "create", "ci", "--role", "write", "--url", url])
    token = made.output.strip()
    assert token.startswith("thb_")
    listed = run.invoke(cli, ["token", "list", "--url", url]).output
    assert "ci" in listed
    assert token not in listed
    with serving(url) as (_, base), httpx.Client(base_url=base, timeout=LIMIT) as client:
        assert client.get(f"{API}/jobs").status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert client.post(f"{API}/jobs", json={"task": "t"}, headers=headers).status_code == 201
    assert run.invoke(cli, ["token", "revoke", token.split("_")[1], "--url", url]).output.endswith(
        "revoked\n"
    )
    gone = run.invoke(cli, ["token", "revoke", "nobody", "--url", url])
    assert gone.exit_code == 1


def test_serving_without_the_extra_says_which_one_is_needed(url: str):
    blocked = "import sys; sys.modules['starlette'] = None; from taskharbor.cli import cli; cli(sys.argv[1:])"
    command = [sys.executable, "-P", "-c", blocked, "serve", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1
    assert "pip install 'taskharbor[server]' (starlette" in done.stderr
