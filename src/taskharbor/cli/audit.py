"""`taskharbor audit`"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.parameters import instant
from taskharbor.cli.screen import Screen
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.audit import AuditEntry, AuditPage
    from taskharbor.client.harbor import Harbor

PAGE_MAX = 1_000


@click.command
@click.option("--actor", metavar="NAME", help="Only actions of this one: a token's name, user@host, …")
@click.option("--verb", metavar="VERB", help="Only actions of this kind, such as job.cancel or queue.pause.")
@click.option("--job", metavar="ID", help="Only actions on this job, and the latest one that changed it.")
@click.option("--after", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--before", type=instant, metavar="ISO8601", help="Before this time.")
@click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=50, show_default=True)
@click.option("--cursor", metavar="ID", help="Continue after the previous list.")
@with_session
def audit(
    session: Session,
    actor: str | None,
    verb: Any,
    job: str | None,
    after: datetime | None,
    before: datetime | None,
    limit: int,
    cursor: str | None,
) -> None:
    """Show who did what and when, the latest first. The newest 10,000 actions are kept.

    \b
    Examples:
      taskharbor audit --actor ana@web-1 --after 2026-01-31T08:00:00Z
      taskharbor audit --job 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --json
    """

    async def work(harbor: Harbor) -> AuditPage:
        return await harbor.audit.alist(
            actor=actor, verb=verb, job=job, after=after, before=before, cursor=cursor, limit=limit
        )

    page = session.run(work)
    if session.screen.as_json:
        from taskharbor.views.actions import ActionDocument, ActionPage

        session.screen.document(ActionPage([ActionDocument.of(entry) for entry in page], page.next_cursor))
    else:
        _tell(session.screen, page)


def _tell(screen: Screen, page: AuditPage) -> None:
    screen.table(
        ("AT", "ACTOR", "VERB", "ON", "JOBS", "DETAILS"),
        [
            (entry.at, entry.actor, entry.verb, _target(entry), entry.count or None, _compact(entry.details))
            for entry in page
        ],
        empty="no action is recorded",
        optional=("DETAILS", "JOBS"),
    )
    if page.next_cursor is not None:
        screen.note(f"there are more: --cursor {page.next_cursor}")


def _target(entry: AuditEntry) -> str | None:
    """Say what it was done to, in a few words."""
    if entry.filter is not None:
        return _compact(entry.filter) if entry.filter else "all"
    return entry.subject or entry.job_id


def _compact(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
