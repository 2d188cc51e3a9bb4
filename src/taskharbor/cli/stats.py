"""`taskharbor stats`"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import click

from taskharbor.cli.parameters import duration
from taskharbor.cli.queues import tell_queues
from taskharbor.cli.screen import instant, span
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.views.workers import RunningDocument


@click.command
@click.option("--series", is_flag=True, help="Show what workers counted in each minute or hour instead.")
@click.option(
    "--step",
    type=click.Choice(["minute", "hour"]),
    default="minute",
    show_default=True,
    help="With --series.",
)
@click.option(
    "--since",
    type=duration,
    metavar="DURATION",
    help="How far back, with --series.  [default: 1h for minutes, 1d for hours]",
)
@click.option("--queue", metavar="NAME", help="Only this queue, with --series.")
@click.option("--task", metavar="NAME", help="Only this task, with --series.")
@with_session
def stats(
    session: Session,
    series: bool,
    step: Literal["minute", "hour"],
    since: float | None,
    queue: str | None,
    task: str | None,
) -> None:
    """Show counts, queues and what the workers do.

    A worker that has just started or died may take a minute to appear or disappear. A worker's jobs are
    listed once they have run for longer than a heartbeat. A job that runs on after its timeout, or after
    a request to cancel it, is marked.

    With --series: the minutes of the last hour in which workers counted anything. Those are not exact counts:
    workers write them every ten seconds, and one that is killed loses its last ones.

    \b
    Example:
      taskharbor stats --url sqlite:///harbor.db
      taskharbor stats --series --step hour --since 7d --queue mail
    """
    if series:
        show_series(session, step, since, queue, task)
        return
    if since is not None or queue is not None or task is not None:
        raise click.UsageError("--since, --queue and --task are for --series: add it")
    from taskharbor.views.workers import stats_of

    found = session.run(stats_of)
    screen = session.screen
    if screen.as_json:
        screen.document(found)
        return
    screen.pairs({str(state): count for state, count in found.counts.items()})
    screen.heading("queues")
    tell_queues(screen, found.queues)
    screen.heading("workers")
    screen.table(
        ("WORKER", "SLOTS", "CLAIMED", "LEASE", "EXPIRED", "RUNNING JOBS"),
        [
            (
                worker.worker,
                worker.slots,
                worker.open,
                worker.expires_at,
                worker.expired,
                doing(worker.running),
            )
            for worker in found.workers
        ],
        empty="no worker is running",
        optional=("EXPIRED", "LEASE"),
    )


def show_series(
    session: Session,
    step: Literal["minute", "hour"],
    since: float | None,
    queue: str | None,
    task: str | None,
) -> None:
    from taskharbor.drivers.contract.rollups import Period
    from taskharbor.views.rollup_documents import ROLLUPS_NOTE, PointDocument, Series

    ago = None if since is None else timedelta(seconds=since)
    points, total = session.run(lambda harbor: harbor.stats._series_and_total(queue, task, ago, step))
    screen = session.screen
    if screen.as_json:
        items = [PointDocument.of(point) for point in points]
        screen.document(Series(items, PointDocument.of(total), Period(step), queue, task))
        return
    screen.table(
        SERIES_COLUMNS,
        [
            (
                instant(point.at),
                *(getattr(point, name) for name in COUNTS),
                *(
                    _seconds(each)
                    for times in (point.wait, point.duration)
                    for each in (times.p50, times.p95)
                ),
            )
            for point in points
            if any(getattr(point, name) for name in COUNTS)
        ],
        empty="workers have counted nothing in this time",
        optional=("LOST", "CANCELLED", "RETRIED", "WAIT P50", "RAN P50"),
    )
    screen.note(ROLLUPS_NOTE)


COUNTS = ("enqueued", "started", "succeeded", "failed", "retried", "dead", "lost", "cancelled")
SERIES_COLUMNS = (
    "BEGIN", *(name.upper() for name in COUNTS), "WAIT P50", "WAIT P95", "RAN P50", "RAN P95",
)  # fmt: skip


def _seconds(value: float | None) -> float | None:
    """Three digits are more than buckets can tell."""
    return None if value is None else float(f"{value:.3g}")


def doing(running: Iterable[RunningDocument]) -> str:
    return ", ".join(f"{job.task} for {span(job.seconds)}{ignored_request(job)}" for job in running)


def ignored_request(job: RunningDocument) -> str:
    """Say that the handler runs on after its timeout or a request to cancel, as a handler in a thread can."""
    if job.overdue_seconds is not None:
        return f" (should have ended {span(job.overdue_seconds)} ago: timeout)"
    return " (cancel requested)" if job.cancel_requested else ""
