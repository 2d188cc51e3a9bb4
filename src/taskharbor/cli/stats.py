"""`taskharbor stats`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from taskharbor.cli.queues import tell_queues
from taskharbor.cli.screen import span
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.views.documents import RunningDocument


@click.command
@with_session
def stats(session: Session) -> None:
    """Show counts, queues and what the workers do.

    A worker that has just started or died may take a minute to appear or disappear. A worker's jobs are
    listed once they have run for longer than a heartbeat. A job that runs on after its timeout, or after
    a request to cancel it, is marked.

    \b
    Example:
      taskharbor stats --url sqlite:///harbor.db
    """
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


def doing(running: Iterable[RunningDocument]) -> str:
    return ", ".join(f"{job.task} for {span(job.seconds)}{ignored_request(job)}" for job in running)


def ignored_request(job: RunningDocument) -> str:
    """Say that the handler runs on after its timeout or a request to cancel, as a handler in a thread can."""
    if job.overdue_seconds is not None:
        return f" (should have ended {span(job.overdue_seconds)} ago: timeout)"
    return " (cancel requested)" if job.cancel_requested else ""
