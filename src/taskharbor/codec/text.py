"""Text that every store takes: what a name may look like, and how user code's words are bounded."""

from __future__ import annotations

import re
import reprlib

from taskharbor.errors import ConfigurationError

# Lengths are in bytes of UTF-8, because bytes bound an index: one entry of a PostgreSQL B-tree holds a
# queue name and a key, and takes at most 2,704 bytes.
NAME_LIMIT = 255  # queues, tasks, tags, correlation ids
KEY_LIMIT = 1024  # idempotency keys

SURROGATES = re.compile("[\ud800-\udfff]")


def clean_text(text: str, limit: int) -> str:
    """Text of user code (an error, a traceback) that every store takes: at most `limit` characters.

    NULs and lone surrogates are replaced by U+FFFD. Of a longer text the beginning and the end stay, more of
    the end, where a traceback says what happened; a mark between them says how much was left out.
    """
    if len(text) > limit:
        text = _shortened(text, limit)
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = SURROGATES.sub("\ufffd", text)
    return text


def _shortened(text: str, limit: int) -> str:
    # The mark's own length depends on the number in it: reserve for the longest it can be.
    kept = limit - len(f"\n… {len(text):,} characters left out …\n")
    if kept < 2:
        return text[: max(limit - 1, 0)] + "…"[:limit]
    head = kept // 3
    tail = kept - head
    return f"{text[:head]}\n… {len(text) - kept:,} characters left out …\n{text[-tail:]}"


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def shorten(value: object) -> str:
    """Return a short, safe repr for an error's text, whatever the value's own `__repr__` does."""
    try:
        return clean_text(_repr.repr(value), 120)
    except Exception:  # noqa: BLE001 - the error being worded matters more than this repr
        return f"<{type(value).__qualname__}>"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `2 jobs`, `1,000 processes`: a number, and the noun that agrees with it."""
    return f"{number:,} {agreeing(number, noun, plural or f'{noun}s')}"


def agreeing(number: int, one: str, many: str) -> str:
    """Return the form of a word that agrees with the number: `is` or `are`."""
    return one if number == 1 else many


def checked_name(kind: str, value: object, limit: int = NAME_LIMIT) -> str:
    """A queue, task, key, tag or id as given, or a `ConfigurationError` that says what is wrong with it.

    Text, not empty, at most `limit` bytes of UTF-8, without control characters, lone surrogates, or
    whitespace at its ends (two names that look alike would be two queues, two keys two jobs).
    """
    if (
        type(value) is str
        and 0 < len(value) <= limit
        and value.isascii()
        and value.isprintable()
        and value[0] != " "
        and value[-1] != " "
    ):
        return value  # the cheapest check, for nearly every name
    a_kind = f"an {kind}" if kind[0] in "aeio" else f"a {kind}"
    if not isinstance(value, str):
        raise ConfigurationError(f"{a_kind} is text, not {shorten(value)} ({type(value).__qualname__})")
    problem = _problem_of_name(value, limit)
    if problem:
        raise ConfigurationError(f"{shorten(value)} cannot be {a_kind}: {problem}")
    return str.__str__(value)


def _problem_of_name(value: str, limit: int) -> str | None:
    if not value:
        return "it is empty; give it at least one character"
    if SURROGATES.search(value):
        return "it holds a lone surrogate, which is no valid text; decode or replace it first"
    size = len(value.encode())
    if size > limit:
        return (
            f"it takes {size:,} bytes of UTF-8, and the limit is {limit:,}; shorten it, or use a hash of it"
        )
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in value):
        return "it holds a control character (a NUL, a newline, a tab, …); remove it"
    if value != value.strip():
        return "it begins or ends with whitespace; strip it"
    return None
