"""`taskharbor job …`: changing one job."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.changes import with_changes
from taskharbor.cli.filters import each_job, ids_argument
from taskharbor.cli.jobs import tell_job
from taskharbor.cli.parameters import instant, parse_payload
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.handle import Job
    from taskharbor.client.harbor import Harbor


@click.group(no_args_is_help=False)
def job() -> None:
    """Retry, run, change or delete one job.

    \b
    Example:
      taskharbor job retry 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """


@job.command("retry")
@ids_argument
@click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--force", is_flag=True, help="Even if it is at_most_once and may have been executed.")
@with_session
def retry(session: Session, job_ids: tuple[str, ...], run_at: datetime | None, force: bool) -> None:
    """Start a new run of the dead or cancelled jobs ID....

    \b
    Example:
      taskharbor job retry 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    each_job(
        session,
        job_ids,
        lambda harbor, job_id: harbor.jobs.aretry(job_id, run_at=run_at, force=force),
        lambda job: f"{job.state} again",
    )


@job.command("run-now")
@ids_argument
@with_session
def run_now(session: Session, job_ids: tuple[str, ...]) -> None:
    """Make the scheduled jobs ID... ready.

    \b
    Example:
      taskharbor job run-now 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    each_job(
        session, job_ids, lambda harbor, job_id: harbor.jobs.arun_now(job_id), lambda job: str(job.state)
    )


@job.command("update")
@click.argument("job_id", metavar="ID")
@with_changes
@click.option("--tag", "tags", multiple=True, help="Replace its tags; may be given several times.")
@click.option("--no-tags", is_flag=True, help="Remove its tags.")
@click.option("--payload", metavar="JSON", help="Another payload, a JSON object, or - for standard input.")
@with_session
def update(
    session: Session,
    job_id: str,
    changes: dict[str, Any],
    tags: tuple[str, ...],
    no_tags: bool,
    payload: str | None,
) -> None:
    """Change the job ID, which is neither running nor finished.

    Options that are left out do not change. A new retry policy brings its limit, unless one is given as well.

    \b
    Examples:
      taskharbor job update 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --priority 9 --tag urgent
      taskharbor job update 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --retry email --max-attempts 20
    """
    if tags and no_tags:
        raise click.UsageError("--tag and --no-tags contradict each other; give one of them")
    if tags or no_tags:
        changes["tags"] = list(tags)
    if payload is not None:
        changes["payload"] = parse_payload([payload]).values
    if not changes:
        raise click.UsageError("say what to change, for example --priority 9")

    async def act(harbor: Harbor) -> Job[Any]:
        return await harbor.jobs.aupdate(await harbor.jobs._whole_id(job_id), **changes)

    found = session.run(act)
    tell_job(session.screen, found, f"changed: {', '.join(changes)}")


@job.command("delete")
@ids_argument
@with_session
def delete(session: Session, job_ids: tuple[str, ...]) -> None:
    """Delete the jobs ID... and their history; cancel a running job first.

    \b
    Example:
      taskharbor job delete 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """

    async def act(harbor: Harbor, job_id: str) -> None:
        await harbor.jobs.adelete(job_id)

    each_job(session, job_ids, act, str)
