"""Say where and why a value cannot be JSON, for the caller's error."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from taskharbor.codec.models import encode_hook, is_model
from taskharbor.codec.text import SURROGATES, clean_text, shorten

NESTING_LIMIT = 100  # objects and arrays inside one another
TOO_DEEP = f"it is nested deeper than {NESTING_LIMIT} levels, or contains itself"
_SCALARS = (
    str,
    int,  # and bool
    float,
    bytes,
    bytearray,
    memoryview,
    datetime.date,  # and datetime
    datetime.time,
    datetime.timedelta,
    UUID,
    Decimal,
    Enum,
    msgspec.Raw,
)


def problem_in(value: object) -> str | None:
    """Say where and why a value cannot be JSON, or None; only called to word an error."""
    stack: list[tuple[str, int, bool, object]] = [("", 0, False, value)]
    while stack:
        path, depth, in_model, item = stack.pop()
        if depth >= NESTING_LIMIT and _is_container(item):
            return TOO_DEEP
        # A model knows how to write more types than we do, and has done so.
        problem = _problem_of_scalar(item) or (None if in_model else _problem_of_type(item))
        if problem:
            return at(path, problem)
        if isinstance(item, dict):
            for key in item:
                if problem := _problem_of_scalar(key) or _problem_of_key(key):
                    return at(path, f"the key {problem}")
            if not in_model and (same := _one_key(item)):
                return at(path, same)
        in_model = in_model or is_model(type(item))
        stack.extend((path + step, depth + 1, in_model, child) for step, child in children(item))
    return None


def _problem_of_scalar(item: object) -> str | None:
    if isinstance(item, str):
        if "\0" in item:
            return f"{shorten(item)} holds a NUL character; remove it, or pass the data as base64"
        if SURROGATES.search(item):
            return (
                f"{shorten(item)} holds a lone surrogate, which is no valid text; decode or replace it first"
            )
    elif isinstance(item, float):
        if not math.isfinite(item):
            return f"{item!r} is no number in JSON; pass None or a text instead"
    elif isinstance(item, int) and item.bit_length() > 14_283:  # the interpreter's own default bound
        return "an integer of more than 4,300 digits; pass it as text"
    return None


def _problem_of_type(item: object) -> str | None:
    if item is None or isinstance(item, _SCALARS) or _is_container(item):
        return None
    return (
        f"{shorten(item)} has the type {type(item).__qualname__}, which has no form in JSON; "
        "pass plain values, a dataclass, a msgspec struct or a pydantic model"
    )


def _problem_of_key(key: object) -> str | None:
    if isinstance(key, _SCALARS):
        return None
    return (
        f"{shorten(key)} has the type {type(key).__qualname__}, and in JSON every key is text; use text keys"
    )


def _one_key(item: dict[Any, Any]) -> str | None:
    if all(type(key) is str for key in item):
        return None
    written: dict[str, Any] = {}
    for key in item:
        try:
            text = next(iter(msgspec.json.decode(msgspec.json.encode({key: None}, enc_hook=encode_hook))))
        except Exception:  # noqa: BLE001 - a key that cannot be written equals no other; another error reports it
            continue
        if text in written:
            one = written[text]
            return (
                f"the keys {shorten(one)} ({type(one).__qualname__}) and {shorten(key)} ({type(key).__qualname__}) "
                "are one and the same in JSON, where every key is text, and one value would be lost; "
                "use text keys that differ"
            )
        written[text] = key
    return None


def _is_container(item: object) -> bool:
    return isinstance(item, dict | list | tuple | set | frozenset) or has_fields(item)


def has_fields(item: object) -> bool:
    kind = type(item)
    return isinstance(item, msgspec.Struct) or dataclasses.is_dataclass(kind) or is_model(kind)


def children(item: Any) -> Iterator[tuple[str, Any]]:
    """Return the values directly inside, each with its step of the path."""
    if isinstance(item, dict):
        for key, child in item.items():
            yield f".{key}" if isinstance(key, str) else f"[{shorten(key)}]", child
    elif isinstance(item, list | tuple | set | frozenset):
        for index, child in enumerate(item):
            yield f"[{index}]", child
    elif isinstance(item, msgspec.Struct):
        for name in item.__struct_fields__:
            yield f".{name}", getattr(item, name, None)
    elif dataclasses.is_dataclass(item):
        for field in dataclasses.fields(item):
            yield f".{field.name}", getattr(item, field.name, None)
    elif is_model(type(item)):
        for name, child in vars(item).items():
            yield f".{name}", child


def at(path: str, problem: str) -> str:
    return f"at {clean_text(path.removeprefix('.'), 200)}: {problem}" if path else problem


def reason_of(error: BaseException) -> str:
    """Return a library's error in our form, bounded: first the place, then the problem."""
    if isinstance(error, RecursionError):
        return TOO_DEEP
    problem, _, path = str(error).rpartition(" - at `$")
    if not problem:
        problem, path = str(error) or type(error).__qualname__, ""
    path = path.rstrip("`").removeprefix(".")
    if problem[:1].isupper() and not problem[:4].isupper():  # a sentence, not the word JSON
        problem = problem[0].lower() + problem[1:]
    return clean_text(f"at {path}: {problem}" if path else problem, 1000)
