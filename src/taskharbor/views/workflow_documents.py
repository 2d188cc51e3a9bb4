"""The documents of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from msgspec import Meta

from taskharbor.views.documents import Document, Time, Uuid
from taskharbor.views.job_documents import JobDocument
from taskharbor.workflow.handle import WorkflowState

if TYPE_CHECKING:
    from taskharbor.workflow import Workflow


class WorkflowDocument(Document):
    """A workflow in its current state: how many of its jobs are in which state."""

    id: Uuid
    state: WorkflowState
    total: int
    succeeded: int
    dead: int
    cancelled: int
    waiting: int
    active: int
    on_failure: Literal["wait", "cancel"]
    idempotency_key: str | None
    enqueued_at: Time
    shape: Annotated[
        Any,
        Meta(description="How it was composed: chains, groups and chords of the indexes of its jobs."),
    ]

    @classmethod
    def of(cls, source: Workflow, **others: Any) -> Self:
        return super().of(source, total=source.progress.total, **source.counts, **others)


class WorkflowPage(Document):
    """Workflows, newest first. A page may be short; at the end, nextCursor is null."""

    items: list[WorkflowDocument]
    next_cursor: str | None


class WorkflowWithJobs(WorkflowDocument):
    """A workflow with its jobs."""

    jobs: list[JobDocument]
