"""Types beyond msgspec's own: pydantic models, and subclasses of text and numbers."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from taskharbor.codec.keys import ensure_each_key_once


def is_model(kind: object) -> bool:
    """Whether this is a pydantic model class. It never imports pydantic: a program with models has imported it."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


def encode_hook(value: Any) -> Any:
    """Write pydantic models, and subclasses of text and numbers as the plain value they are."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if is_model(type(value)):
        # Not as msgspec.Raw: a model may be configured to write NaN as it is, which is no JSON.
        written = value.model_dump_json(by_alias=True, round_trip=True).encode()
        plain = msgspec.json.decode(written)
        ensure_each_key_once(written, plain)
        return plain
    raise TypeError(f"an object of type {type(value).__qualname__} has no form in JSON")


def decode_hook(kind: type, value: Any) -> Any:
    """Read pydantic models, by their own rules for JSON; `object` takes any value as it is."""
    if not is_model(kind):
        return value
    try:
        return kind.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
    except ValueError as error:
        if not hasattr(error, "errors"):
            raise
        # pydantic's own text quotes the input and an address; this one goes to logs and history.
        problems = [
            f"{'.'.join(map(str, each['loc'])) or 'the whole'}: {each['msg']}"
            for each in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise ValueError(f"not a valid {kind.__qualname__}: {'; '.join(problems)}") from error
