"""`taskharbor dlq …`: the dead-letter queue."""

from __future__ import annotations

from datetime import datetime

import click

from taskharbor.cli.confirming import confirm, yes_option
from taskharbor.cli.jobs import PAGE_MAX, page_of, tell_job, tell_page_as_json
from taskharbor.cli.parameters import instant
from taskharbor.cli.session import Session, with_session


@click.group(no_args_is_help=False)
def dlq() -> None:
    """List dead jobs; requeue or discard them.

    \b
    Example:
      taskharbor dlq list --queue mail
    """


@dlq.command("list")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--tag", metavar="TAG", help="Only jobs with this tag.")
@click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=50, show_default=True)
@click.option("--cursor", metavar="ID", help="Continue after the previous list.")
@with_session
def list_dead(session: Session, /, limit: int, cursor: str | None, **where: str | None) -> None:
    """Show dead jobs and why they died, newest first.

    \b
    Example:
      taskharbor dlq list --task email:send
    """
    jobs, next_cursor = session.run(lambda harbor: page_of(harbor, limit, cursor, {**where, "state": "dead"}))
    screen = session.screen
    if screen.as_json:
        tell_page_as_json(screen, jobs, next_cursor)
        return
    screen.table(
        ("ID", "TASK", "QUEUE", "REASON", "FAILURES", "WHEN", "ERROR"),
        [(job.id, job.task, job.queue, job.reason, job.attempts, job.finished_at, job.error) for job in jobs],
        empty="no dead jobs",
        optional=("FAILURES", "QUEUE", "WHEN"),
    )
    if next_cursor is not None:
        screen.note(f"there are more: --cursor {next_cursor}")


@dlq.command("requeue")
@click.argument("job_id", metavar="ID")
@click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--keep-attempts", is_flag=True, help="Keep the count of failures so far.")
@click.option("--force", is_flag=True, help="Even if it is at_most_once and may have been executed.")
@with_session
def requeue(session: Session, job_id: str, run_at: datetime | None, keep_attempts: bool, force: bool) -> None:
    """Start a new run of the dead job ID.

    \b
    Example:
      taskharbor dlq requeue 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    job = session.run(
        lambda harbor: harbor.dlq.arequeue(job_id, run_at, reset_attempts=not keep_attempts, force=force)
    )
    tell_job(session.screen, job, f"{job.state} again")


@dlq.command("requeue-all")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--tag", metavar="TAG", help="Only jobs with this tag.")
@click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--keep-attempts", is_flag=True, help="Keep the count of failures so far.")
@with_session
def requeue_all(
    session: Session, /, run_at: datetime | None, keep_attempts: bool, **where: str | None
) -> None:
    """Start a new run of every dead job that matches.

    It skips at_most_once jobs: requeue them one by one, with --force.

    \b
    Example:
      taskharbor dlq requeue-all --queue mail
    """
    from taskharbor.client.filters import job_filter

    requeued = session.run(
        lambda harbor: harbor.dlq.arequeue_all(
            job_filter(**where), run_at=run_at, reset_attempts=not keep_attempts
        )
    )
    if session.screen.as_json:
        from taskharbor.views.documents import Requeued

        session.screen.document(Requeued(requeued))
    else:
        session.screen.line(f"{requeued} requeued")


@dlq.command("discard")
@click.argument("job_id", metavar="ID")
@with_session
def discard(session: Session, job_id: str) -> None:
    """Discard the dead job ID: it never runs again.

    \b
    Example:
      taskharbor dlq discard 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    tell_job(session.screen, session.run(lambda harbor: harbor.dlq.adiscard(job_id)), "discarded")


@dlq.command("discard-all")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--tag", metavar="TAG", help="Only jobs with this tag.")
@yes_option
@with_session
def discard_all(session: Session, /, yes: bool, **where: str | None) -> None:
    """Discard every dead job that matches: they never run again.

    \b
    Example:
      taskharbor dlq discard-all --queue mail --yes
    """
    from taskharbor.client.filters import job_filter

    asked = job_filter(**where)
    if not yes:
        named = " and ".join(f"{name} {value}" for name, value in where.items() if value is not None)
        confirm("discard", f"every dead job of {named or 'the store'}")
    discarded = session.run(lambda harbor: harbor.dlq.adiscard_all(asked))
    if session.screen.as_json:
        from taskharbor.views.documents import Discarded

        session.screen.document(Discarded(discarded))
    else:
        session.screen.line(f"{discarded} discarded")
