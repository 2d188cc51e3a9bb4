"""`taskharbor job …`: changing one job."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, cast

import click

from taskharbor.cli.jobs import tell_job
from taskharbor.cli.parameters import duration, instant, parse_payload
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.jobs import JobChanges


@click.group(no_args_is_help=False)
def job() -> None:
    """Retry, run, change or delete one job.

    \b
    Example:
      taskharbor job retry 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """


@job.command("retry")
@click.argument("job_id", metavar="ID")
@click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--force", is_flag=True, help="Even if it is at_most_once and may have been executed.")
@with_session
def retry(session: Session, job_id: str, run_at: datetime | None, force: bool) -> None:
    """Start a new run of the dead or cancelled job ID.

    \b
    Example:
      taskharbor job retry 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    found = session.run(lambda harbor: harbor.jobs.aretry(job_id, run_at=run_at, force=force))
    tell_job(session.screen, found, f"{found.state} again")


@job.command("run-now")
@click.argument("job_id", metavar="ID")
@with_session
def run_now(session: Session, job_id: str) -> None:
    """Make the scheduled job ID ready.

    \b
    Example:
      taskharbor job run-now 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    found = session.run(lambda harbor: harbor.jobs.arun_now(job_id))
    tell_job(session.screen, found, str(found.state))


@job.command("update")
@click.argument("job_id", metavar="ID")
@click.option("--priority", type=int, help="From -100 to 100; higher runs first.")
@click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--expires-at", type=instant, metavar="ISO8601", help="Cancel it if it has not begun by then.")
@click.option("--max-attempts", type=int, help="The failure that is final.")
@click.option("--max-retries", type=int, help="The same, counted without the first attempt.")
@click.option("--timeout", type=duration, help="How long one attempt may take.")
@click.option("--tag", "tags", multiple=True, help="Replace its tags; may be given several times.")
@click.option("--no-tags", is_flag=True, help="Remove its tags.")
@click.option("--payload", metavar="JSON", help="Another payload, a JSON object, or - for standard input.")
@with_session
def update(
    session: Session,
    job_id: str,
    priority: int | None,
    run_at: datetime | None,
    expires_at: datetime | None,
    max_attempts: int | None,
    max_retries: int | None,
    timeout: float | None,
    tags: tuple[str, ...],
    no_tags: bool,
    payload: str | None,
) -> None:
    """Change the job ID, which is neither running nor finished.

    Options that are left out do not change.

    \b
    Example:
      taskharbor job update 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --priority 9 --tag urgent
    """
    if tags and no_tags:
        raise click.UsageError("--tag and --no-tags contradict each other; give one of them")
    given = {
        "priority": priority,
        "run_at": run_at,
        "expires_at": expires_at,
        "max_attempts": max_attempts,
        "max_retries": max_retries,
        "timeout": timeout,
        "tags": [] if no_tags else list(tags) or None,
        "payload": None if payload is None else parse_payload([payload]).values,
    }
    changes = cast("JobChanges", {name: value for name, value in given.items() if value is not None})
    if not changes:
        raise click.UsageError("say what to change, for example --priority 9")
    found = session.run(lambda harbor: harbor.jobs.aupdate(job_id, **changes))
    tell_job(session.screen, found, f"changed: {', '.join(changes)}")


@job.command("delete")
@click.argument("job_id", metavar="ID")
@with_session
def delete(session: Session, job_id: str) -> None:
    """Delete the job ID and its history; cancel a running job first.

    \b
    Example:
      taskharbor job delete 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    session.run(lambda harbor: harbor.jobs.adelete(job_id))
    if session.screen.as_json:
        session.screen.document({"id": job_id, "deleted": True})
    else:
        session.screen.line(f"{job_id}: deleted")
