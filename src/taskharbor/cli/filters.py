"""The options that select jobs, the same on every command, and the ids that name them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from taskharbor.cli.confirming import confirm
from taskharbor.cli.parameters import instant, named_value
from taskharbor.cli.session import Session
from taskharbor.codec import counted

if TYPE_CHECKING:
    from taskharbor.client.handle import Job
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.jobs import JobPage

STATES = ("waiting", "scheduled", "ready", "running", "succeeded", "dead", "cancelled")
REASONS = (
    "exhausted", "unrecoverable", "not_retryable", "lost", "interrupted", "poison", "invalid_payload", "unknown_task",
    "unsettleable", "unreadable", "operator", "cancelled", "expired", "discarded", "dependency",
)  # fmt: skip
PAGE_MAX = 1_000
Command = TypeVar("Command", bound=Callable[..., Any])


def payload_values(_: object, __: object, given: tuple[str, ...]) -> dict[str, Any] | None:
    """Read values of a payload by their paths, written as in `enqueue`: `path=text` or `path:=json`."""
    return {path: value for path, value, _ in map(named_value, given)} or None


_SHARED = (
    click.option("--queue", metavar="NAME", help="Only jobs of this queue."),
    click.option("--task", metavar="NAME", help="Only jobs of this task."),
    click.option("--tag", metavar="TAG", help="Only jobs with this tag."),
    click.option("--workflow", metavar="ID", help="Only jobs of this workflow."),
    click.option(
        "--reason", type=click.Choice(REASONS), help="Only jobs that are dead or cancelled for this reason."
    ),
    click.option(
        "--error", metavar="TEXT", help="Only jobs whose latest error has this text near its beginning."
    ),
    click.option(
        "--group", "fingerprint", metavar="FINGERPRINT", help="Only dead jobs of this group of errors."
    ),
    click.option("--correlation-id", metavar="ID", help="Only jobs with this correlation id."),
    click.option(
        "--enqueued-after", type=instant, metavar="ISO8601", help="Only jobs enqueued then or later."
    ),
    click.option(
        "--enqueued-before", type=instant, metavar="ISO8601", help="Only jobs enqueued before that time."
    ),
    click.option(
        "--finished-after", type=instant, metavar="ISO8601", help="Only jobs that ended then or later."
    ),
    click.option(
        "--finished-before", type=instant, metavar="ISO8601", help="Only jobs that ended before that time."
    ),
    click.option(
        "--payload",
        callback=payload_values,
        multiple=True,
        metavar="PATH=TEXT|PATH:=JSON",
        help="Only jobs whose payload has this value, such as user.id:=42; may be repeated.",
    ),
)


def _one_state(_: object, __: object, given: tuple[str, ...]) -> str | None:
    """Refuse a second state: click would take the last of them, and the list would silently be another one."""
    if len(given) > 1:
        raise click.BadParameter(
            f"it takes one state, and {', '.join(given)} were given; run the command once for each"
        )
    return given[0] if given else None


_STATE = click.option(
    "--state", type=click.Choice(STATES), multiple=True, callback=_one_state, help="Only jobs in this state."
)

count_option = click.option(
    "--count", is_flag=True, help="Only say how many match; more than 10,000 are 10,000+."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say how many jobs it would act on.")


def dead_filters(command: Command) -> Command:
    """Add the options that select dead jobs."""
    return _added(command, _SHARED)


def job_filters(command: Command) -> Command:
    """Add the options that select jobs."""
    return _added(command, (_STATE, *_SHARED))


def paged(command: Command) -> Command:
    """Add the options of a list."""
    return _added(
        command,
        (
            click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=50, show_default=True),
            click.option("--cursor", metavar="ID", help="Continue after the previous list."),
        ),
    )


def _added(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def named(where: dict[str, Any]) -> str:
    """Return the filter in words, for a question."""
    words = [
        f"{name.replace('_', ' ')} {getattr(value, 'isoformat', lambda value=value: value)()}"
        for name, value in where.items()
        if value is not None
    ]
    return " and ".join(words) or "the store"


def tell_more(session: Session, page: JobPage) -> None:
    """Say how a list goes on, and how far a search got that ended before its page was full."""
    if page.next_cursor is None:
        return
    if page.reached is None:
        session.screen.note(f"there are more: --cursor {page.next_cursor}")
    else:
        session.screen.note(
            f"looked at {counted(page.examined, 'job')}, back to {page.reached.isoformat(timespec='seconds')}; "
            f"to go on: --cursor {page.next_cursor}"
        )


def tell_count(session: Session, count: int, sentence: str) -> None:
    """Print a count, or how many jobs a bulk command would act on."""
    if session.screen.as_json:
        from taskharbor.views.bulk import CountDocument

        session.screen.document(CountDocument.of(count))
    else:
        session.screen.line(sentence.format(count=count))


def act_on_all(
    session: Session,
    verb: str,
    done: str,
    act: Callable[[Harbor, bool], Awaitable[int]],
    which: str,
    *,
    dry_run: bool,
    yes: bool,
    jobs: str = "job",
    asks: bool = True,
    where: Any = None,
) -> None:
    """Do it to every job that matches, or only say to how many; ask before, unless `--yes` or `asks` is false."""
    if asks and not yes and not dry_run:
        if where is not None:
            from taskharbor.client.filters import asked_filter

            asked_filter(None, where)  # what is wrong with it is said before a question is asked
        confirm(verb, f"every {jobs} of {which}")
    number = session.run(lambda harbor: act(harbor, dry_run))
    if session.screen.as_json:
        from taskharbor.views.bulk import BULK_DOCUMENTS

        session.screen.document(BULK_DOCUMENTS[done].of(number))
    else:
        session.screen.line(f"{number} would be {done}" if dry_run else f"{number} {done}")


# -- several ids -----------------------------------------------------------------------------------

ids_argument = click.argument("job_ids", metavar="ID...", nargs=-1, required=True)


def each_job(
    session: Session,
    job_ids: tuple[str, ...],
    act: Callable[[Harbor, str], Awaitable[Job[Any] | None]],
    tell: Callable[[Job[Any]], str],
) -> None:
    """Do it to one job after the other. The error of one is printed, and does not keep the others from it."""
    from taskharbor.errors import TaskHarborError

    async def work(harbor: Harbor) -> list[tuple[str, Job[Any] | None] | TaskHarborError]:
        answers: dict[str, tuple[str, Job[Any] | None] | TaskHarborError] = {}
        for text in job_ids:
            job_id = text
            try:
                job_id = await harbor.jobs._whole_id(text)
                if job_id not in answers:  # one job may be named twice, by its id and by the beginning of it
                    answers[job_id] = job_id, await act(harbor, job_id)
            except TaskHarborError as error:
                if len(job_ids) == 1:
                    raise
                answers[job_id] = error
        return list(answers.values())

    answers = session.run(work)
    _tell_each(session, answers, tell)
    if any(isinstance(answer, Exception) for answer in answers):
        raise click.exceptions.Exit(1)


def _tell_each(session: Session, answers: list[Any], tell: Callable[[Job[Any]], str]) -> None:
    from taskharbor.views.job_documents import JobDocument

    screen = session.screen
    documents: list[Any] = []
    for answer in answers:
        if isinstance(answer, Exception):
            click.echo(f"Error: {answer}", err=True)
            continue
        job_id, job = answer
        if job is None:
            documents.append({"id": job_id, "deleted": True})
            what = f"{job_id}: deleted"
        else:
            documents.append(JobDocument.of(job))
            what = f"{job.id}  {job.task}: {tell(job)}"
        if not screen.as_json:
            screen.line(what)
    if screen.as_json:
        screen.document(documents[0] if len(answers) == 1 else documents)
