"""`taskharbor doctor`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.views.findings import Finding


@click.command
@with_session
def doctor(session: Session) -> None:
    """Check the store.

    Is it reachable, durable and up to date, and is its clock right?
    The exit code is 1 if a check fails; a warning does not count.

    \b
    Example:
      taskharbor doctor --url sqlite:///harbor.db
    """

    from taskharbor.views.findings import examine

    async def work(harbor: Harbor) -> tuple[str, list[Finding]]:
        return harbor.url, await examine(harbor)

    from taskharbor.telemetry.logs import masked, masked_url

    url, findings = session.run(work)
    failed = [finding.name for finding in findings if finding.status == "failed"]
    screen = session.screen
    if screen.as_json:
        checks = [{**finding._asdict(), "detail": masked(finding.detail)} for finding in findings]
        screen.document({"url": masked_url(url), "ok": not failed, "checks": checks})
    else:
        screen.line(masked_url(url))
        screen.table(("CHECK", "STATUS", "DETAIL"), [(f.name, f.status, masked(f.detail)) for f in findings])
    if failed:
        raise click.ClickException(f"the store has a problem: {', '.join(failed)}")
