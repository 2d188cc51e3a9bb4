"""The documents of error groups and of replays."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from taskharbor.views.documents import Document, Time, Uuid


class ErrorGroupDocument(Document):
    """Dead jobs whose latest attempts failed with the same fingerprint."""

    fingerprint: Annotated[str, Meta(description="16 hexadecimal digits: the cause.")]
    count: int
    first_seen: Annotated[Time, Meta(description="When the first of these jobs died.")]
    last_seen: Time
    tasks: Annotated[list[str], Meta(description="The tasks of these jobs, at most 20.")]
    versions: Annotated[
        list[str], Meta(description="The versions of the code that they failed in, at most 20.")
    ]
    sample_id: Annotated[Uuid, Meta(description="The newest of these jobs.")]
    error: Annotated[str, Meta(description="The sample's error, its first 200 characters.")] | None


class ErrorGroups(Document):
    """Groups of dead jobs, the largest first."""

    items: list[ErrorGroupDocument]
    next_cursor: None
