"""Changes of jobs that wait: what may be given, and what a store makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from msgspec import UNSET
from msgspec.structs import replace

from taskharbor.client.filters import JobWhere
from taskharbor.client.options import (
    LAST_INSTANT,
    checked_instant,
    checked_priority,
    checked_retry,
    checked_tags,
    checked_timeout,
    refuse_huge,
    refuse_unknown,
)
from taskharbor.clock import seconds_to_micros
from taskharbor.codec import encode_payload, shorten
from taskharbor.drivers.base import DECLARED, Driver, Update
from taskharbor.errors import ConfigurationError
from taskharbor.rules.retry import RetryPolicy, resolve_max_attempts


class BulkChanges(TypedDict, total=False):
    """The fields of many jobs that can change while they are neither running nor finished."""

    priority: int
    run_at: datetime
    max_attempts: int | None
    max_retries: int | None
    timeout: float | timedelta | None
    tags: list[str] | tuple[str, ...]
    expires_at: datetime | None
    expires_in: float | timedelta | None
    retry: RetryPolicy | None | Literal["declared"]


class JobChanges(BulkChanges, total=False):
    """The fields of a job that can change while it is neither running nor finished."""

    payload: Mapping[str, Any]


class BulkUpdate(JobWhere, BulkChanges, total=False):
    """Which jobs, and what changes of them."""


BULK_OPTIONS = frozenset(BulkChanges.__annotations__)
CHANGEABLE_OPTIONS = BULK_OPTIONS | {"payload"}


async def checked_update(
    changes: Mapping[str, Any], driver: Driver, allowed: frozenset[str] = CHANGEABLE_OPTIONS
) -> Update:
    """Return the changes as a store takes them; an `expires_in` counts from the store's now."""
    refuse_unknown(changes, allowed)
    refuse_huge(changes)
    if not changes:
        raise ConfigurationError(f"nothing to change was given; give {', '.join(sorted(allowed))}")
    if changes.get("expires_at") is not None and changes.get("expires_in") is not None:
        raise ConfigurationError("expires_at and expires_in say the same thing; give one of them")
    update = Update(**_fields(changes))
    if changes.get("expires_in") is None:
        return update
    micros = seconds_to_micros(checked_timeout(changes["expires_in"], "expires_in"))
    return replace(update, expires_at=min(await driver.now() + micros, LAST_INSTANT))


def _fields(changes: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in changes.items():
        match name:
            case "priority":
                fields[name] = checked_priority(value)
            case "run_at":
                fields[name] = checked_instant(value, name)
            case "expires_at":
                fields[name] = None if value is None else checked_instant(value, name)
            case "payload":
                fields[name] = encode_payload(value)
            case "timeout":
                fields[name] = None if value is None else checked_timeout(value)
            case "tags":
                fields[name] = checked_tags(value)
            case "retry":
                fields.update(_retry(value))
    if "max_attempts" in changes or "max_retries" in changes:
        fields["max_attempts"] = resolve_max_attempts(changes.get("max_attempts"), changes.get("max_retries"))
    return fields


def _retry(value: object) -> dict[str, Any]:
    """Return the fields of another policy: it brings its limit, because the stored one belongs to the policy before."""
    if value is UNSET or value == DECLARED:
        return {"retry": DECLARED}
    if isinstance(value, str):
        raise ConfigurationError(
            "retry must be a RetryPolicy, one of taskharbor.presets, None for no retries, or "
            f"{DECLARED!r} to follow the code, not {shorten(value)}"
        )
    policy = checked_retry(value)
    limit = policy["max_attempts"] if isinstance(policy, dict) else 0
    return {"retry": policy, "max_attempts": limit} if limit else {"retry": policy}
