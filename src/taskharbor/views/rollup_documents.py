"""The documents of what workers have counted, and of the slots that follow from it."""

from __future__ import annotations

from typing import Annotated, Any, Self

from msgspec import Meta

from taskharbor.client.stats import Point
from taskharbor.drivers.contract.rollups import Period
from taskharbor.views.documents import Document, Time

ROLLUPS_NOTE = (
    "not exact counts: workers write them every ten seconds, and one that is killed loses its last ones"
)


class TimesDocument(Document):
    """Times in seconds. Percentiles are interpolated in buckets; null without a time."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class PointDocument(Document):
    """What workers counted in one minute or hour: attempts by outcome, and how long jobs waited and ran."""

    at: Annotated[Time, Meta(description="Its begin.")]
    seconds: Annotated[int, Meta(description="Its length.")]
    enqueued: Annotated[int, Meta(description="Jobs claimed for the first time.")]
    started: int
    succeeded: int
    failed: int
    retried: int
    dead: int
    lost: int
    cancelled: int
    wait: TimesDocument
    duration: TimesDocument

    @classmethod
    def of(cls, source: Point, **others: Any) -> Self:
        times = {name: TimesDocument.of(getattr(source, name)) for name in ("wait", "duration")}
        return super().of(source, **times, **others)


class Series(Document):
    """What workers counted, by minute or hour. These are not exact counts."""

    items: list[PointDocument]
    total: Annotated[PointDocument, Meta(description="All of these periods together.")]
    step: Period
    queue: str | None
    task: str | None
    note: Annotated[str, Meta(examples=[ROLLUPS_NOTE])] = ROLLUPS_NOTE
    next_cursor: None = None


class QueueDemandDocument(Document):
    """How many slots a queue needs, and what that follows from."""

    queue: str
    slots: int
    ready: int
    running: int
    oldest_ready_seconds: float
    arrivals_per_second: Annotated[float, Meta(description="First claims and retries, from the roll-ups.")]
    mean_seconds: Annotated[float, Meta(description="The mean duration, from the roll-ups.")] | None
    paused: bool


class Autoscale(Document):
    """How many slots are needed so that no ready job waits for longer than an age."""

    slots: Annotated[int, Meta(description="Of all queues below together.")]
    age: Annotated[float, Meta(description="Seconds.")]
    queues: list[QueueDemandDocument]
    note: Annotated[str, Meta(examples=[ROLLUPS_NOTE])] = f"arrivals and durations are {ROLLUPS_NOTE}"
