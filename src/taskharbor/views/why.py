"""The document of `why`: the reason, the sentence, and the facts behind it."""

from __future__ import annotations

from typing import Annotated, Any, Self

from msgspec import Meta

from taskharbor.records import Reason, State
from taskharbor.rules.why_facts import Why, WhyCode
from taskharbor.views.documents import Document, Time, Uuid


class AwaitedDocument(Document):
    """A job that another one waits for."""

    id: Uuid
    task: str | None
    state: State | None


class WhyFactsDocument(Document):
    """The facts behind a reason. What does not bear on it is null."""

    at: Annotated[Time, Meta(description="The store's time of this answer.")]
    state: State
    queue: str
    task: str
    reason: Annotated[Reason, Meta(description="Why the job is finished, or was put back.")] | None
    error: str | None
    attempts: Annotated[int, Meta(description="Failures in the current run.")] | None
    max_attempts: int | None
    finished_at: Time | None
    until: Annotated[Time, Meta(description="When this reason ends by itself.")] | None
    since: (
        Annotated[
            Time, Meta(description="Since when the job runs, or its queue is paused, or its task is held.")
        ]
        | None
    )
    by: Annotated[str, Meta(description="Who paused the queue or holds the task.")] | None
    dead_at: Annotated[Time, Meta(description="After which a job that is put back is dead.")] | None
    worker: Annotated[str, Meta(description="The worker that holds the job.")] | None
    schedule: str | None
    held_task: str | None
    held_tag: str | None
    waits_for: Annotated[list[AwaitedDocument], Meta(description="The first ones.")] | None
    waits_for_count: Annotated[int, Meta(description="1,001 means more than 1,000.")] | None
    workers: Annotated[int, Meta(description="Workers that serve the job.")] | None
    slots: Annotated[int, Meta(description="Slots of these workers.")] | None
    claimed: Annotated[int, Meta(description="Jobs that these workers have claimed and not settled.")] | None
    running: Annotated[int, Meta(description="Of these, reported as running.")] | None
    before: Annotated[int, Meta(description="Jobs before it; 10,001 means more than 10,000.")] | None
    per_second: Annotated[float, Meta(description="Jobs that began, in the last minutes.")] | None
    seconds: Annotated[float, Meta(description="Until the job begins, at that rate.")] | None
    records_age_seconds: (
        Annotated[float, Meta(description="Age of the oldest workers' record that this rests on.")] | None
    )


class WhyDocument(Document):
    """Why a job does not run, or does."""

    id: Uuid
    code: WhyCode
    sentence: Annotated[str, Meta(description="For a person; its words may change.")]
    facts: WhyFactsDocument

    @classmethod
    def of(cls, source: Why, **others: Any) -> Self:
        """Build the document of a reason; `id` is the job's."""
        awaited = source.facts.waits_for
        facts = WhyFactsDocument.of(
            source.facts,
            waits_for=None if awaited is None else [AwaitedDocument.of(each) for each in awaited],
        )
        return super().of(source, facts=facts, **others)
