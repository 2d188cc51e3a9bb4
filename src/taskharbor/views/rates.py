"""Rates that people judge a system by, from what workers counted."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.views.documents import Document
from taskharbor.views.queue_documents import QueueDocument
from taskharbor.views.rollup_documents import PointDocument
from taskharbor.views.workers import WorkerDocument

RECENT_POINTS = 6  # the last one is not over yet; with minutes, these are the last five to six minutes


class Rates(Document):
    """What a period's counts come to."""

    throughput: float  # attempts that ended in a second
    failure: float | None  # the share of them that failed
    retry: float | None  # the share of them after which the job was tried again


class Backlog(Document):
    """The jobs that could run now, and how long they take at the present rate."""

    ready: int
    oldest_seconds: float | None
    finishing: float  # jobs that finished in a second, of late
    drain_seconds: float | None  # None: nothing finishes, or nothing is ready


def rates_of(total: PointDocument) -> Rates:
    """Return the rates of a period."""
    ended = total.succeeded + total.failed + total.lost + total.cancelled
    return Rates(
        ended / total.seconds if total.seconds else 0.0,
        total.failed / ended if ended else None,
        total.retried / ended if ended else None,
    )


def backlog_of(queues: Sequence[QueueDocument], minutes: Sequence[PointDocument]) -> Backlog:
    """Return the backlog of these queues, without those that are paused, from the newest points of a series.

    Give it only queues that a worker serves: the others do not drain.
    """
    running = [queue for queue in queues if not queue.paused]
    ready = sum(queue.ready for queue in running)
    recent = minutes[-RECENT_POINTS:]
    finished = sum(point.succeeded + point.dead + point.cancelled for point in recent)
    finishing = finished / max(1, sum(point.seconds for point in recent))
    ages = [queue.oldest_ready_seconds for queue in running if queue.oldest_ready_seconds is not None]
    return Backlog(
        ready, max(ages, default=None), finishing, ready / finishing if ready and finishing else None
    )


def serving(workers: Sequence[WorkerDocument], queue: str) -> list[WorkerDocument]:
    """Return the live workers that take jobs of this queue."""
    return [
        worker
        for worker in workers
        if not worker.expired
        and worker.slots is not None
        and (worker.queues is None or queue in worker.queues)
    ]
