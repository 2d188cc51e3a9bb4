"""The documents of schedules."""

from __future__ import annotations

from typing import Annotated, Any, Self

from msgspec import Meta

from taskharbor.client.schedule import Schedule
from taskharbor.records import (
    AttemptStatus,
    Delivery,
    Misfire,
    State,
)
from taskharbor.views.documents import Document, Time
from taskharbor.views.retry_documents import Retry, retry_of


class ScheduleDocument(Document):
    """A schedule in its current state."""

    name: str
    application: str
    id: Annotated[str, Meta(description="The id of its job, whose history is at /jobs/{id}/history.")]
    task: str
    payload: dict[str, Any]
    queue: str
    priority: int
    schedule: str
    timezone: str
    misfire: Misfire
    misfire_grace: float
    dead_letter: bool
    paused: bool
    declared: bool
    orphaned: bool | None
    state: State
    due_at: Time | None
    next_run_at: Time | None
    attempts: int
    last_status: AttemptStatus | None
    last_finished_at: Time | None
    last_error: str | None
    max_attempts: int | None
    timeout: float | None
    retry: Retry
    delivery: Delivery
    correlation_id: str | None
    tags: list[str]
    meta: dict[str, str]
    failure_task: (
        Annotated[str, Meta(description="The task that is enqueued when a run of it fails for good.")] | None
    )

    @classmethod
    def of(cls, source: Schedule, **others: Any) -> Self:
        delivery = source.delivery or Delivery.AT_LEAST_ONCE
        return super().of(source, retry=retry_of(source.retry), delivery=delivery, **others)


class ScheduleList(Document):
    """Schedules, by name."""

    items: list[ScheduleDocument]
    next_cursor: None
