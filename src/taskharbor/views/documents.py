"""The documents that the REST interface returns and that `--json` prints: what they have in common.

Each document is one type. It is built from what the client returns, msgspec encodes it, and the OpenAPI document
describes it, so that what is described is what is served. The documents of a subject are in the module named after it,
those of jobs in `job_documents`. What callers send is in `taskharbor.server.requests`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, Struct

from taskharbor.clock import MAX_SECONDS, from_micros

Uuid = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Time = Annotated[datetime, Meta(tz=True)]
Delay = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description="Seconds.")]


class Document(Struct, rename="camel"):
    """A document with names in camelCase. Later versions may add fields."""

    @classmethod
    def of(cls, source: Any, **others: Any) -> Self:
        """Build the document of `source`: each field is its attribute of that name, unless `others` has the field."""
        fields = {name: getattr(source, name) for name in cls.__struct_fields__ if name not in others}
        return cls(**fields, **others)


def instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


# -- the server itself -------------------------------------------------------------------------------


class Health(Document):
    """The server responds."""

    status: Literal["ok"]


class Ready(Document):
    """The store can be reached, and its schema is right."""

    status: Literal["ready"]


class ErrorBody(Document):
    """What went wrong."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorDocument(Document):
    """The shape of every error."""

    error: ErrorBody
