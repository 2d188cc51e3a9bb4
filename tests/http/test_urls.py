"""A URL is taken apart once, and what is odd about it is refused."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.errors import PayloadError
from taskharbor.http.urls import URL_MAX, Target, parse


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", ("https", "example.com", 443, "/")),
        ("HTTPS://Example.COM./a?b=c#d", ("https", "example.com", 443, "/a?b=c")),
        ("http://example.com:8080/a%20b", ("http", "example.com", 8080, "/a%20b")),
        ("http://example.com:/x", ("http", "example.com", 80, "/x")),
        ("http://8.8.8.8/", ("http", "8.8.8.8", 80, "/")),
        ("http://[2606:4700:0:0::1111]:81/", ("http", "2606:4700::1111", 81, "/")),
        ("http://example.com?q=ü", ("http", "example.com", 80, "/?q=%C3%BC")),
        ("http://a_b.example-c.com/@x:y", ("http", "a_b.example-c.com", 80, "/@x:y")),
        ("http://xn--bcher-kva.example/", ("http", "xn--bcher-kva.example", 80, "/")),
    ],
)
def test_a_plain_url_is_taken_apart(url: str, target: tuple[str, str, int, str]):
    assert parse(url) == Target(*target)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/path",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_INFO",
        "javascript:alert(1)",
        "http:/example.com",
        "http://",
        "http:///path",
        "http://:80/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:99999999999/",
        "http://example.com:\uff18\uff10/",
        "http://example.com:80:80/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "http://example.com\\@127.0.0.1/",
        "http://example.com/\\..",
        "http://example.com/\u00a0",
        "http://-example.com/",
        "http://example..com/",
        "http://.example.com/",
        "http://example.com../",
        "http://exam%70le.com/",
        "http://127.0.0.1%2f@example.com/",
        "http://[::1/",
        "http://::1/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://[127.0.0.1]/",
        "http://[::ffff:127.1]/",
        "http://[::1]x/",
        "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 127 + "com/",
        "http://example.com/" + "a" * URL_MAX,
    ],
)
def test_what_is_no_plain_url_is_refused(url: str):
    with pytest.raises(PayloadError):
        parse(url)


@pytest.mark.parametrize("url", [None, 5, b"http://example.com", ["http://example.com"]])
def test_what_is_no_text_is_refused(url: object):
    with pytest.raises(PayloadError, match="url must be text"):
        parse(url)


@pytest.mark.parametrize(
    "authority",
    [
        "good.example@127.0.0.1",
        "user:pass@example.com",
        "@example.com",
        "a@b@example.com",
        "good.example:80@evil",
    ],
)
def test_a_user_name_before_the_host_is_refused_and_not_quoted(authority: str):
    with pytest.raises(PayloadError, match="Authorization header") as caught:
        parse(f"http://{authority}/")
    assert "pass" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "127.0.1",
        "2130706433",
        "017700000001",
        "0x7f000001",
        "0x7f.0.0.1",
        "0x7f.1",
        "0177.0.0.1",
        "127.0.0.01",
        "127.0.0.1.1",
        "0127.0.0.1",
        "0",
        "0x",
        "1.2.3",
        "256.1.1.1",
        "example.1",
        "example.0x1",
        "\uff11\uff12\uff17.0.0.1",
        "127。0。0。1",
        "①②⑦.0.0.1",
        "127.0.0.1\u3002",
        "ⓔxample.com",
        "localhost\uff0e",
        "%31%32%37.0.0.1",
        "127.0.0.%31",
        "::ffff:127.0.0.1",
    ],
)
def test_an_odd_spelling_of_a_host_is_refused(host: str):
    with pytest.raises(PayloadError):
        parse(f"http://{host}/")


def spellings(address: IPv4Address) -> list[str]:
    """Every way that some resolver reads as this address, but its own."""
    number = int(address)
    a, b, c, d = address.packed
    quads = [
        [f"{part:d}", f"0{part:o}", f"00{part:o}", f"0x{part:x}", f"0X{part:02X}", f"0x{part:08x}"]
        for part in (a, b, c, d)
    ]
    mixed = [".".join(quads[place][(kind + place) % 6] for place in range(4)) for kind in range(6)]
    same = [".".join(quad[kind] for quad in quads) for kind in range(1, 6)]
    tails = [f"{a}.{number & 0xFFFFFF}", f"{a}.{b}.{number & 0xFFFF}", f"0x{a:x}.0x{number & 0xFFFFFF:x}"]
    whole = [f"{number:d}", f"0x{number:x}", f"0{number:o}", f"0X{number:08X}"]
    wide = str(address).translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)})
    dots = [str(address).replace(".", dot) for dot in "\u3002\uff0e\uff61"]
    percent = "".join(f"%{ord(character):02x}" for character in str(address))
    every = [*mixed, *same, *tails, *whole, wide, *dots, percent]
    return [each for each in every if each != str(address)]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_has_one_spelling(number: int):
    address = IPv4Address(number)
    assert parse(f"http://{address}/").host == str(address)
    for spelling in spellings(address):
        for text in (spelling, f"{spelling}."):
            with pytest.raises(PayloadError):
                parse(f"http://{text}/")


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_target_or_an_error(text: str):
    for url in (text, f"http://{text}", f"http://example.com/{text}"):
        try:
            target = parse(url)
        except PayloadError:
            continue
        assert parse(target.url) == target
        assert target.url.isascii()
        assert not set(target.url) & set(" \r\n\t\0\\")


def test_a_redirect_is_read_against_where_it_came_from():
    here = parse("https://example.com/a/b?c=d")
    assert here.redirected("e") == parse("https://example.com/a/e")
    assert here.redirected("/e?f") == parse("https://example.com/e?f")
    assert here.redirected("//other.example/x") == parse("https://other.example/x")
    for location in ("http://127.1/", "ftp://example.com/", "http://a@b/", "/a b", "//[::1", "/a\\b"):
        with pytest.raises(PayloadError):
            here.redirected(location)


def test_a_message_names_the_target_without_its_query():
    assert str(parse("https://example.com:444/a?token=x")) == "https://example.com:444/a?…"
    with pytest.raises(PayloadError) as caught:
        parse("ftp://h/?token=x1y2")
    assert "x1y2" not in str(caught.value)
