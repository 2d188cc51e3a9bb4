"""`taskharbor stats`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.queues import tell_queues
from taskharbor.cli.screen import span
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.queues import Queue


@click.command
@with_session
def stats(session: Session) -> None:
    """Show counts, queues and what the workers do.

    A worker that has just started or vanished may take a minute to appear or disappear. A job is named
    under its worker once it has run for longer than a heartbeat. One that should have ended by its timeout, or
    was asked to, and has not, is marked.

    \b
    Example:
      taskharbor stats --url sqlite:///harbor.db
    """

    from taskharbor.views.workers import workers_of

    async def work(harbor: Harbor) -> tuple[dict[str, int], list[Queue], list[dict[str, Any]]]:
        return await harbor.jobs.acounts(), await harbor.queues.alist(), await workers_of(harbor)

    counts, queues, workers = session.run(work)
    screen = session.screen
    if screen.as_json:
        from taskharbor.views import documents

        screen.document(
            {"counts": counts, "queues": [documents.of_queue(q) for q in queues], "workers": workers}
        )
        return
    screen.pairs(dict(counts))
    screen.heading("queues")
    tell_queues(screen, queues)
    screen.heading("workers")
    screen.table(
        ("WORKER", "SLOTS", "CLAIMED", "LEASE", "EXPIRED", "RUNNING JOBS"),
        [
            (
                worker["worker"],
                worker["slots"],
                worker["open"],
                worker["expiresAt"],
                worker["expired"],
                doing(worker["running"]),
            )
            for worker in workers
        ],
        empty="no worker is there",
        optional=("EXPIRED", "LEASE"),
    )


def doing(running: Iterable[dict[str, Any]]) -> str:
    return ", ".join(f"{job['task']} for {span(job['seconds'])}{told_to_end(job)}" for job in running)


def told_to_end(job: dict[str, Any]) -> str:
    """What a handler in a thread does not heed is seen here."""
    if job["overdueSeconds"] is not None:
        return f" (should have ended {span(job['overdueSeconds'])} ago: timeout)"
    return " (cancel requested)" if job["cancelRequested"] else ""
