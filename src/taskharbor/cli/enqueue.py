"""`taskharbor enqueue`"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.parameters import duration, instant, parse_payload, with_failure_task, with_meta
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.handle import Job
    from taskharbor.client.harbor import Harbor


@click.command
@click.argument("task")
@click.argument("payload", nargs=-1)
@click.option("--queue", metavar="NAME", help="The queue it waits in.")
@click.option("--priority", type=int, help="From -100 to 100; higher runs first.")
@click.option("--delay", type=duration, help="Not before this much time has passed, such as 30s or 5m.")
@click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time.")
@click.option("--expires-at", type=instant, metavar="ISO8601", help="Cancel it if it has not begun by then.")
@click.option("--expires-in", type=duration, help="Cancel it if it has not begun after this much time.")
@click.option("--max-attempts", type=int, help="The failure that is final.")
@click.option("--max-retries", type=int, help="The same, counted without the first attempt.")
@click.option("--timeout", type=duration, help="How long one attempt may take.")
@click.option("--key", metavar="KEY", help="Idempotency key: at most one job of the queue has it.")
@click.option("--delivery", type=click.Choice(["at_least_once", "at_most_once"]))
@click.option("--tag", "tags", multiple=True, help="A label to find it by; may be given several times.")
@with_meta
@with_failure_task
@click.option("--correlation-id", metavar="ID", help="Written on every log line of the job.")
@click.option("--id", "job_id", metavar="UUID", help="The job's own id; enqueueing it again changes nothing.")
@click.option("--wait", type=duration, help="Wait up to this long for the result, and print it.")
@with_session
def enqueue(
    session: Session,
    task: str,
    payload: tuple[str, ...],
    queue: str | None,
    priority: int | None,
    delay: float | None,
    run_at: datetime | None,
    expires_at: datetime | None,
    expires_in: float | None,
    max_attempts: int | None,
    max_retries: int | None,
    timeout: float | None,
    key: str | None,
    delivery: str | None,
    tags: tuple[str, ...],
    meta: dict[str, str] | None,
    failure_task: str | dict[str, Any] | None,
    correlation_id: str | None,
    job_id: str | None,
    wait: float | None,
) -> None:
    """Enqueue a job of TASK.

    PAYLOAD is a JSON object, or name=text and name:=json words, or - to read it from standard input.
    With -A, text becomes what the task's parameter is annotated with: n=3 is a number for n: int, and
    text for n: str. Without the task's code all text stays text.
    In a pipe only the job's id is printed, or with --wait only its result.

    \b
    Examples:
      taskharbor enqueue echo message=hello --wait 10
      taskharbor enqueue email:send '{"to": "a@b.c"}' --queue mail --delay 5m -A app:harbor
      taskharbor enqueue order:confirm number=7 express=true -A warehouse:harbor
      taskharbor enqueue sleep seconds:=2.5 --priority 9 --tag nightly
    """
    given = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "run_at": run_at,
        "expires_at": expires_at,
        "expires_in": expires_in,
        "max_attempts": max_attempts,
        "max_retries": max_retries,
        "timeout": timeout,
        "idempotency_key": key,
        "delivery": delivery,
        "tags": tags or None,
        "meta": meta,
        "correlation_id": correlation_id,
        "id": job_id,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    written = parse_payload(payload)

    async def work(harbor: Harbor) -> None:
        _warn(session, harbor, task)
        arguments = written.for_task(harbor, task)
        if failure_task is not None:
            from taskharbor.failure_tasks import named_failure_task

            options["failure_task"] = named_failure_task(harbor, failure_task)
        job = await harbor.aenqueue(task, arguments, **options)
        if wait is None:
            _tell(session, job)
        else:
            await _tell_result(session, job, wait)

    session.run(work, create=True)


def _warn(session: Session, harbor: Harbor, task: str) -> None:
    """Warn about what is allowed but probably a mistake."""
    if session.app is not None and harbor.tasks and harbor._known(task) is None:
        session.screen.note(
            f"note: {session.app} declares no task {task!r}, only {', '.join(sorted(harbor.tasks))}; "
            "another worker has to know it"
        )
    if harbor.url.startswith("memory:"):
        session.screen.note(
            "note: memory:// is kept in this process, so the job is gone when this command ends"
        )


def _tell(session: Session, job: Job[Any]) -> None:
    screen = session.screen
    if screen.as_json:
        from taskharbor.views.job_documents import EnqueuedJob

        screen.document(EnqueuedJob.of(job))
    elif screen.is_terminal:
        what = "existed already" if job.existed else "enqueued"
        screen.line(f"{job.id}  {what}: {job.task}, queue {job.queue}, {job.state}")
    else:
        screen.line(job.id)


async def _tell_result(session: Session, job: Job[Any], wait: float) -> None:
    screen = session.screen
    if screen.is_terminal and not screen.as_json:
        _tell(session, job)
    try:
        await job.aresult(timeout=wait)
    except TimeoutError as error:
        last = (await job.arefresh()).error
        raise TimeoutError(f"{error}: {last}" if last else f"{error}; is a worker running?") from None
    from taskharbor.views.job_documents import EnqueuedJob

    document = EnqueuedJob.of(await job.arefresh(), existed=job.existed)
    if screen.as_json:
        screen.document(document)
    else:
        screen.line(json.dumps(document.result, ensure_ascii=False))
