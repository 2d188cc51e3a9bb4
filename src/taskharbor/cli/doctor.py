"""`taskharbor doctor`"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import click

from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.drivers.base import Check

CLOCK_DIFFERENCE_MAX_SECONDS = 5.0


class Finding(NamedTuple):
    name: str
    status: str  # ok, warning or failed
    detail: str


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


async def examine(harbor: Harbor) -> list[Finding]:
    """The driver's own checks, and the difference of the clocks."""
    from taskharbor.errors import StoreError

    try:
        checks = await harbor.driver.check()
        clock = await _clock(harbor)
    except StoreError as error:
        return [Finding("reachable", "failed", str(error))]
    return [Finding(check.name, _status(check), check.detail) for check in checks] + [clock]


def _status(check: Check) -> str:
    if check.ok:
        return "ok"
    return "failed" if check.severe else "warning"


async def _clock(harbor: Harbor) -> Finding:
    """The store's clock decides; one that is far from ours makes run_at and expires_at mean something else."""
    from taskharbor.clock import MICROS_PER_SECOND

    before = time.time()
    store = await harbor.driver.now() / MICROS_PER_SECOND
    after = time.time()
    # Anywhere between the two is as good as equal: the store was asked somewhere in between.
    difference = max(before - store, store - after, 0.0)
    status = "ok" if difference <= CLOCK_DIFFERENCE_MAX_SECONDS else "failed"
    way = "" if difference == 0 else " ahead" if store > after else " behind"
    return Finding(
        "clock", status, f"{difference:.3f} s{way} of this machine's" if way else "as this machine's"
    )
