"""Keys that are two in Python and one in JSON, where every key is text: 1 and "1"."""

from __future__ import annotations

from typing import Any

import msgspec


class KeyTwice(ValueError):
    """An object of a JSON text has a key twice: a reader would get only the last value."""

    def __init__(self, key: str) -> None:
        super().__init__(f"two keys of one object are both written as {key!r}")
        self.key = key


def ensure_each_key_once(encoded: bytes, decoded: object) -> None:
    """Refuse with `KeyTwice` a text in which an object holds a key twice; `decoded` is what was read from it."""
    # A key that was lost in reading is missing when the value is written again. Both steps run in C. A text that only
    # differs in style is checked once more.
    if len(msgspec.json.encode(decoded)) != len(encoded):
        import json  # rarely needed, and it takes a moment to load

        json.loads(encoded, object_pairs_hook=_each_once, parse_int=str, parse_float=str)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for key, value in pairs:
        if key in read:
            raise KeyTwice(key)
        read[key] = value
    return read
