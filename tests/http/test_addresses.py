"""Which addresses are closed to HTTP jobs, and what opens them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor import Harbor
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.http.addresses import allow_list, closed_because, refusal
from taskharbor.http.urls import parse
from tests.http.test_urls import spellings

CLOSED_V4 = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "168.63.129.16/32",
]
CLOSED_V6 = [
    "::/96",
    "::ffff:0:0/96",
    "::ffff:0:0:0/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "4000::/3",
    "5f00::/16",
    "fc00::/7",
    "fd00:ec2::254/128",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]
OPEN = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "223.255.255.255",
    "168.63.129.15",
    "2606:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450:4001::1",
]


@pytest.mark.parametrize("network", [*CLOSED_V4, *CLOSED_V6])
def test_the_whole_network_is_closed(network: str):
    found = ip_network(network)
    middle = found.network_address + found.num_addresses // 2
    for address in (found.network_address, middle, found.broadcast_address):
        assert closed_because(address), address


@pytest.mark.parametrize("address", OPEN)
def test_a_public_address_is_open(address: str):
    assert closed_because(ip_address(address)) is None


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "loopback"),
        ("169.254.169.254", "metadata"),
        ("100.100.100.200", "CGNAT"),
        ("::1", "loopback"),
        ("::", "unspecified"),
        ("::ffff:8.8.8.8", "mapped"),
        ("::8.8.8.8", "compatible"),
        ("64:ff9b::8.8.8.8", "NAT64"),
        ("2002:7f00:1::", "6to4"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"),
        ("2606:4700::5efe:7f00:1", "ISATAP"),
        ("2606:4700::200:5efe:a00:1", "ISATAP"),
        ("fd12::1", "unique-local"),
        ("fe80::1", "link-local"),
    ],
)
def test_the_reason_is_given(address: str, why: str):
    assert why in (closed_because(ip_address(address)) or "")


@st.composite
def private_ipv4(draw: st.DrawFn) -> IPv4Address:
    network = ip_network(draw(st.sampled_from(CLOSED_V4)))
    return IPv4Address(int(network.network_address) + draw(st.integers(0, network.num_addresses - 1)))


@settings(max_examples=50, deadline=None)
@given(private_ipv4(), st.data())
def test_a_closed_ipv4_address_is_refused_in_every_form(address: IPv4Address, data: st.DataObject):
    assert refusal(str(address), address, 80, ())
    for spelling in spellings(address):
        with pytest.raises(PayloadError):
            parse(f"http://{spelling}/")
    number = int(address)
    suffix = data.draw(st.integers(0, 2**80 - 1))
    for inside in (
        number,  # compatible
        0xFFFF << 32 | number,  # mapped
        0xFFFF << 48 | number,  # translated
        int(IPv6Address("64:ff9b::")) | number,  # NAT64
        int(IPv6Address("64:ff9b:1::")) | number,
        0x2002 << 112 | number << 80 | suffix,  # 6to4
        0x20010000 << 96 | suffix >> 16 << 32 | number ^ 0xFFFFFFFF,  # Teredo
        int(IPv6Address("2a00:1450:4001::5efe:0:0")) | number,  # ISATAP
    ):
        form = IPv6Address(inside)
        host = parse(f"http://[{form.exploded}]/").host
        assert refusal(host, IPv6Address(host), 80, ()), form


@settings(deadline=None)
@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_no_ipv6_address_outside_the_public_range_is_open(address: IPv6Address):
    if address not in IPv6Network("2000::/3"):
        assert closed_because(address)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(0, 2**128 - 1).map(IPv6Address))
def test_python_knows_of_no_closed_address_that_is_open_here(address: IPv4Address | IPv6Address):
    if closed_because(address) is None:
        assert address.is_global
        assert not address.is_multicast


# -- the allow-list ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "opened", "closed"),
    [
        ("127.0.0.1", [("x", "127.0.0.1", 1), ("y", "127.0.0.1", 2)], [("x", "127.0.0.2", 1)]),
        ("127.0.0.1:8080", [("x", "127.0.0.1", 8080)], [("x", "127.0.0.1", 80)]),
        ("10.1.0.0/16", [("x", "10.1.255.9", 1)], [("x", "10.2.0.0", 1), ("x", "::ffff:10.1.0.1", 1)]),
        ("10.1.0.0/16:443", [("x", "10.1.0.1", 443)], [("x", "10.1.0.1", 80)]),
        (
            "LocalHost:80",
            [("localhost", "127.0.0.1", 80), ("localhost", "::1", 80)],
            [("evil", "127.0.0.1", 80)],
        ),
        ("::1", [("x", "::1", 5)], [("x", "::2", 5)]),
        ("[::1]:80", [("x", "::1", 80)], [("x", "::1", 81)]),
        ("[fd00::/8]", [("x", "fd12::1", 5)], [("x", "fc00::1", 5)]),
        ("::ffff:127.0.0.1", [("x", "::ffff:127.0.0.1", 5)], [("x", "127.0.0.1", 5)]),
    ],
)
def test_an_entry_opens_what_it_names_and_nothing_else(entry, opened, closed):
    allow = allow_list([entry])
    for host, address, port in opened:
        assert refusal(host, ip_address(address), port, allow) is None
    for host, address, port in closed:
        assert refusal(host, ip_address(address), port, allow)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "*",
        "http://localhost",
        "localhost:0",
        "localhost:70000",
        "127.1",
        "10.0.0.1/8",
        "a b",
        "a@b",
        5,
        None,
    ],
)
def test_an_entry_that_is_no_host_and_port_is_refused(entry: str):
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        allow_list([entry])


def test_one_text_is_no_list():
    with pytest.raises(ConfigurationError, match="http_allow must be a list"):
        Harbor("memory://", http_allow="localhost")


def test_a_harbor_takes_what_it_is_given_and_what_the_environment_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TASKHARBOR_HTTP_ALLOW", "10.1.2.3, localhost:8080,")
    assert len(Harbor("memory://").http_allow) == 2
    assert len(Harbor("memory://", http_allow=["::1"]).http_allow) == 3
    monkeypatch.setenv("TASKHARBOR_HTTP_ALLOW", "127.1")
    with pytest.raises(ConfigurationError, match=r"127\.1"):
        Harbor("memory://")
