"""Where a request comes from: forwarding headers count where a proxy that the operator names sends them."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from taskharbor import Harbor
from taskharbor.errors import ConfigurationError
from taskharbor.server.clients import NO_ADDRESS, address_of, key_of, parsed, trusted_proxies
from taskharbor.server.limits import CLIENTS_MAX, FAILURES_MAX, LOG_LINES_MAX, Failures
from tests.server.conftest import client_of
from tests.server.test_resources import API

WRONG = {"Authorization": "Bearer thb_nope_nope"}


def request_from(client: str | None, *forwarded: str) -> Request:
    headers = [(b"x-forwarded-for", each.encode("latin-1")) for each in forwarded]
    return Request({"type": "http", "headers": headers, "client": None if client is None else (client, 1)})


def key_from(client: str | None, *forwarded: str, proxies: tuple[str, ...] = ()) -> str:
    return key_of(address_of(request_from(client, *forwarded), trusted_proxies(proxies)))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKHARBOR_TRUSTED_PROXY", raising=False)


def test_a_header_of_a_stranger_counts_for_nothing():
    assert key_from("127.0.0.1", "192.0.2.1") == "127.0.0.1"
    assert key_from("192.0.2.9", "192.0.2.1", proxies=("127.0.0.1",)) == "192.0.2.9"


@pytest.mark.parametrize(
    ("forwarded", "key"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["6.6.6.6, 192.0.2.1"], "192.0.2.1"),  # what stands before it, the client wrote
        (["6.6.6.6", "192.0.2.1"], "192.0.2.1"),
        (["192.0.2.1, 10.0.0.2"], "192.0.2.1"),  # through two proxies that are trusted
        (["192.0.2.1:5000"], "192.0.2.1"),
        (["[2001:db8::7]:5000"], "2001:db8::/64"),
        (["::ffff:192.0.2.1"], "192.0.2.1"),
        (["::FFFF:c000:201"], "192.0.2.1"),
        (["unknown"], NO_ADDRESS),
        (["192.0.2.1, x"], NO_ADDRESS),
        (["10.0.0.3"], "10.0.0.3"),
        ([], "10.0.0.1"),
        ([""], "10.0.0.1"),
        ([" , ,"], "10.0.0.1"),
    ],
)
def test_the_last_address_that_is_not_a_trusted_proxys_is_the_clients(forwarded: list[str], key: str):
    assert key_from("10.0.0.1", *forwarded, proxies=("10.0.0.0/24",)) == key


def test_the_environment_names_proxies_as_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TASKHARBOR_TRUSTED_PROXY", "10.0.0.1, fd00::/8")
    assert key_from("10.0.0.1", "192.0.2.1") == "192.0.2.1"
    assert key_from("fd00::1", "192.0.2.1") == "192.0.2.1"
    assert key_from("127.0.0.1", "192.0.2.1", proxies=("127.0.0.1",)) == "192.0.2.1"


@pytest.mark.parametrize(
    "entries",
    ["10.0.0.1", [""], ["proxy.example"], ["10.0.0.1/33"], ["10.0.0.1/8"], [7], 7, ["0.0.0.0/0"], ["::/0"]],
)
def test_a_proxy_that_is_no_address_is_refused(harbor: Harbor, entries: Any):
    with pytest.raises(ConfigurationError, match="prox"):
        harbor.asgi(trusted_proxies=entries)


@given(st.text(max_size=300))
def test_whatever_is_not_an_address_has_one_key(text: str):
    address = parsed(text)
    assert address is not None or key_of(address) == NO_ADDRESS
    assert len(key_of(address)) <= 60


def test_a_network_of_ipv6_and_its_zones_have_one_key():
    assert {key_from(f"2001:db8::{n:x}") for n in range(9)} == {"2001:db8::/64"}
    assert {key_from(f"fe80::1%{zone}") for zone in ("eth0", "x" * 50)} == {"fe80::/64"}
    assert key_from(None) == key_from("testclient") == key_from("x" * 10_000) == NO_ADDRESS


async def test_a_forged_address_does_not_get_round_the_limit_on_wrong_tokens(harbor: Harbor):
    async with client_of(harbor.asgi()) as client:
        answers = [
            (
                await client.get(f"{API}/jobs", headers={**WRONG, "X-Forwarded-For": f"192.0.2.{n}"})
            ).status_code
            for n in range(FAILURES_MAX + 2)
        ]
    assert answers == [401] * FAILURES_MAX + [429] * 2


async def test_behind_a_trusted_proxy_each_client_has_a_limit_of_its_own(harbor: Harbor):
    async with client_of(harbor.asgi(trusted_proxies=["127.0.0.1"])) as client:
        answers = []
        for n in range(FAILURES_MAX + 1):
            headers = {**WRONG, "X-Forwarded-For": f"6.6.6.{n}, 192.0.2.1"}
            answers.append((await client.get(f"{API}/jobs", headers=headers)).status_code)
        assert answers[-1] == 429
        other = await client.get(f"{API}/jobs", headers={**WRONG, "X-Forwarded-For": "192.0.2.2"})
        assert other.status_code == 401


async def test_the_memory_of_wrong_tokens_stays_small_whatever_is_forged(harbor: Harbor):
    """Each of the headers is as long as a server takes it."""
    async with client_of(harbor.asgi(trusted_proxies=["127.0.0.1"])) as client:
        await client.get(f"{API}/jobs", headers=WRONG)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for n in range(200):
                forged = {**WRONG, "X-Forwarded-For": f"{n}" + "x" * 60_000}
                await client.get(f"{API}/jobs", headers=forged)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 4 * 2**20  # of the 12 MB that were sent


def test_the_table_keeps_the_latest_and_no_more():
    failures = Failures()
    for n in range(CLIENTS_MAX + 50):
        failures.count(f"client {n}")
    assert len(failures._counted) == CLIENTS_MAX
    assert f"client {CLIENTS_MAX + 49}" in failures._counted


async def test_wrong_tokens_are_logged_by_address_without_the_token(harbor: Harbor, caplog):
    caplog.set_level(logging.WARNING)
    async with client_of(harbor.asgi()) as client:
        for _ in range(FAILURES_MAX + 5):
            await client.get(f"{API}/jobs", headers=WRONG)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "wrong token from 127.0.0.1",
        f"{FAILURES_MAX} wrong tokens from 127.0.0.1 within 60 s; answering more of them with 429",
    ]


def test_the_log_of_wrong_tokens_is_bounded_and_says_what_it_left_out(
    caplog, monkeypatch: pytest.MonkeyPatch
):
    now = 1_000.0
    monkeypatch.setattr("taskharbor.server.limits.time.monotonic", lambda: now)
    caplog.set_level(logging.WARNING)
    failures = Failures()
    for n in range(500):
        failures.count(f"client {n}")
    assert len(caplog.records) == LOG_LINES_MAX
    now += 60
    failures.count("client 0")
    assert [record.getMessage() for record in caplog.records[LOG_LINES_MAX:]] == [
        f"{500 - LOG_LINES_MAX} more warnings like the following one were not logged",
        "wrong token from client 0",
    ]
