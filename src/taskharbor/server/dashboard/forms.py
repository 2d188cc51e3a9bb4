"""What a form sends: read within a limit, and checked against a type."""

from __future__ import annotations

from typing import Any, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from taskharbor.codec import reason_of
from taskharbor.server.auth import Caller
from taskharbor.server.clients import NO_ADDRESS
from taskharbor.server.errors import ApiError, malformed
from taskharbor.server.large_bodies import LargeBodies
from taskharbor.server.limits import read_body

FIELDS_MAX = 2_000  # a page of ticked boxes, and the other fields
FORM = "application/x-www-form-urlencoded"


async def read_form(request: Request, bodies: LargeBodies, caller: Caller | None) -> bytes:
    """Read the body, within the limits of REST."""
    with bodies.place(NO_ADDRESS if caller is None else caller.key) as place:
        body = await read_body(request, place)
    kind = request.headers.get("content-type", "")
    if body and kind.partition(";")[0].strip().lower() != FORM:
        raise ApiError(415, "not_a_form", f"the body must be a form: {FORM}")
    return body


def parsed_form(body: bytes, kind: type[Any] | None) -> Any:
    """Convert the fields of a form to a type. A field that is left empty counts as not sent."""
    try:
        text = body.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=False, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise malformed(f"the form cannot be read: {reason_of(error)}") from None
    if kind is None:
        if pairs:
            raise malformed("this form takes no fields")
        return None
    lists = {field.encode_name for field in msgspec.structs.fields(kind) if _is_list(field.type)}
    given: dict[str, Any] = {name: [] for name, _ in pairs if name in lists}
    for name, value in pairs:
        if name in lists:
            given[name].append(value)
        elif name in given:
            raise malformed(f"the field {name[:50]} is given twice")
        else:
            given[name] = value.replace("\r\n", "\n")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise malformed(f"the form is not as expected: {reason_of(error)}") from None


def _is_list(kind: Any) -> bool:
    return kind is list or get_origin(kind) is list or any(_is_list(inner) for inner in get_args(kind))
