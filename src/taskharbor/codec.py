"""JSON text and values: what a payload or a result may hold, how large it may be, what a name may look like.

Payloads and results are stored as JSON text, in UTF-8 and without escapes where none are needed: readable in
a dashboard, writable from any language. Nothing is ever pickled.

A **payload** must come back as it was given: a value that JSON would silently change (NaN, a tuple, a
datetime where no annotation says so, an integer as the key of an object) is refused when it is enqueued, not
discovered in a worker. Integers of up to 4,300 digits come back exactly. A **result** is more tolerant,
because the work is done when it is encoded: dataclasses, structs, models, datetimes, tuples and sets are
written as JSON, and read back as plain JSON values.

Neither may hold NaN or an infinity, a NUL or a lone surrogate in a text (no store can be trusted with them),
nor be nested deeper than `NESTING_LIMIT`.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import math
import re
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from taskharbor.errors import ConfigurationError, PayloadError, PayloadTooLarge

PAYLOAD_LIMIT = 1_048_576  # bytes of UTF-8 JSON
RESULT_LIMIT = 1_048_576  # bytes of UTF-8 JSON
NESTING_LIMIT = 100  # objects and arrays inside one another

# Lengths are in bytes of UTF-8, because that is what bounds an index: a queue name and a key stand together
# in one entry of a PostgreSQL B-tree, which ends at 2,704 bytes.
NAME_LIMIT = 255  # queues, tasks, tags, correlation ids
KEY_LIMIT = 1024  # idempotency keys


# -- payloads and results ------------------------------------------------------------------------


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


def encode_result(value: object, *, limit: int = RESULT_LIMIT) -> str:
    """The JSON text of what a handler returned.

    It need not come back as the same type: a dataclass or a model is read back as an object, a datetime as
    text, a tuple as an array. What JSON has no form for is a `PayloadError`.
    """
    if value is None:
        return "null"
    encoded = to_json(value, "the result", limit)
    # NaN and the infinities are written as null: look for them where there is a null that was no None.
    if (
        b"null" in encoded
        and not _equal(value, msgspec.json.decode(encoded))
        and (found := problem_in(value))
    ):
        raise PayloadError(f"the result cannot be stored as JSON: {found}")
    return encoded.decode()


def decode_result(text: str) -> Any:
    """The result as plain JSON values."""
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
    if _is_too_deep(encoded):
        raise PayloadError(f"{what} cannot be stored as JSON: {_TOO_DEEP}")
    return encoded


def ensure_unchanged(given: Any, decoded: Any, what: str) -> None:
    """Refuse what JSON changed: `decoded` is what came back for `given`."""
    if _equal(given, decoded):
        return
    # Unequal is not always changed: a class without __eq__, a datetime in the hour that a zone repeats.
    found = problem_in(given) or _change(given, decoded, "")
    if found:
        raise PayloadError(f"{what} cannot be stored as JSON: {found}")


# -- types beyond msgspec's own ------------------------------------------------------------------


def is_model(kind: object) -> bool:
    """Is this a pydantic model class? Never imports pydantic: without it nobody can have defined one."""
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
        return msgspec.json.decode(value.model_dump_json(by_alias=True, round_trip=True))
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


_encode = msgspec.json.Encoder(enc_hook=encode_hook).encode


# -- finding what is wrong -----------------------------------------------------------------------

_TOO_DEEP = f"it is nested deeper than {NESTING_LIMIT} levels, or contains itself"
_SURROGATES = re.compile("[\ud800-\udfff]")
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
    """Where and why a value cannot be JSON at all, or None; only used to word an error."""
    stack: list[tuple[str, int, bool, object]] = [("", 0, False, value)]
    while stack:
        path, depth, in_model, item = stack.pop()
        if depth >= NESTING_LIMIT and _is_container(item):
            return _TOO_DEEP
        # A model knows how to write more types than we do, and has done so.
        problem = _problem_of_scalar(item) or (None if in_model else _problem_of_type(item))
        if problem:
            return _at(path, problem)
        if isinstance(item, dict):
            for key in item:
                if problem := _problem_of_scalar(key) or _problem_of_key(key):
                    return _at(path, f"the key {problem}")
        in_model = in_model or is_model(type(item))
        stack.extend((path + step, depth + 1, in_model, child) for step, child in _children(item))
    return None


def _problem_of_scalar(item: object) -> str | None:
    if isinstance(item, str):
        if "\0" in item:
            return f"{shorten(item)} holds a NUL character; remove it, or pass the data as base64"
        if _SURROGATES.search(item):
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
        f"{shorten(item)} is a {type(item).__qualname__}, which has no form in JSON; "
        "pass plain values, a dataclass, a msgspec struct or a pydantic model"
    )


def _problem_of_key(key: object) -> str | None:
    if isinstance(key, _SCALARS):
        return None
    return f"{shorten(key)} is a {type(key).__qualname__}, and in JSON every key is text; use text keys"


def _is_container(item: object) -> bool:
    return isinstance(item, dict | list | tuple | set | frozenset) or _has_fields(item)


def _has_fields(item: object) -> bool:
    kind = type(item)
    return isinstance(item, msgspec.Struct) or dataclasses.is_dataclass(kind) or is_model(kind)


def _children(item: Any) -> Iterator[tuple[str, Any]]:
    """What is directly inside, each with its step of the path."""
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


def _change(given: Any, decoded: Any, path: str) -> str | None:
    """Where a value differs from what came back for it, in words, or None."""
    if given is decoded or _equal(given, decoded):
        return None
    if _same_instant(given, decoded):
        return None
    if isinstance(given, dict) and isinstance(decoded, dict):
        for key in given:
            if key not in decoded:
                return _at(path, _lost_key(key))
    elif _has_fields(given) and type(given) is type(decoded):
        pass
    elif not any(isinstance(given, kind) and isinstance(decoded, kind) for kind in (list, tuple)):
        return _at(
            path,
            f"{shorten(given)} ({type(given).__qualname__}) "
            f"would come back as {shorten(decoded)} ({type(decoded).__qualname__}); "
            "pass it in that form, or annotate the parameter with the type you mean",
        )
    ours, theirs = list(_children(given)), list(_children(decoded))
    if len(ours) != len(theirs):
        return _at(path, f"{len(ours)} members would come back as {len(theirs)}")
    if isinstance(given, dict):
        theirs = [(step, decoded[key]) for key, (step, _) in zip(given, ours, strict=True)]
    for (step, mine), (_, yours) in zip(ours, theirs, strict=True):
        if found := _change(mine, yours, path + step):
            return found
    return None


def _lost_key(key: object) -> str:
    if isinstance(key, str):
        return f"the key {shorten(key)} would be lost; the annotation does not know it"
    return (
        f"the key {shorten(key)} ({type(key).__qualname__}) would come back as text: in JSON every key is; "
        "use text keys, or annotate the parameter with the type of its keys"
    )


def _same_instant(given: object, decoded: object) -> bool:
    # Python calls a datetime in a repeated or skipped hour unequal to the same instant in another zone.
    return (
        isinstance(given, datetime.datetime)
        and isinstance(decoded, datetime.datetime)
        and given.tzinfo is not None
        and decoded.tzinfo is not None
        and given.astimezone(datetime.UTC) == decoded.astimezone(datetime.UTC)
    )


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - whatever a class's __eq__ raises, it did not say that they are equal
        return False


def _at(path: str, problem: str) -> str:
    return f"at {clean_text(path.removeprefix('.'), 200)}: {problem}" if path else problem


def _has_nul(encoded: bytes) -> bool:
    r"""Does an escape \u0000 stand there, rather than an escaped backslash followed by `u0000`?"""
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
    except msgspec.MsgspecError:  # not about depth: whoever decodes it next says what it is
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


def reason_of(error: BaseException) -> str:
    """A library's error in our form: the place first, then what is wrong, bounded."""
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    problem, _, path = str(error).rpartition(" - at `$")
    if not problem:
        problem, path = str(error) or type(error).__qualname__, ""
    path = path.rstrip("`").removeprefix(".")
    if problem[:1].isupper() and not problem[:4].isupper():  # a sentence, not the word JSON
        problem = problem[0].lower() + problem[1:]
    return clean_text(f"at {path}: {problem}" if path else problem, 1000)


