"""`taskharbor dlq …`: the dead-letter queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from taskharbor.cli.confirming import yes_option
from taskharbor.cli.filters import (
    act_on_all,
    count_option,
    dead_filters,
    dry_run_option,
    each_job,
    ids_argument,
    named,
    paged,
    tell_count,
    tell_more,
)
from taskharbor.cli.groups import brake_option, groups, start_replay
from taskharbor.cli.jobs import tell_page_as_json
from taskharbor.cli.parameters import instant
from taskharbor.cli.session import Session, with_session


@click.group(no_args_is_help=False)
def dlq() -> None:
    """List dead jobs; add, requeue or discard them.

    \b
    Example:
      taskharbor dlq list --queue mail
    """


@dlq.command("list")
@dead_filters
@paged
@count_option
@with_session
def list_dead(session: Session, /, limit: int, cursor: str | None, count: bool, **where: Any) -> None:
    """Show dead jobs and why they died, newest first.

    \b
    Examples:
      taskharbor dlq list --task email:send
      taskharbor dlq list --reason poison --count
    """
    if count:
        tell_count(session, session.run(lambda harbor: harbor.dlq.acount(**where)), "{count}")
        return
    page = session.run(lambda harbor: harbor.dlq.alist(limit=limit, cursor=cursor, **where))
    screen = session.screen
    if screen.as_json:
        tell_page_as_json(screen, page)
        return
    screen.table(
        ("ID", "TASK", "QUEUE", "REASON", "FAILURES", "WHEN", "ERROR"),
        [(job.id, job.task, job.queue, job.reason, job.attempts, job.finished_at, job.error) for job in page],
        empty="no dead jobs",
        optional=("FAILURES", "QUEUE", "WHEN"),
    )
    tell_more(session, page)


@dlq.command("add")
@ids_argument
@with_session
def add(session: Session, job_ids: tuple[str, ...]) -> None:
    """Put the jobs ID..., which have not finished and are not running, into the dead-letter queue.

    \b
    Example:
      taskharbor dlq add 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    each_job(
        session,
        job_ids,
        lambda harbor, job_id: harbor.dlq.aadd(job_id),
        lambda job: f"dead, reason {job.reason}",
    )


@dlq.command("requeue")
@ids_argument
@click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--keep-attempts", is_flag=True, help="Keep the count of failures so far.")
@click.option("--force", is_flag=True, help="Even if it is at_most_once and may have been executed.")
@with_session
def requeue(
    session: Session, job_ids: tuple[str, ...], run_at: datetime | None, keep_attempts: bool, force: bool
) -> None:
    """Start a new run of the dead jobs ID....

    \b
    Example:
      taskharbor dlq requeue 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    each_job(
        session,
        job_ids,
        lambda harbor, job_id: harbor.dlq.arequeue(
            job_id, run_at, reset_attempts=not keep_attempts, force=force
        ),
        lambda job: f"{job.state} again",
    )


@dlq.command("requeue-all")
@dead_filters
@click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--keep-attempts", is_flag=True, help="Keep the count of failures so far.")
@brake_option
@dry_run_option
@with_session
def requeue_all(
    session: Session,
    /,
    run_at: datetime | None,
    keep_attempts: bool,
    brake: float | None,
    dry_run: bool,
    **where: Any,
) -> None:
    """Start a new run of every dead job that matches.

    It skips at_most_once jobs that may have been executed: requeue them one by one, with --force.

    With --brake a job requeues them, in slices of 1, 10, 100 and then 1,000. After each slice it waits until these
    jobs have succeeded or failed, and stops if more than the share failed again in the same way.

    \b
    Examples:
      taskharbor dlq requeue-all --queue mail
      taskharbor dlq requeue-all --group 3f9c2a7be01d4c55 --brake 20%
    """
    if brake is not None and not dry_run:
        if run_at is not None or keep_attempts:
            raise click.UsageError("--brake starts new runs at once: leave out --run-at and --keep-attempts")
        start_replay(session, brake, where)
        return
    act_on_all(
        session,
        "requeue",
        "requeued",
        lambda harbor, dry: harbor.dlq.arequeue_all(
            run_at=run_at, reset_attempts=not keep_attempts, dry_run=dry, **where
        ),
        named(where),
        dry_run=dry_run,
        yes=False,
        asks=False,
    )


@dlq.command("discard")
@ids_argument
@with_session
def discard(session: Session, job_ids: tuple[str, ...]) -> None:
    """Discard the dead jobs ID...: they never run again.

    \b
    Example:
      taskharbor dlq discard 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    each_job(session, job_ids, lambda harbor, job_id: harbor.dlq.adiscard(job_id), lambda _job: "discarded")


@dlq.command("discard-all")
@dead_filters
@dry_run_option
@yes_option
@with_session
def discard_all(session: Session, /, dry_run: bool, yes: bool, **where: Any) -> None:
    """Discard every dead job that matches: they never run again.

    \b
    Example:
      taskharbor dlq discard-all --queue mail --yes
    """
    from taskharbor.client.filters import job_filter

    job_filter(**where)  # before the question
    act_on_all(
        session,
        "discard",
        "discarded",
        lambda harbor, dry: harbor.dlq.adiscard_all(dry_run=dry, **where),
        named(where),
        dry_run=dry_run,
        yes=yes,
        jobs="dead job",
        where=where,
    )


dlq.add_command(groups)
