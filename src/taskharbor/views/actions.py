"""The documents of the audit."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from taskharbor.views.documents import Document, Time, Uuid


class ActionDocument(Document):
    """Who did what and when. No payload, result or secret is in it."""

    id: Uuid
    at: Annotated[Time, Meta(description="When its first change was made.")]
    verb: Annotated[str, Meta(examples=["job.cancel", "queue.pause"])]
    actor: Annotated[str, Meta(description="Who; null if that is not known.")] | None
    job_id: Annotated[str, Meta(description="The job, if it concerned one.")] | None
    subject: (
        Annotated[
            str,
            Meta(description="The queue, schedule, workflow, token or task that it concerned."),
        ]
        | None
    )
    filter: Annotated[dict[str, Any], Meta(description="What selected the jobs of a bulk action.")] | None
    details: (
        Annotated[
            dict[str, Any],
            Meta(description="What was asked for; `***` for a value that is not recorded."),
        ]
        | None
    )
    count: Annotated[int, Meta(description="Jobs that it changed, or asked to end.")]


class ActionPage(Document):
    """Actions, the latest first. At the end, nextCursor is null."""

    items: list[ActionDocument]
    next_cursor: str | None
