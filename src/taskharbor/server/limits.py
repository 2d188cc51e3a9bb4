"""Limits of a request: the size and shape of its body, and how many wrong tokens a client may send."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal, NoReturn, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request

from taskharbor.codec import reason_of
from taskharbor.server.errors import ApiError, logger, malformed
from taskharbor.server.large_bodies import Place

# Room for the largest payload, in JSON that writes every letter as an escape, and for the other fields.
BODY_BYTES_MAX = 4 * 2**20
BODY_SECONDS_MAX = 60.0
VALUES_MAX = 600_000  # more than a payload of the greatest size can hold
CONTAINERS_MAX = 50_000  # objects and arrays among them
QUERY_FIELDS_MAX = 50
FAILURES_MAX = 10
FAILURES_SECONDS = 60.0
CLIENTS_MAX = 10_000  # whose failures are remembered
LOG_LINES_MAX = 30  # about wrong tokens, within FAILURES_SECONDS


# -- bodies ----------------------------------------------------------------------------------------


async def read_body(request: Request, place: Place) -> bytes:
    """Read the body, chunked or not, up to the limit."""
    length = request.headers.get("content-length", "")
    announced = int(length[:20]) if length.isdecimal() else 0
    if announced > BODY_BYTES_MAX:
        raise _too_large()
    await place.grow(announced)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY_BYTES_MAX:
                    raise _too_large()
                chunks.append(chunk)
                await place.grow(size)
    except TimeoutError:
        raise ApiError(408, "too_slow", "the body did not arrive in time", headers=_CLOSE) from None
    except ClientDisconnect:
        raise malformed("the connection was closed before the body was whole") from None
    return b"".join(chunks)


_CLOSE = {"Connection": "close"}  # the rest of the body is not read


def _too_large() -> ApiError:
    return ApiError(413, "too_large", f"a body takes at most {BODY_BYTES_MAX:,} bytes", headers=_CLOSE)


def refuse_other_types(request: Request, *, has_body: bool) -> None:
    """Refuse a body that is not declared as JSON: a form on another site cannot declare that."""
    kind = request.headers.get("content-type")
    if kind is None and not has_body:
        return
    if kind is None or kind.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "not_json", "the body must be JSON: send it with Content-Type: application/json")


def parsed_json(body: bytes) -> Any:
    """Decode strict JSON: no NaN, no duplicate keys, no invalid text."""
    if not body.strip():
        raise malformed("the body is empty; send JSON")
    refuse_too_many_values(body)
    try:
        value = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_refuse_duplicates)
    except _DuplicateKey as error:
        raise malformed(f"the key {error.args[0]!r} is given twice in one object; give it once") from None
    except (ValueError, RecursionError) as error:
        why = _HALF_A_PAIR if _is_whole(body, error) else reason_of(error)
        raise malformed(f"the body is not valid JSON: {why}") from None
    return value


_NOT_STRUCTURE = bytes(set(range(256)) - set(b'",[{'))


def refuse_too_many_values(body: bytes) -> None:
    """Refuse a body that takes seconds to decode: each object and each array costs Python's garbage collector time."""
    if body.count(b"[") + body.count(b"{") <= CONTAINERS_MAX and body.count(b",") <= VALUES_MAX:
        return
    # Texts do not count: once escapes are gone, every second part between quotes is outside of a text.
    structure = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NOT_STRUCTURE)
    if structure.count(b'"') > 4 * VALUES_MAX:
        raise _too_many(f"{VALUES_MAX:,} values")
    outside = b"".join(structure.split(b'"')[::2])
    if outside.count(b"[") + outside.count(b"{") > CONTAINERS_MAX:
        raise _too_many(f"{CONTAINERS_MAX:,} objects and arrays")
    if outside.count(b",") > VALUES_MAX:
        raise _too_many(f"{VALUES_MAX:,} values")


def _too_many(what: str) -> ApiError:
    return ApiError(
        413, "too_large", f"a body takes at most {what}; store the data elsewhere and pass its address"
    )


_HALF_A_PAIR = "a \\u escape in it is one half of a surrogate pair, which is not a character"


def _is_whole(body: bytes, error: Exception) -> bool:
    """Whether the body is complete: msgspec calls a text with half a surrogate pair truncated."""
    if "truncated" not in str(error):
        return False
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


class _DuplicateKey(Exception):
    pass


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _DuplicateKey(key[:100])
        seen.add(key)


