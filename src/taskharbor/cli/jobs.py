"""`taskharbor list`, `inspect` and `cancel`"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from taskharbor.cli.screen import Cell, Screen, span
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.handle import Attempt, Job, Step
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.retry_metrics import RetryMetrics
    from taskharbor.views.documents import JobDocument

STATES = ("waiting", "scheduled", "ready", "running", "succeeded", "dead", "cancelled")
PAGE_MAX = 1_000


# -- list ----------------------------------------------------------------------------------------


@click.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--tag", metavar="TAG", help="Only jobs with this tag.")
@click.option("--workflow", metavar="ID", help="Only jobs of this workflow.")
@click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=50, show_default=True)
@click.option("--cursor", metavar="ID", help="Continue after the previous list.")
@with_session
def list_jobs(session: Session, /, limit: int, cursor: str | None, **where: str | None) -> None:
    """Show jobs, newest first.

    \b
    Examples:
      taskharbor list --state dead --queue mail
      taskharbor list --tag nightly --limit 200 --json
    """
    jobs, next_cursor = session.run(lambda harbor: page_of(harbor, limit, cursor, where))
    tell_page(session.screen, jobs, next_cursor)


async def page_of(
    harbor: Harbor, limit: int, cursor: str | None, where: dict[str, Any]
) -> tuple[list[Job[Any]], str | None]:
    return await whole_page(partial(harbor.jobs.alist, **where), limit, cursor)


async def whole_page(
    read: Callable[..., Awaitable[Any]], limit: int, cursor: str | None
) -> tuple[list[Any], str | None]:
    """Read pages until one full page is found: a page of the store may be short."""
    found: list[Any] = []
    while True:
        page = await read(cursor=cursor, limit=limit - len(found))
        found += page
        cursor = page.next_cursor
        if cursor is None or len(found) >= limit:
            return found, cursor


def tell_page(screen: Screen, jobs: list[Job[Any]], next_cursor: str | None) -> None:
    if screen.as_json:
        tell_page_as_json(screen, jobs, next_cursor)
        return
    screen.table(
        ("ID", "STATE", "TASK", "QUEUE", "PRIORITY", "FAILURES", "WHEN"),
        [
            (
                job.id,
                job.state,
                job.task,
                job.queue,
                job.priority,
                job.attempts,
                job.finished_at or job.run_at,
            )
            for job in jobs
        ],
        empty="no jobs",
        optional=("PRIORITY", "FAILURES", "QUEUE", "WHEN"),
    )
    if next_cursor is not None:
        screen.note(f"there are more: --cursor {next_cursor}")


def tell_page_as_json(screen: Screen, jobs: list[Job[Any]], next_cursor: str | None) -> None:
    from taskharbor.views.documents import JobDocument, JobPage

    screen.document(JobPage([JobDocument.of(job) for job in jobs], next_cursor))


# -- inspect -------------------------------------------------------------------------------------


@click.command
@click.argument("job_id", metavar="ID")
@click.option("--traceback", is_flag=True, help="Show the traceback of every failed attempt.")
@click.option(
    "--limit", type=click.IntRange(1, PAGE_MAX), default=100, show_default=True, help="Attempts to show."
)
@with_session
def inspect(session: Session, job_id: str, traceback: bool, limit: int) -> None:
    """Show everything about the job ID.

    Its options, payload, result, durable steps, and the history of its attempts with their errors.

    \b
    Examples:
      taskharbor inspect 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --traceback
      taskharbor inspect 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --json | jq .history
    """

    async def work(harbor: Harbor) -> tuple[Job[Any], list[Step], list[Attempt], RetryMetrics]:
        job, steps = await harbor.jobs.aget(job_id), await harbor.jobs.asteps(job_id)
        return job, steps, await job.ahistory(limit), await job.aretry_metrics()

    from taskharbor.views.documents import HistoryEntry, InspectedJob, RetryMetricsDocument

    found, steps, history, metrics = session.run(work)
    entries = [HistoryEntry.of(attempt) for attempt in history]
    document = InspectedJob.of(
        found, steps=steps, history=entries, retry_metrics=RetryMetricsDocument.of(metrics)
    )
    if session.screen.as_json:
        session.screen.document(document)
        return
    session.screen.pairs(_pairs(found, document, metrics))
    if steps:
        session.screen.heading("steps")
        rows = [(step.name, step.number, _compact(step.result)) for step in steps]
        session.screen.table(("STEP", "ATTEMPT", "RESULT"), rows)
    session.screen.heading("history, newest first")
    _tell_history(session.screen, history, traceback=traceback)


def _pairs(job: Job[Any], document: JobDocument, metrics: RetryMetrics) -> dict[str, Cell]:
    from taskharbor.codec import shorten

    unreadable = job.record.unreadable_options
    return {
        "id": job.id,
        "task": job.task,
        "state": job.state,
        "reason": job.reason,
        "error": job.error,
        "queue": job.queue,
        "priority": job.priority,
        "failures": job.attempts,
        "attempt": job.number,
        "options": None if unreadable is None else f"unreadable: {shorten(unreadable)}",
        "unreadable": _compact(document.unreadable or None),
        "max attempts": job.max_attempts,
        "retry": _compact(document.retry),
        "retries": str(metrics) if metrics.total_attempts else None,
        "timeout": None if job.timeout is None else span(job.timeout),
        "delivery": job.delivery,
        "key": job.idempotency_key,
        "correlation id": job.correlation_id,
        "tags": ", ".join(job.tags) or None,
        "meta": _compact(job.meta or None),
        "workflow": job.workflow,
        "depends on": ", ".join(document.depends_on) or None,
        "enqueued at": job.enqueued_at,
        "run at": job.run_at,
        "expires at": job.expires_at,
        "finished at": job.finished_at,
        "failed at": job.failed_at,
        "worker": job.worker,
        "lease until": job.lease_expires_at,
        "lease expired": True if job.lease_expired else None,
        "cancel requested": True if job.cancel_requested else None,
        "progress": None
        if job.progress is None
        else f"{job.progress.fraction:.0%} {job.progress.message}".strip(),
        "payload": _compact(document.payload),
        "result": _compact(document.result),
    }


def _compact(value: object) -> str | None:
    return None if value is None else json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _tell_history(screen: Screen, history: list[Attempt], *, traceback: bool) -> None:
    screen.table(
        ("NUMBER", "STATUS", "STARTED", "TOOK", "WORKER", "ERROR"),
        [
            (
                attempt.number,
                attempt.status,
                attempt.started_at,
                None if attempt.started_at is None else attempt.finished_at - attempt.started_at,
                attempt.worker,
                attempt.error or attempt.detail,
            )
            for attempt in history
        ],
        empty="no attempt yet",
        optional=("WORKER", "TOOK"),
    )
    if not traceback:
        return
    for attempt in history:
        if attempt.traceback:
            screen.heading(f"traceback of attempt {attempt.number}")
            screen.block(attempt.traceback)


# -- cancel ----------------------------------------------------------------------------------------


@click.command
@click.argument("job_id", metavar="ID")
@with_session
def cancel(session: Session, job_id: str) -> None:
    """Cancel the job ID, or ask it to stop if it is running.

    \b
    Example:
      taskharbor cancel 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    found = session.run(lambda harbor: harbor.jobs.acancel(job_id))
    asked = "asked to stop; it is still running" if found.cancel_requested else str(found.state)
    tell_job(session.screen, found, asked)


def tell_job(screen: Screen, job: Job[Any], what: str) -> None:
    """Print what happened to one job."""
    if screen.as_json:
        from taskharbor.views.documents import JobDocument

        screen.document(JobDocument.of(job))
    else:
        screen.line(f"{job.id}  {job.task}: {what}")
