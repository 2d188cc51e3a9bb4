"""HTTP jobs from the command line: a worker without an application, an address opened to it, secrets not shown."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

SECRETS = ("hush-bearer", "hush-token")


class Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = str(self.headers).encode()
        self.send_response(500 if self.path.startswith("/fail") else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def place() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def enqueue(run, place: str, path: str) -> tuple[str, str]:
    payload = {
        "url": f"http://{place}{path}?token=hush-token",
        "headers": {"Authorization": "Bearer hush-bearer"},
        "body": {"order": 42},
    }
    answer = run("enqueue", "http", json.dumps(payload), "--json", "--max-attempts", "1")
    return answer.document["id"], answer.out


def test_a_worker_calls_what_was_opened_to_it_and_shows_no_secret(run, place):
    seen = []
    for path, state in (("/", "succeeded"), ("/fail", "dead")):
        job_id, out = enqueue(run, place, path)
        worked = run(
            "worker", "--drain", "--http-allow", "10.1.2.3", "--http-allow", place, "--log-level", "debug"
        )
        told = run("inspect", job_id, "--json")
        assert told.document["state"] == state
        assert told.document["payload"]["headers"] == {"Authorization": "***"}
        assert told.document["payload"]["url"] == f"http://{place}{path}?token=***"
        shown = [
            run("inspect", job_id, "--traceback"),
            run("list", "--json"),
            run("list"),
            run("dlq", "list"),
        ]
        seen += [out, worked.out, worked.err, told.out, *(answer.out for answer in shown)]
    for text in seen:
        for secret in SECRETS:
            assert secret not in text


def test_what_was_not_opened_is_refused(run, place):
    job_id, _ = enqueue(run, place, "/")
    run("worker", "--drain")
    assert "127.0.0.1 is loopback" in run("inspect", job_id, "--json").document["error"]


def test_the_environment_opens_addresses_and_the_option_adds_to_it(run, place, monkeypatch):
    monkeypatch.setenv("TASKHARBOR_HTTP_ALLOW", place)
    job_id, _ = enqueue(run, place, "/")
    run("worker", "--drain", "--http-allow", "localhost:1")
    assert run("inspect", job_id, "--json").document["state"] == "succeeded"
    assert os.environ["TASKHARBOR_HTTP_ALLOW"] == f"{place},localhost:1"


def test_an_address_that_is_none_is_an_error(run):
    assert "HOST:PORT" in run("worker", "--drain", "--http-allow", "127.1", code=1).error
    assert "url must begin" in run("enqueue", "http", "url=ftp://x", code=1).error


def test_an_url_is_checked_before_anything_is_stored(run):
    run("migrate")
    assert "odd spelling" in run("enqueue", "http", "url=http://127.1/", code=1).error
    assert run("list", "--json").document["items"] == []
