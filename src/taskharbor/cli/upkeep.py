"""`taskharbor prune` and `migrate`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.confirming import confirm, yes_option
from taskharbor.cli.parameters import duration
from taskharbor.cli.screen import span
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

FINISHED = ("succeeded", "dead", "cancelled")
DEFAULT_STATES = ("succeeded", "cancelled")


@click.command
@click.option("--older-than", type=duration, help="Finished longer ago than this, such as 7d or 12h.")
@click.option(
    "--state",
    "states",
    type=click.Choice(FINISHED),
    multiple=True,
    help="Which jobs, with --older-than; may be given several times.  [default: succeeded, cancelled]",
)
@click.option("--limit", type=click.IntRange(1), help="Delete at most this many.")
@yes_option
@with_session
def prune(
    session: Session, older_than: float | None, states: tuple[str, ...], limit: int | None, yes: bool
) -> None:
    """Delete finished jobs and their history.

    Without --older-than, it deletes by the application's retention: by default, succeeded and cancelled
    jobs after 7 days. It deletes dead jobs only with --state dead.

    \b
    Examples:
      taskharbor prune --older-than 7d
      taskharbor prune --older-than 90d --state dead --yes
    """
    if states and older_than is None:
        raise click.UsageError("--state needs --older-than: say how old the jobs must be")
    if not yes:
        confirm("delete", _described(older_than, states or DEFAULT_STATES, limit))

    async def work(harbor: Harbor) -> int:
        from taskharbor.client.retention import Retention

        if older_than is None:
            return await harbor.aprune(limit)
        chosen = states or DEFAULT_STATES
        retention = Retention.of({state: older_than if state in chosen else None for state in FINISHED})
        return await retention.prune(harbor.driver, limit)

    pruned = session.run(work)
    if session.screen.as_json:
        session.screen.document({"pruned": pruned})
    else:
        session.screen.line(f"{pruned} deleted")


def _described(older_than: float | None, states: tuple[str, ...], limit: int | None) -> str:
    """Describe what a prune deletes."""
    which = f"at most {limit} of the jobs" if limit is not None else "every job"
    if older_than is None:
        return f"{which} that the retention does not keep"
    return f"{which} in state {' or '.join(states)} that finished more than {span(older_than)} ago"


@click.command
@with_session
def migrate(session: Session) -> None:
    """Bring the store's schema up to date.

    On PostgreSQL, workers and the other commands leave the schema alone: run this before the new workers
    start. On SQLite, the first process that stores something does it by itself; run this for a database that
    belongs to another application, or to choose the moment of an upgrade.

    \b
    Example:
      taskharbor migrate --url sqlite:///harbor.db
    """

    async def work(harbor: Harbor) -> tuple[str, list[str]]:
        return harbor.url, await harbor.amigrate()

    from taskharbor.telemetry.logs import masked_url

    url, applied = session.run(work, create=True)
    if session.screen.as_json:
        session.screen.document({"url": masked_url(url), "applied": applied})
    elif applied:
        session.screen.line(f"{masked_url(url)}: applied {', '.join(applied)}")
    else:
        session.screen.line(f"{masked_url(url)}: up to date")
