"""One frame: what a store holds now, and what changed since the previous frame."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from taskharbor.cli.queues import NO_QUEUES, QUEUE_COLUMNS, queue_rows
from taskharbor.cli.screen import Cell, span
from taskharbor.cli.stats import doing, ignored_request
from taskharbor.client.handle import Job
from taskharbor.records import State
from taskharbor.views.job_documents import JobDocument
from taskharbor.views.workers import Stats, stats_of

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

RUNNING_MAX = 50  # running jobs that are looked up, the longest first
FAILURES_MAX = 10


class Frame(Struct, frozen=True):
    at: float  # by a clock that never goes back
    took: float  # seconds
    stats: Stats
    failures: list[Job[Any]]


class Rates(Struct, frozen=True):
    """Jobs a second, by how the counts changed between two frames. Deleted jobs lower them."""

    enqueued: float
    succeeded: float
    dead: float


class Table(Struct, frozen=True):
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    empty: str
    optional: tuple[str, ...] = ()


async def look(harbor: Harbor) -> Frame:
    """Read one frame, with a bounded number of reads however large the store is."""
    begun = time.monotonic()
    stats = await stats_of(harbor, RUNNING_MAX)
    failures = list(await harbor.dlq.alist(limit=FAILURES_MAX))
    ended = time.monotonic()
    return Frame(ended, ended - begun, stats, failures)


def rates_between(before: Frame, after: Frame) -> Rates:
    seconds = max(after.at - before.at, 1e-6)

    def rate(was: int, now: int) -> float:
        return max(0, now - was) / seconds

    was, now = before.stats.counts, after.stats.counts
    return Rates(
        enqueued=rate(sum(was.values()), sum(now.values())),
        succeeded=rate(was[State.SUCCEEDED], now[State.SUCCEEDED]),
        dead=rate(was[State.DEAD], now[State.DEAD]),
    )


# -- what is shown -------------------------------------------------------------------------------


def headline(frame: Frame, rates: Rates | None) -> list[str]:
    states = "  ".join(f"{state} {count:,}" for state, count in frame.stats.counts.items())
    if rates is None:
        return [states]
    return [
        states,
        f"a second: {rates.enqueued:,.1f} enqueued, {rates.succeeded:,.1f} succeeded, {rates.dead:,.1f} dead",
    ]


def tables(frame: Frame, rows_max: int) -> list[Table]:
    stats = frame.stats
    queues = sorted(stats.queues, key=lambda queue: (-queue.ready, -queue.running, queue.name))
    running = sorted(
        ((worker.worker, job) for worker in stats.workers for job in worker.running),
        key=lambda entry: -entry[1].seconds,
    )
    return [
        Table(
            _title("queues", len(queues), rows_max),
            QUEUE_COLUMNS,
            queue_rows(queues[:rows_max]),
            NO_QUEUES,
        ),
        Table(
            _title("workers", len(stats.workers), rows_max),
            ("WORKER", "CLAIMED", "EXPIRED", "LONGEST"),
            [
                (worker.worker, worker.open, worker.expired, doing(worker.running[:1]))
                for worker in stats.workers[:rows_max]
            ],
            "no worker is running",
            ("EXPIRED",),
        ),
        Table(
            _title("running jobs", len(running), rows_max),
            ("ID", "TASK", "FOR", "WORKER", "NOTE"),
            [
                (job.id, job.task, span(job.seconds), worker, ignored_request(job).strip(" ()"))
                for worker, job in running[:rows_max]
            ],
            "nothing has run for longer than a heartbeat",
            ("WORKER",),
        ),
        Table(
            _title("dead jobs", stats.counts[State.DEAD], min(rows_max, FAILURES_MAX)),
            ("ID", "TASK", "REASON", "FINISHED", "ERROR"),
            [
                (job.id, job.task, job.reason, job.finished_at, first_line(job.error))
                for job in frame.failures[:rows_max]
            ],
            "none",
            ("REASON", "FINISHED"),
        ),
    ]


class TopDocument(Stats):
    """A frame as `--json` prints it."""

    rates: Rates
    failures: list[JobDocument]


def document(frame: Frame, rates: Rates) -> TopDocument:
    failures = [JobDocument.of(job) for job in frame.failures]
    return TopDocument.of(frame.stats, rates=rates, failures=failures)


def first_line(text: str | None) -> str | None:
    return None if text is None else text.split("\n", 1)[0]


def _title(name: str, count: int, shown: int) -> str:
    return f"{name} ({shown} of {count:,})" if count > shown else name
