"""The documents of queues."""

from __future__ import annotations

from typing import Annotated, Any, Self

from msgspec import Meta

from taskharbor.client.queues import Queue
from taskharbor.views.documents import Document, Time


class QueueDocument(Document):
    """A queue in its current state."""

    name: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    oldest_ready_at: Time | None
    oldest_ready_seconds: float | None
    paused_by: Annotated[str, Meta(description="Who paused it, if that is known.")] | None
    paused_since: Time | None

    @classmethod
    def of(cls, source: Queue, **others: Any) -> Self:
        age = source.oldest_ready_age
        return super().of(source, oldest_ready_seconds=None if age is None else age.total_seconds(), **others)


class QueueList(Document):
    """Every queue that has runnable or running jobs, or is paused."""

    items: list[QueueDocument]
    next_cursor: None


class QueueFlag(Document):
    """Whether a queue is paused."""

    name: str
    paused: bool
