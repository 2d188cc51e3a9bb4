"""The documents of counts and of operations on all jobs that match."""

from __future__ import annotations

from typing import Annotated, Any, Self

from msgspec import Meta

from taskharbor.client.filters import Count
from taskharbor.views.documents import Document

More = Annotated[bool, Meta(description="Whether there are more than were counted.")]
DryRun = Annotated[bool, Meta(description="Whether this many would be acted on, and none was.")]


class CountDocument(Document):
    """How many jobs match, counted up to 10,000."""

    count: int
    more: More

    @classmethod
    def of(cls, source: Any, **others: Any) -> Self:
        return cls(int(source), isinstance(source, Count) and source.more)


class BulkDocument(Document, omit_defaults=True):
    """What every bulk operation answers, after the number of jobs."""

    @classmethod
    def of(cls, source: Any, **others: Any) -> Self:
        """Build the document of a number, which a dry run has counted."""
        is_dry_run = isinstance(source, Count)
        return cls(int(source), is_dry_run, is_dry_run and source.more)


class Requeued(BulkDocument, omit_defaults=True):
    """How many jobs were requeued."""

    requeued: int
    dry_run: DryRun = False
    more: More = False


class Discarded(BulkDocument, omit_defaults=True):
    """How many jobs were discarded."""

    discarded: int
    dry_run: DryRun = False
    more: More = False


class Cancelled(BulkDocument, omit_defaults=True):
    """How many jobs were cancelled, or asked to stop."""

    cancelled: int
    dry_run: DryRun = False
    more: More = False


class Deleted(BulkDocument, omit_defaults=True):
    """How many jobs were deleted."""

    deleted: int
    dry_run: DryRun = False
    more: More = False


class Changed(BulkDocument, omit_defaults=True):
    """How many jobs were changed."""

    changed: int
    dry_run: DryRun = False
    more: More = False


BULK_DOCUMENTS: dict[str, type[BulkDocument]] = {
    "requeued": Requeued,
    "discarded": Discarded,
    "cancelled": Cancelled,
    "deleted": Deleted,
    "changed": Changed,
}
