"""A job's meta: a small map of names to text that travels with it, and that operators see.

A store keeps it as one JSON text, NULL for none. The SQL function `enqueue` has a copy of these limits, `checked_meta`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

ENTRIES_MAX = 32
KEY_MAX = 64  # characters
VALUE_MAX = 512  # characters
BYTES_MAX = 4096  # of the whole as compact JSON

_KEY = re.compile(rf"[a-zA-Z0-9_.-]{{1,{KEY_MAX}}}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


def checked_meta(value: object) -> str | None:
    """Return the text that a store keeps of this map, None for an empty one, or raise one clear error."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"meta must be a map of names to text, not {shorten(value)}")
    if len(value) > ENTRIES_MAX:
        raise ConfigurationError(f"a job's meta takes at most {ENTRIES_MAX} entries, not {len(value)}")
    for name, text in value.items():
        problem = _problem_of_name(name) or _problem_of_value(name, text)
        if problem is not None:
            raise ConfigurationError(problem)
    encoded = _encode(dict(value))
    if len(encoded) > BYTES_MAX:
        raise ConfigurationError(
            f"a job's meta takes at most {BYTES_MAX} bytes as JSON, not {len(encoded)}; "
            "what a handler needs belongs into the payload"
        )
    return encoded.decode() if value else None


def _problem_of_name(name: object) -> str | None:
    if isinstance(name, str) and _KEY.fullmatch(name):
        return None
    return (
        f"a name in meta has 1 to {KEY_MAX} letters of a-z and A-Z, digits, or any of _ . -; "
        f"{shorten(name)} is none"
    )


def _problem_of_value(name: str, value: object) -> str | None:
    if not isinstance(value, str):
        return f"meta[{name!r}] must be text, not {shorten(value)}; give it as str"
    if len(value) > VALUE_MAX:
        return f"meta[{name!r}] takes at most {VALUE_MAX} characters, not {len(value)}"
    if _CONTROL.search(value):
        return f"meta[{name!r}] has a control character (a newline, a tab, …); remove it"
    if _SURROGATE.search(value):
        return f"meta[{name!r}] has a lone surrogate, which no store can keep; remove it"
    return None


def read_meta(text: str | None) -> dict[str, str]:
    """Decode a stored meta. One that was written by hand and cannot be read is as good as none."""
    if text is None:
        return {}
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return {}


def is_readable(text: str | None) -> bool:
    """Whether it is a meta, as far as reading it goes. (One that a hand made larger than the limits is.)"""
    return text is None or bool(read_meta(text)) or text == "{}"


def with_inherited(own: str | None, inherited: str | None) -> str | None:
    """Return a job's own meta with the entries of another one's that it lacks.

    Its own entries win. Inherited ones that do not fit into the limits stay out, the last ones first: a parent never
    keeps its child from being stored.
    """
    given = read_meta(inherited)
    if not given:
        return own
    both = read_meta(own)
    size = len(_encode(both)) if both else 1  # of `{}` with no comma before its first entry
    for name, value in given.items():
        if name in both or len(both) >= ENTRIES_MAX:
            continue
        more = len(_encode({name: value})) - 1  # without its braces, with a comma
        if size + more <= BYTES_MAX:
            both[name] = value
            size += more
    return _encode(both).decode() if both else None
