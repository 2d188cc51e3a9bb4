"""`taskharbor deploy-check`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.parameters import duration
from taskharbor.cli.session import Session, with_session
from taskharbor.codec import counted

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.deploying import DeploymentReport


@click.command("deploy-check")
@click.option(
    "--grace",
    type=duration,
    default="7s",
    show_default=True,
    help="How long the present workers wait for running jobs when they stop: their --grace-seconds.",
)
@click.option(
    "--sample",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="Look at this many jobs of each state, the newest.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    help="Look at this queue alone; may be given several times.  [default: all]",
)
@with_session
def deploy_check(session: Session, grace: float, sample: int, queues: tuple[str, ...]) -> None:
    """Check new code against the store before it is deployed.

    It says which stored jobs the code of -A cannot take, because a task or a parameter is gone or has another
    type; which schedules change; which running jobs will not end within the grace; and whether the schema fits.
    It changes nothing. The exit code is 0 if all is well, 1 if there is a problem, 2 for a wrong option.

    \b
    Example:
      taskharbor deploy-check -A app:harbor --grace 30s
    """
    if session.app is None:
        raise click.UsageError("name the new code: -A module:object")

    async def work(harbor: Harbor) -> DeploymentReport:
        from taskharbor.deploying import check_deployment

        return await check_deployment(harbor, grace=grace, sample=sample, queues=queues or None)

    report = session.run(work)
    if session.screen.as_json:
        session.screen.document(
            {
                "ok": not report.problems,
                "examined": report.examined,
                "unfinished": report.unfinished,
                "findings": [
                    {
                        "topic": each.topic,
                        "severity": each.severity,
                        "subject": each.subject,
                        "jobs": each.jobs,
                        "detail": each.detail,
                    }
                    for each in report.findings
                ],
            }
        )
    else:
        _show(session, report)
    if report.problems:
        raise click.ClickException(
            f"the new code has {report.problems} problem{'s' if report.problems > 1 else ''} with this store"
        )


def _show(session: Session, report: DeploymentReport) -> None:
    screen = session.screen
    if report.findings:
        screen.table(
            ("TOPIC", "SEVERITY", "SUBJECT", "JOBS", "DETAIL"),
            [
                (each.topic, each.severity, each.subject, each.jobs or None, each.detail)
                for each in report.findings
            ],
        )
    screen.line(f"looked at {report.examined:,} of {counted(report.unfinished, 'unfinished job')}")
