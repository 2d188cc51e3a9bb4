"""The one shape of every error: `{"error": {"code", "message", "details"}}`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from starlette.responses import Response

from taskharbor.codec import clean_text
from taskharbor.errors import (
    ConfigurationError,
    JobConflict,
    MissingCapability,
    PayloadError,
    PayloadTooLarge,
    StoreError,
    StoreUnavailable,
)
from taskharbor.server.requests import Input
from taskharbor.views.documents import Document, ErrorBody, ErrorDocument

logger = logging.getLogger("taskharbor.server")

MESSAGE_MAX = 2_000
RETRY_AFTER_SECONDS = "5"


class ApiError(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = dict(details or {})
        self.headers = dict(headers or {})

    def response(self) -> Response:
        encoded = encoded_error(self.code, clean_text(self.message, MESSAGE_MAX), self.details)
        return Response(encoded, self.status, self.headers, media_type="application/json")


def encoded_error(code: str, message: str, details: dict[str, Any]) -> bytes:
    return msgspec.json.encode(ErrorDocument(ErrorBody(code, message, details)))


def malformed(message: str) -> ApiError:
    """Return the error of a request that does not match the OpenAPI document."""
    return ApiError(400, "malformed", message)


@cache
def _names() -> tuple[re.Pattern[str], dict[str, str]]:
    """Return a pattern of the names that documents write in camelCase, unless they are quoted, and those names."""
    kinds = [*Input.__subclasses__(), *Document.__subclasses__()]
    for kind in kinds:
        kinds += kind.__subclasses__()
    fields = [field for kind in kinds for field in msgspec.structs.fields(kind)]
    names = {field.name: field.encode_name for field in fields if field.name != field.encode_name}
    quoted = r"""(?<!\w)'[^']*'|(?<!\w)"[^"]*\""""
    return re.compile(rf"{quoted}|\b({'|'.join(sorted(names, key=len, reverse=True))})\b"), names


def _as_sent(message: str) -> str:
    """Write a harbor's message with the names of the interface."""
    pattern, names = _names()
    return pattern.sub(lambda found: names[found[1]] if found[1] else found[0], message)


def api_error(error: Exception) -> ApiError:
    """Turn any exception into the error that the caller gets."""
    match error:
        case ApiError():
            return error
        case PayloadTooLarge():
            return ApiError(413, "too_large", str(error))
        case JobConflict():
            message = str(error).replace("force=True", '"force": true')
            return ApiError(409, "conflict", message, {"jobId": error.job_id})
        case LookupError() if hasattr(error, "job_id") or hasattr(error, "workflow_id"):
            return ApiError(404, "not_found", str(error))
        case MissingCapability():
            return ApiError(501, "unsupported", str(error), {"capability": error.capability})
        case ConfigurationError():
            message = str(error).replace("everything=True", '"everything": true')
            return ApiError(422, "unprocessable", _as_sent(message))
        case PayloadError():
            return ApiError(422, "unprocessable", str(error))
        case StoreError():
            # The error's text names the store, which only the operator may see.
            logger.warning("the store failed during a request: %s", error)
            ids = list(error.job_ids) if isinstance(error, StoreUnavailable) else []
            return ApiError(
                503,
                "store_unavailable",
                "the store cannot do this at the moment; try again, with the same id or idempotency key",
                {"jobIds": ids} if ids else {},
                {"Retry-After": RETRY_AFTER_SECONDS},
            )
        case _:
            logger.error("request failed", exc_info=error)
            return ApiError(500, "internal", "unexpected error; see the server's log")
