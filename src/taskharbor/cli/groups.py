"""`taskharbor dlq groups`: dead jobs by cause, and what starts their replay."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.filters import dead_filters
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.handle import Job

LIMIT_MAX = 1_000
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*")


def share(value: str) -> float:
    """A share from 0 to 1, from `20%` or `0.2`."""
    found = _SHARE.fullmatch(value)
    number = -1.0 if found is None else float(found[1]) / (100 if found[2] else 1)
    if not 0 <= number <= 1:
        raise click.BadParameter(f"{value!r} is not a share; write for example 20% or 0.2")
    return number


brake_option = click.option(
    "--brake",
    type=share,
    metavar="SHARE",
    help="Requeue in slices, and stop if more than this share of one fails again in the same way, such as 20%.",
)


@click.command("groups")
@dead_filters
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=50, show_default=True)
@with_session
def groups(session: Session, /, limit: int, **where: Any) -> None:
    """Show dead jobs by cause, the most frequent first.

    Jobs whose errors have the same type, message and functions are one group, whatever ids and numbers their messages
    have.

    \b
    Examples:
      taskharbor dlq groups
      taskharbor dlq requeue-all --group 3f9c2a7be01d4c55 --brake 20%
    """
    found = session.run(lambda harbor: harbor.dlq.agroups(limit=limit, **where))
    screen = session.screen
    if screen.as_json:
        from taskharbor.views.group_documents import ErrorGroupDocument, ErrorGroups

        screen.document(ErrorGroups([ErrorGroupDocument.of(each) for each in found], None))
        return
    screen.table(
        ("GROUP", "JOBS", "FIRST", "LAST", "TASKS", "VERSIONS", "SAMPLE", "ERROR"),
        [
            (
                each.fingerprint,
                each.count,
                each.first_seen,
                each.last_seen,
                ", ".join(each.tasks),
                ", ".join(each.versions),
                each.sample_id,
                each.error,
            )
            for each in found
        ],
        empty="no dead jobs",
        optional=("FIRST", "VERSIONS", "SAMPLE"),
    )
    if len(found) == limit:
        screen.note(f"these are the {limit} largest groups; --limit shows more")


def start_replay(session: Session, brake: float, where: dict[str, Any]) -> None:
    """Enqueue the job that replays these dead jobs, and say how to follow it."""
    job: Job[Any] = session.run(lambda harbor: harbor.dlq.areplay(brake=brake, **where))
    if session.screen.as_json:
        from taskharbor.views.job_documents import JobDocument

        session.screen.document(JobDocument.of(job))
        return
    session.screen.line(f"job {job.id} on queue {job.queue} replays them, and stops above {brake:.0%}")
    words = session.words
    session.screen.note(
        f"follow it: taskharbor inspect {job.id}{words}; stop it: taskharbor cancel {job.id}{words}"
    )