# -- text ----------------------------------------------------------------------------------------


def clean_text(text: str, limit: int) -> str:
    """Text of user code (an error, a traceback) that every store takes: at most `limit` characters.

    NULs and lone surrogates are replaced by U+FFFD. Of a longer text the beginning and the end stay, more of
    the end, where a traceback says what happened; a mark between them says how much was left out.
    """
    if len(text) > limit:
        text = _shortened(text, limit)
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", text)
    return text


def _shortened(text: str, limit: int) -> str:
    # The mark's own length depends on the number in it: reserve for the longest it can be.
    kept = limit - len(f"\n… {len(text):,} characters left out …\n")
    if kept < 2:
        return text[: max(limit - 1, 0)] + "…"[:limit]
    head = kept // 3
    tail = kept - head
    return f"{text[:head]}\n… {len(text) - kept:,} characters left out …\n{text[-tail:]}"


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def shorten(value: object) -> str:
    """A short, safe repr for an error's text, whatever the value's own `__repr__` does."""
    try:
        return clean_text(_repr.repr(value), 120)
    except Exception:  # noqa: BLE001 - the error being worded matters more than this repr
        return f"<{type(value).__qualname__}>"


def checked_name(kind: str, value: object, limit: int = NAME_LIMIT) -> str:
    """A queue, task, key, tag or id as given, or a `ConfigurationError` that says what is wrong with it.

    Text, not empty, at most `limit` bytes of UTF-8, without control characters, lone surrogates, or
    whitespace at its ends (two names that look alike would be two queues, two keys two jobs).
    """
    if (
        type(value) is str
        and 0 < len(value) <= limit
        and value.isascii()
        and value.isprintable()
        and value[0] != " "
        and value[-1] != " "
    ):
        return value  # nearly every name there is, at the least cost
    a_kind = f"an {kind}" if kind.startswith("i") else f"a {kind}"
    if not isinstance(value, str):
        raise ConfigurationError(f"{a_kind} is text, not {shorten(value)} ({type(value).__qualname__})")
    problem = _problem_of_name(value, limit)
    if problem:
        raise ConfigurationError(f"{shorten(value)} cannot be {a_kind}: {problem}")
    return str.__str__(value)


def _problem_of_name(value: str, limit: int) -> str | None:
    if not value:
        return "it is empty; give it at least one character"
    if _SURROGATES.search(value):
        return "it holds a lone surrogate, which is no valid text; decode or replace it first"
    size = len(value.encode())
    if size > limit:
        return (
            f"it takes {size:,} bytes of UTF-8, and the limit is {limit:,}; shorten it, or use a hash of it"
        )
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in value):
        return "it holds a control character (a NUL, a newline, a tab, …); remove it"
    if value != value.strip():
        return "it begins or ends with whitespace; strip it"
    return None
