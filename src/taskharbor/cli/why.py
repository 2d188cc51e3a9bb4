"""`taskharbor why`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.rules.why_facts import Why

IN_THE_SENTENCE = ("at", "state", "queue", "task", "error", "waits_for")  # or more than a line has room for


@click.command
@click.argument("job_id", metavar="ID")
@click.option("--facts", is_flag=True, help="Show the facts behind the sentence as well.")
@with_session
def why(session: Session, job_id: str, facts: bool) -> None:
    """Say in one sentence why the job ID does not run, or does.

    \b
    Examples:
      taskharbor why 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
      taskharbor why 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --json | jq .facts
    """

    async def work(harbor: Harbor) -> tuple[str, Why]:
        whole_id = await harbor.jobs._whole_id(job_id)
        return whole_id, await harbor.jobs.awhy(whole_id)

    whole_id, found = session.run(work)
    if session.screen.as_json:
        from taskharbor.views.why import WhyDocument

        session.screen.document(WhyDocument.of(found, id=whole_id))
        return
    session.screen.line(str(found))
    if facts:
        values = msgspec.structs.asdict(found.facts)
        known = {
            name.replace("_", " "): value for name, value in values.items() if name not in IN_THE_SENTENCE
        }
        session.screen.pairs({"reason code": str(found.code), **known})
