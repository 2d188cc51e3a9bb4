"""Secrets in what jobs carry: shown masked, and put back when a person edits what is around them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "*** masked ***"

# A key that contains one of these, written without `_` and `-`, names a secret, and so does one that ends with `token`.
_SECRET_PARTS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "authorization",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
)


def is_secret(key: str) -> bool:
    """Whether a key names a secret: `password`, `api_key`, `X-Api-Key`, `accessToken`, but not `max_tokens`."""
    plain = re.sub(r"[^a-z0-9]", "", key.lower())
    return plain.endswith("token") or any(part in plain for part in _SECRET_PARTS)


def masked(value: Any) -> Any:
    """Return a value with everything under the key of a secret replaced; what is empty or a yes or no stays."""
    if isinstance(value, Mapping):
        return {key: _masked_at(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner) for inner in value]
    return value


def _masked_at(key: str, value: Any) -> Any:
    is_known = value is None or isinstance(value, bool) or value in ("", [], {})
    return masked(value) if is_known or not is_secret(key) else MASK


def unmasked(edited: Any, stored: Any, path: str = "payload") -> Any:
    """Return an edited value with each mask replaced by what is stored in its place.

    A mask that stands where nothing was masked raises `ValueError`: no secret is known for it.
    """
    if isinstance(edited, dict):
        known = stored if isinstance(stored, dict) else {}
        return {key: _unmasked_at(key, inner, known, f"{path}.{key}") for key, inner in edited.items()}
    if isinstance(edited, list):
        items = stored if isinstance(stored, list) else []
        return [
            unmasked(inner, items[at] if at < len(items) else None, f"{path}[{at}]")
            for at, inner in enumerate(edited)
        ]
    return edited


def _unmasked_at(key: str, edited: Any, stored: dict[str, Any], path: str) -> Any:
    if edited != MASK or not is_secret(key):
        return unmasked(edited, stored.get(key), path)
    if _masked_at(key, stored.get(key)) != MASK:
        raise ValueError(f"{path} is {MASK!r}, and the job has no such secret; write the value itself")
    return stored[key]
