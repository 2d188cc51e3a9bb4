"""The endpoint of a worker's metrics: one page, a few clients, no patience with slow ones."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.telemetry.metrics import endpoint
from taskharbor.telemetry.metrics.endpoint import CONNECTIONS_MAX, MetricsEndpoint, Render


def page(accept: str) -> tuple[str, bytes]:
    return "text/plain; charset=utf-8", f"accept {accept}\n".encode()


@contextmanager
def serving(render: Render = page, host: str = "127.0.0.1") -> Iterator[MetricsEndpoint]:
    served = MetricsEndpoint(render, host, 0)
    served.start()
    try:
        yield served
    finally:
        served.close()


def get(
    served: MetricsEndpoint, path: str = "/metrics", host: str = "127.0.0.1", **options
) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{host}:{served.port}{path}", **options)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_scrape_is_answered_in_the_format_it_asks_for():
    with serving() as served:
        assert get(served, headers={"Accept": "application/openmetrics-text"}) == (
            200,
            "accept application/openmetrics-text\n",
        )
        assert get(served, "/metrics?name=x")[0] == 200


def test_only_get_of_the_one_page_is_answered():
    with serving() as served:
        assert get(served, "/") == (404, "the metrics are at /metrics\n")
        assert get(served, "/metrics/x")[0] == 404
        assert get(served, method="POST", data=b"x") == (405, "ask for the metrics with GET\n")
        assert get(served, method="DELETE")[0] == 405


def test_it_listens_at_an_address_of_ipv6():
    with serving(host="::1") as served:
        assert get(served, host="[::1]")[0] == 200


async def test_it_starts_and_stops_beside_a_running_loop():
    with serving() as served:
        assert (await asyncio.to_thread(get, served))[0] == 200


def test_a_failure_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture):
    def broken(accept: str) -> tuple[str, bytes]:
        raise ZeroDivisionError("canary")

    with serving(broken) as served:
        assert get(served) == (500, "the metrics could not be read; the log says why\n")
        assert get(served)[0] == 500  # and the next one is answered as well
    assert "the metrics could not be read: ZeroDivisionError('canary')" in caplog.text


def test_a_port_in_use_is_one_clear_sentence():
    with serving() as served, pytest.raises(ConfigurationError) as refused:
        MetricsEndpoint(page, "127.0.0.1", served.port).start()
    assert (
        str(refused.value)
        == f"no metrics port at 127.0.0.1:{served.port}: Address already in use; name another one"
    )


@pytest.mark.parametrize("host", ["256.1.1.1", "a" * 100 + ".invalid", "ü" * 80])
def test_an_address_that_is_none_is_one_clear_sentence(host: str):
    with pytest.raises(ConfigurationError, match=r"no metrics port at .*:0: .*; name another one"):
        MetricsEndpoint(page, host, 0).start()


def test_the_port_is_free_again_after_the_end():
    with serving() as served:
        port = served.port
    with socket.create_server(("127.0.0.1", port)):
        pass
    served.close()  # a second time


def connected(served: MetricsEndpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=10)


def test_clients_beyond_the_limit_are_turned_away():
    with serving() as served, ExitStack() as silent:
        for _ in range(CONNECTIONS_MAX):
            silent.enter_context(connected(served))
        assert get_or_none(served) is None
        silent.close()
        while get_or_none(served) is None:  # until the endpoint has noticed that they left
            pass


def get_or_none(served: MetricsEndpoint) -> int | None:
    try:
        return get(served)[0]
    except OSError:
        return None


def test_a_silent_client_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "ANSWER_SECONDS", 0.05)
    with serving() as served, connected(served) as silent:
        silent.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert silent.recv(1) == b""


@pytest.mark.parametrize("request_", [b"x" * 20_000, b"\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n"])
def test_a_malformed_request_harms_no_other(request_: bytes):
    with serving() as served:
        with connected(served) as client:
            client.sendall(request_)
            try:
                answer = client.recv(1_000)
            except ConnectionResetError:
                answer = b""
            assert not answer or answer.startswith(b"HTTP/1.1 404 ")
        assert get(served)[0] == 200