def converted(value: Any, kind: type[Any]) -> Any:
    """Convert what was sent to its type, or raise what is wrong with it and where."""
    try:
        return msgspec.convert(_whole_numbers(value), kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise malformed(f"the body is not as described: {reason_of(error)}{choices(error, kind)}") from None


_INTEGERS = ("priority", "maxAttempts", "maxRetries", "maxRetryCount")


def _whole_numbers(value: Any) -> Any:
    """Turn 3.0 into 3: in JSON both are integers, and some languages only write the first."""
    if isinstance(value, dict):
        for name in _INTEGERS:
            number = value.get(name)
            if isinstance(number, float) and number.is_integer():
                value[name] = int(number)
        _whole_numbers(value.get("retry"))
        _whole_numbers(value.get("changes"))
    return value


def parsed_query(text: bytes, kind: type[Any] | None) -> Any:
    """Read the parameters of the query. An unknown one is refused: a mistyped filter would match every job."""
    try:
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(text),
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except ValueError as error:
        raise malformed(f"the query cannot be read: {reason_of(error)}") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise malformed("a parameter of the query is given twice; give it once")
    if kind is None:
        if given:
            raise malformed(f"this path takes no parameters, but {', '.join(sorted(given))[:200]} was given")
        return None
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise malformed(f"the query is not as described: {reason_of(error)}{choices(error, kind)}") from None


def choices(error: Exception, kind: type[Any]) -> str:
    """List the valid words if the field takes only some; for an unknown field, name the one that was likely meant."""
    if (unknown := _UNKNOWN_FIELD.match(str(error))) is not None:
        return _likely_field(unknown[1], unknown[2], kind)
    problem, _, path = str(error).rpartition(" - at `$.")
    if not problem.startswith("Invalid enum value"):
        return ""
    words = [
        word
        for field in msgspec.structs.fields(kind)
        if field.encode_name == path.rstrip("`")
        for word in _words(field.type)
    ]
    return f"; it is one of {', '.join(words)}" if words else ""


_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]{1,100})`(?: - at `\$\.([^`]+)`)?$")


def _likely_field(name: str, path: str | None, kind: type[Any]) -> str:
    for step in path.split(".") if path else ():
        types = [field.type for field in msgspec.structs.fields(kind) if field.encode_name == step]
        structs = [each for kind in types for each in _flat(kind) if _is_struct(each)]
        if len(structs) != 1:
            return ""
        kind = structs[0]
    fields = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(kind)}
    close = difflib.get_close_matches(name.replace("_", "").lower(), fields, n=1)
    return f"; did you mean {fields[close[0]]}?" if close else ""


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _flat(kind: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    yield kind
    for inner in get_args(kind):
        yield from _flat(inner)


def _words(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        yield from kind
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for inner in get_args(kind):
            yield from _words(inner)


# -- failures --------------------------------------------------------------------------------------


class Failures:
    """Counts the wrong tokens of each client in the last minute, for a bounded number of clients, the latest."""

    def __init__(self) -> None:
        self._counted: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._log = Throttled(LOG_LINES_MAX, FAILURES_SECONDS)

    def count(self, key: str) -> None:
        """Count a wrong token, and raise 429 if there are too many.

        A valid token always passes, even if others at the same address send wrong ones: 256 bits cannot be guessed, and
        a client must not lock out another that shares its address.
        """
        now = time.monotonic()
        since, failures = self._counted.pop(key, (now, 0))
        if now - since >= FAILURES_SECONDS:
            since, failures = now, 0
        self._counted[key] = (since, failures + 1)
        while len(self._counted) > CLIENTS_MAX:
            self._counted.popitem(last=False)
        if failures == 0:
            self._log.warning("wrong token from %s", key)
        if failures == FAILURES_MAX:
            self._log.warning(
                "%d wrong tokens from %s within %d s; answering more of them with 429",
                failures,
                key,
                round(FAILURES_SECONDS),
            )
        if failures >= FAILURES_MAX:
            _refuse(since + FAILURES_SECONDS - now)


class Throttled:
    """Warnings at a bounded rate. The first one after a pause says how many were left out."""

    def __init__(self, lines: int, seconds: float) -> None:
        self._lines = lines
        self._seconds = seconds
        self._since = time.monotonic()
        self._written = 0

    def warning(self, message: str, *values: object) -> None:
        now = time.monotonic()
        if now - self._since >= self._seconds:
            left_out = self._written - self._lines
            self._since, self._written = now, 0
            if left_out > 0:
                logger.warning("%d more warnings like the following one were not logged", left_out)
        self._written += 1
        if self._written <= self._lines:
            logger.warning(message, *values)


def _refuse(seconds: float) -> NoReturn:
    raise ApiError(
        429,
        "too_many_failures",
        "too many wrong tokens from this address; try again later",
        headers={"Retry-After": str(max(1, round(seconds)))},
    )
