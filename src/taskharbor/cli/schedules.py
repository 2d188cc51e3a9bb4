"""`taskharbor schedule …`"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.parameters import duration, parse_payload, with_failure_task, with_meta
from taskharbor.cli.screen import Screen
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.schedule import Schedule

of_application = click.option(
    "--application", metavar="NAME", help="Whose schedule it is; the Harbor's own without it."
)


@click.group(no_args_is_help=False)
def schedule() -> None:
    """See what recurs; add, pause, resume, run and delete it.

    \b
    Example:
      taskharbor schedule list
    """


@schedule.command("list")
@of_application
@with_session
def list_schedules(session: Session, application: str | None) -> None:
    """Show every schedule: when it is due, and how its latest run ended.

    With -A, a schedule that the application declared once and no longer does is shown as orphaned.

    \b
    Examples:
      taskharbor schedule list -A app:harbor
      taskharbor schedule list --application default --json
    """
    schedules = session.run(lambda harbor: harbor.schedules.alist(application))
    if session.screen.as_json:
        from taskharbor.views.schedule_documents import ScheduleDocument, ScheduleList

        session.screen.document(ScheduleList([ScheduleDocument.of(each) for each in schedules], None))
        return
    session.screen.table(
        ("SCHEDULE", "APPLICATION", "TASK", "WHEN", "TIMEZONE", "NEXT", "LAST", "ENDED", "NOTE"),
        [
            (
                each.name, each.application, each.task, each.schedule, each.timezone, each.next_run_at,
                each.last_status, each.last_finished_at, _note(each),
            )
            for each in schedules
        ],
        empty="no schedules",
    )  # fmt: skip


def _note(schedule: Schedule) -> str:
    notes = [
        word
        for word, holds in (
            ("paused", schedule.paused),
            ("orphaned", schedule.orphaned),
            ("running", schedule.state == "running"),
        )
        if holds
    ]
    return ", ".join(notes)


@schedule.command("add")
@click.argument("name")
@click.argument("task")
@click.argument("payload", nargs=-1)
@click.option(
    "--schedule",
    "when",
    required=True,
    metavar="EXPRESSION",
    help='Cron with five fields, or six with seconds first; "@daily"; "@every 90s".',
)
@click.option("--timezone", metavar="NAME", default="UTC", show_default=True, help="An IANA name.")
@click.option(
    "--misfire",
    type=click.Choice(["run_once", "skip"]),
    default="run_once",
    show_default=True,
    help="What to do about missed occurrences: run once for all of them, or drop them.",
)
@click.option(
    "--misfire-grace", type=duration, help="With skip: how late an occurrence may still begin. [default: 60s]"
)
@click.option("--dead-letter", is_flag=True, help="Leave a copy of a failed occurrence in the DLQ.")
@click.option("--queue", metavar="NAME", help="The queue it waits in.")
@click.option("--priority", type=int, help="From -100 to 100; higher runs first.")
@click.option("--max-attempts", type=int, help="The failure of an occurrence that is final.")
@click.option("--timeout", type=duration, help="How long one attempt may take.")
@click.option("--delivery", type=click.Choice(["at_least_once", "at_most_once"]))
@click.option("--tag", "tags", multiple=True, help="A label to find it by; may be given several times.")
@with_meta
@with_failure_task
@of_application
@with_session
def add(
    session: Session,
    /,
    name: str,
    task: str,
    payload: tuple[str, ...],
    when: str,
    tags: tuple[str, ...],
    dead_letter: bool,
    application: str | None,
    **given: Any,
) -> None:
    """Create the schedule NAME for TASK, or change it if it exists.

    PAYLOAD is a JSON object, or name=text and name:=json words, or - to read it from standard input.
    With -A, text becomes what the task's parameter is annotated with: n=3 is a number for n: int, and
    text for n: str. Without the task's code all text stays text.

    \b
    Examples:
      taskharbor schedule add hello echo message=hello --schedule '*/10 * * * * *'
      taskharbor schedule add report reports.build --schedule '0 7 * * MON-FRI' --timezone Europe/Berlin
      taskharbor schedule add poll api.poll --schedule '@every 90s' --misfire skip -A app:harbor
    """
    options = {key: value for key, value in given.items() if value is not None}
    if tags:
        options["tags"] = tags
    written = parse_payload(payload)

    async def work(harbor: Harbor) -> Schedule:
        if "failure_task" in options:
            from taskharbor.failure_tasks import named_failure_task

            options["failure_task"] = named_failure_task(harbor, options["failure_task"])
        return await harbor.schedules.aadd(
            name,
            task,
            written.for_task(harbor, task),
            schedule=when,
            dead_letter=dead_letter,
            application=application,
            **options,
        )

    _tell(session.screen, session.run(work, create=True), "added")


@schedule.command("pause")
@click.argument("name")
@of_application
@with_session
def pause(session: Session, name: str, application: str | None) -> None:
    """Pause the schedule NAME until it is resumed. A run that is in progress continues.

    \b
    Example:
      taskharbor schedule pause report
    """
    _do(session, lambda harbor: harbor.schedules.apause(name, application=application), "paused")


@schedule.command("resume")
@click.argument("name")
@of_application
@with_session
def resume(session: Session, name: str, application: str | None) -> None:
    """Resume the schedule NAME. Occurrences that came due during the pause count as missed.

    \b
    Example:
      taskharbor schedule resume report
    """
    _do(session, lambda harbor: harbor.schedules.aresume(name, application=application), "resumed")


@schedule.command("run")
@click.argument("name")
@of_application
@with_session
def run(session: Session, name: str, application: str | None) -> None:
    """Start an extra run of the schedule NAME now, in addition to its occurrences.

    \b
    Example:
      taskharbor schedule run report
    """
    _do(session, lambda harbor: harbor.schedules.arun_now(name, application=application), "runs now")


@schedule.command("delete")
@click.argument("name")
@of_application
@with_session
def delete(session: Session, name: str, application: str | None) -> None:
    """Delete the schedule NAME with its history. A run that is in progress is the last one.

    \b
    Example:
      taskharbor schedule delete report
    """
    session.run(lambda harbor: harbor.schedules.adelete(name, application=application))
    if session.screen.as_json:
        session.screen.document({"name": name, "deleted": True})
    else:
        session.screen.line(f"{name}: deleted")


def _do(session: Session, work: Callable[[Harbor], Awaitable[Schedule]], done: str) -> None:
    _tell(session.screen, session.run(work), done)


def _tell(screen: Screen, schedule: Schedule, done: str) -> None:
    if screen.as_json:
        from taskharbor.views.schedule_documents import ScheduleDocument

        screen.document(ScheduleDocument.of(schedule))
        return
    following = (
        "" if schedule.next_run_at is None else f", next run {schedule.next_run_at:%Y-%m-%d %H:%M:%S} UTC"
    )
    screen.line(f"{schedule.name}: {done}{following}")
