"""Payloads and results as JSON text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from taskharbor.codec.changes import ensure_unchanged, equal
from taskharbor.codec.keys import KeyTwice, ensure_each_key_once
from taskharbor.codec.models import decode_hook, encode_hook
from taskharbor.codec.problems import NESTING_LIMIT, TOO_DEEP, problem_in, reason_of
from taskharbor.codec.text import shorten
from taskharbor.errors import PayloadError, PayloadTooLarge

PAYLOAD_LIMIT = 1_048_576  # bytes of UTF-8 JSON
RESULT_LIMIT = 1_048_576  # bytes of UTF-8 JSON
ENCODED = "taskharbor:codec"  # the key of what a payload codec has encoded
SEALED_PREFIX = f'{{"{ENCODED}":'  # what begins so has been encoded

_SEALED = SEALED_PREFIX.encode()
_encode = msgspec.json.Encoder(enc_hook=encode_hook).encode


def encode_payload(payload: Mapping[str, Any], *, limit: int = PAYLOAD_LIMIT) -> str:
    """The JSON text of a payload that no task's signature describes: plain JSON values only.

    What `decode_payload` gives equals what was passed; anything else is a `PayloadError` that says where.
    """
    if not isinstance(payload, Mapping):
        raise PayloadError(
            f"a payload is a JSON object, not {shorten(payload)}; "
            'give a mapping of parameter names to values, for example {"to": "a@b.c"}'
        )
    given = payload if type(payload) is dict else dict(payload)
    if not given:
        return "{}"
    if ENCODED in given:
        raise PayloadError(f"a payload cannot have the key {ENCODED!r}: TaskHarbor's payload codecs use it")
    encoded = to_json(given, "the payload", limit)
    try:
        decoded = msgspec.json.decode(encoded)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PayloadError(f"the payload cannot be stored as JSON: {reason_of(error)}") from error
    ensure_unchanged(given, decoded, "the payload")
    return encoded.decode()


def decode_payload(text: str) -> dict[str, Any]:
    """The payload as plain JSON values; `PayloadError` when the text is no JSON object."""
    try:
        payload = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the payload is not readable as JSON: {reason_of(error)}") from error
    if type(payload) is not dict:
        raise PayloadError(f"a payload is a JSON object, not {shorten(payload)}")
    return payload


def encode_result(value: object, *, limit: int = RESULT_LIMIT, what: str = "the result") -> str:
    """The JSON text of what a handler returned; `what` names it in errors.

    It need not come back as the same type: a dataclass or a model is read back as an object, a datetime as
    text, a tuple as an array. What JSON has no form for is a `PayloadError`.
    """
    if value is None:
        return "null"
    encoded = to_json(value, what, limit)
    if encoded.startswith(
        _SEALED
    ):  # a store would keep it unencoded, and no reader could make anything of it
        raise PayloadError(
            f"{what} cannot begin with the key {ENCODED!r}: TaskHarbor's payload codecs use it"
        )
    # NaN and the infinities are written as null, and keys such as 1 and "1" alike: look for them only where there is a
    # null or an object, and where what comes back is not the same.
    if b"{" in encoded or b"null" in encoded:
        try:
            decoded = msgspec.json.decode(encoded)
        except msgspec.MsgspecError as error:  # a msgspec.Raw that is no JSON
            raise PayloadError(f"{what} cannot be stored as JSON: {reason_of(error)}") from error
        if not equal(value, decoded):
            _ensure_nothing_lost(value, encoded, decoded, what)
    return encoded.decode()


def _ensure_nothing_lost(value: object, encoded: bytes, decoded: object, what: str) -> None:
    try:
        ensure_each_key_once(encoded, decoded)
    except KeyTwice as error:
        found: str | None = problem_in(value) or reason_of(error)
    else:
        found = problem_in(value) if b"null" in encoded else None
    if found:
        raise PayloadError(f"{what} cannot be stored as JSON: {found}")


def decode_result(text: str) -> Any:
    """Return the result as plain JSON values."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the result is not readable as JSON: {reason_of(error)}") from error


def result_decoder(function: Callable[..., Any]) -> Callable[[str], Any]:
    """Results come back as the annotated type where JSON can carry it, else as plain JSON values."""
    try:
        hint = inspect.get_annotations(function, eval_str=True).get("return")
        if hint is None or isinstance(hint, TypeVar):
            return decode_result
        typed = msgspec.json.Decoder(hint, dec_hook=decode_hook).decode
    except Exception:  # noqa: BLE001 - an annotation that cannot be evaluated or carried asks for plain values
        return decode_result

    def decode(text: str) -> Any:
        try:
            return typed(text)
        except Exception:  # noqa: BLE001 - what was stored is not what the annotation says now
            return decode_result(text)

    return decode


def to_json(value: object, what: str, limit: int) -> bytes:
    """JSON within all limits, by the rules of `encode_result`; `what` names the value in the error."""
    try:
        encoded = _encode(value)
    except MemoryError:
        raise
    except Exception as error:  # a model's own serialiser may raise anything
        found = problem_in(value) or reason_of(error)
        raise PayloadError(f"{what} cannot be stored as JSON: {found}") from error
    if len(encoded) > limit:
        raise PayloadTooLarge(
            f"{what} takes {len(encoded):,} bytes as JSON, and the limit is {limit:,}; "
            "store the data elsewhere (a file, a bucket, a table) and pass its address"
        )
    if b"\\u0000" in encoded and _has_nul(encoded):
        raise PayloadError(f"{what} cannot be stored as JSON: {problem_in(value) or 'a text holds a NUL'}")
    if len(encoded) > NESTING_LIMIT and _is_too_deep(encoded):
        raise PayloadError(f"{what} cannot be stored as JSON: {TOO_DEEP}")
    return encoded


def _has_nul(encoded: bytes) -> bool:
    r"""Whether the text has an escape \u0000, not only an escaped backslash followed by `u0000`."""
    start = encoded.find(b"\\u0000")
    while start >= 0:
        before = start
        while before > 0 and encoded[before - 1] == 0x5C:
            before -= 1
        if (start - before) % 2 == 0:
            return True
        start = encoded.find(b"\\u0000", start + 6)
    return False


def _is_too_deep(encoded: bytes) -> bool:
    if encoded.count(b"[") + encoded.count(b"{") <= NESTING_LIMIT:
        return False
    try:
        level = [msgspec.json.decode(encoded)]
    except RecursionError:
        return True
    except msgspec.MsgspecError:  # not about depth: the next decoder reports it
        return False
    for _ in range(NESTING_LIMIT):
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True
