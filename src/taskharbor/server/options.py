"""Turns what callers send into the options that a harbor takes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from taskharbor.client.options import checked_instant
from taskharbor.codec import reason_of, shorten
from taskharbor.errors import ConfigurationError
from taskharbor.rules.retry import RetryPolicy
from taskharbor.views.retry_documents import RetryDocument

INSTANTS = frozenset(
    {"run_at", "expires_at", "enqueued_after", "enqueued_before", "finished_after", "finished_before"}
)


def given(document: Struct, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields that were sent, with instants and policies as the harbor takes them."""
    options: dict[str, Any] = {}
    for name in document.__struct_fields__:
        value = getattr(document, name)
        if value is UNSET or name in without:
            continue
        if name == "retry":
            value = retry_policy(value)
        elif name in INSTANTS:
            value = instant(value, name)
        options[name] = value
    return options


def given_anew(document: Struct, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Do the same for a new job or schedule, where a retry of null means that the field was left out."""
    options = given(document, without=without)
    return {name: value for name, value in options.items() if value is not UNSET}


def retry_policy(document: RetryDocument | str | None) -> RetryPolicy | None | UnsetType:
    """Return the policy as the harbor takes it: null becomes UNSET, and "none" becomes None."""
    if document is None:
        return UNSET
    if isinstance(document, str):
        return None
    sent = {name: getattr(document, name) for name in document.__struct_fields__}
    return RetryPolicy.from_dict({name: value for name, value in sent.items() if value is not UNSET})


def instant(value: str | None, name: str) -> datetime | None:
    if value is None:
        return None
    expected = f"{name} is an instant such as 2026-01-31T12:00:00Z"
    try:
        found = msgspec.convert(value, datetime)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{expected}, not {shorten(value)}: {reason_of(error)}") from None
    if found.utcoffset() is None:
        raise ConfigurationError(
            f"{expected}, and {shorten(value)} has no offset from UTC; add Z if it is in UTC"
        )
    try:
        checked_instant(found, name)
    except ConfigurationError:
        raise ConfigurationError(
            f"{expected}, between the years 1 and 9999 in UTC, not {shorten(value)}"
        ) from None
    return found
