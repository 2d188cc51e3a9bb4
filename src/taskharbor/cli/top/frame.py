"""One look at a store, and what changed since the look before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from taskharbor.cli.screen import Cell
from taskharbor.cli.stats import doing, told_to_end
from taskharbor.client.handle import Job
from taskharbor.client.queues import Queue
from taskharbor.views.workers import workers_of

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

RUNNING_MAX = 50  # running jobs that are looked up, the longest first
FAILURES_MAX = 10


class Frame(Struct, frozen=True):
    at: float  # by a clock that never goes back
    took: float  # seconds
    counts: dict[str, int]
    queues: list[Queue]
    workers: list[dict[str, Any]]
    failures: list[Job[Any]]


class Rates(Struct, frozen=True):
    """A second, from what the counts became between two looks. Jobs that were deleted meanwhile count for less."""

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
    """Reads only, a bounded number of them, whatever the store holds."""
    begun = time.monotonic()
    counts = await harbor.jobs.acounts()
    queues = await harbor.queues.alist()
    workers = await workers_of(harbor, running_max=RUNNING_MAX)
    failures = list(await harbor.dlq.alist(limit=FAILURES_MAX))
    ended = time.monotonic()
    return Frame(ended, ended - begun, counts, queues, workers, failures)


def rates_between(before: Frame, after: Frame) -> Rates:
    seconds = max(after.at - before.at, 1e-6)

    def rate(was: int, now: int) -> float:
        return max(0, now - was) / seconds

    return Rates(
        enqueued=rate(sum(before.counts.values()), sum(after.counts.values())),
        succeeded=rate(before.counts["succeeded"], after.counts["succeeded"]),
        dead=rate(before.counts["dead"], after.counts["dead"]),
    )


# -- what is shown -------------------------------------------------------------------------------


def headline(frame: Frame, rates: Rates | None) -> list[str]:
    states = "  ".join(f"{state} {count:,}" for state, count in frame.counts.items())
    if rates is None:
        return [states]
    return [
        states,
        f"a second: {rates.enqueued:,.1f} enqueued, {rates.succeeded:,.1f} succeeded, {rates.dead:,.1f} dead",
    ]


def tables(frame: Frame, rows_max: int) -> list[Table]:
    queues = sorted(frame.queues, key=lambda queue: (-queue.ready, -queue.running, queue.name))
    running = sorted(
        ((worker["worker"], job) for worker in frame.workers for job in worker["running"]),
        key=lambda entry: -entry[1]["seconds"],
    )
    return [
        Table(
            _title("queues", len(queues), rows_max),
            ("QUEUE", "PAUSED", "READY", "SCHEDULED", "RUNNING", "OLDEST"),
            [
                (
                    queue.name,
                    queue.paused,
                    queue.ready,
                    queue.scheduled,
                    queue.running,
                    queue.oldest_ready_age,
                )
                for queue in queues[:rows_max]
            ],
            "no queue holds unfinished jobs",
        ),
        Table(
            _title("workers", len(frame.workers), rows_max),
            ("WORKER", "CLAIMED", "EXPIRED", "LONGEST"),
            [
                (worker["worker"], worker["open"], worker["expired"], doing(worker["running"][:1]))
                for worker in frame.workers[:rows_max]
            ],
            "no worker holds a job",
            ("EXPIRED",),
        ),
        Table(
            _title("running jobs", len(running), rows_max),
            ("ID", "TASK", "FOR", "WORKER", "NOTE"),
            [
                (job["id"], job["task"], doing_for(job), worker, told_to_end(job).strip(" ()"))
                for worker, job in running[:rows_max]
            ],
            "nothing has run for longer than a heartbeat",
            ("WORKER",),
        ),
        Table(
            _title("dead jobs", frame.counts["dead"], min(rows_max, FAILURES_MAX)),
            ("ID", "TASK", "REASON", "FINISHED", "ERROR"),
            [
                (job.id, job.task, job.reason, job.finished_at, first_line(job.error))
                for job in frame.failures[:rows_max]
            ],
            "none",
            ("REASON", "FINISHED"),
        ),
    ]


def document(frame: Frame, rates: Rates | None) -> dict[str, Any]:
    from taskharbor.views import documents

    return {
        "counts": frame.counts,
        "rates": None
        if rates is None
        else {"enqueued": rates.enqueued, "succeeded": rates.succeeded, "dead": rates.dead},
        "queues": [documents.of_queue(queue) for queue in frame.queues],
        "workers": frame.workers,
        "failures": [documents.of_job(job) for job in frame.failures],
    }


def doing_for(job: dict[str, Any]) -> str:
    from taskharbor.cli.screen import span

    return span(job["seconds"])


def first_line(text: str | None) -> str | None:
    return None if text is None else text.split("\n", 1)[0]


def _title(name: str, count: int, shown: int) -> str:
    return f"{name} ({shown} of {count:,})" if count > shown else name
