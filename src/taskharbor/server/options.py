"""From documents to the options that a harbor takes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from taskharbor.codec import reason_of, shorten
from taskharbor.errors import ConfigurationError

INSTANTS = frozenset({"run_at", "expires_at"})


def given(document: Struct, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """What was sent, by the names that the harbor knows, and instants as such."""
    options: dict[str, Any] = {}
    for name in document.__struct_fields__:
        value = getattr(document, name)
        if value is not UNSET and name not in without:
            options[name] = instant(value, name) if name in INSTANTS else value
    return options


def instant(value: str | None, name: str) -> datetime | None:
    if value is None:
        return None
    expected = f"{_sent_as(name)} is an instant such as 2026-01-31T12:00:00Z"
    try:
        found = msgspec.convert(value, datetime)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{expected}, not {shorten(value)}: {reason_of(error)}") from None
    if found.utcoffset() is None:
        raise ConfigurationError(
            f"{expected}, and {shorten(value)} does not say its offset from UTC; add Z if it is in UTC"
        )
    return found


def _sent_as(name: str) -> str:
    """The name by which the document has it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
