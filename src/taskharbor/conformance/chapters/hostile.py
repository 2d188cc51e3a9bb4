"""Text that a careless store breaks on. NUL and lone surrogates are not here: no client sends them."""

from __future__ import annotations

HOSTILE = (
    "'",
    '"',
    "''; drop table jobs; --",
    '"); DELETE FROM jobs WHERE ("1"="1',
    "%",
    "_",
    "a%b_c",
    "$1 ? :name %s {0} {}",
    "back\\slash \\' \\x00 \\u0000",
    "new\nline\ttab\r\n",
    " leading and trailing ",
    "😀 ümläut ß 漢字 \u202eright to left\u202c",
    "e\u0301",  # not the same text as the next one, though it looks the same
    "\u00e9",
    "null",
    "0",
    "[1,2]",
    '{"a":1}',
    "a:b|c,d/e*f?g[h]i",
    "\x01\x1f\x7f",
    "long" * 2500,
)


def label(text: str) -> str:
    """A short printable name of it, for the test's own."""
    return ascii(text[:16])
