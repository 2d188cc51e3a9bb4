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
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{name} is an instant such as 2026-01-31T12:00:00Z, not {shorten(value)}: {reason_of(error)}"
        ) from None
