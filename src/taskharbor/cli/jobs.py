"""`taskharbor list`, `inspect` and `cancel`"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from taskharbor.cli.confirming import yes_option
from taskharbor.cli.filters import (
    PAGE_MAX,
    act_on_all,
    count_option,
    dry_run_option,
    each_job,
    ids_argument,
    job_filters,
    named,
    paged,
    tell_count,
    tell_more,
)
from taskharbor.cli.screen import Cell, Screen, span
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.handle import Attempt, Job, Step
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.jobs import JobPage as Page
    from taskharbor.client.retry_metrics import RetryMetrics
    from taskharbor.views.job_documents import InspectedJob, JobDocument, LatestAction


# -- list ----------------------------------------------------------------------------------------


@click.command("list")
@job_filters
@paged
@count_option
@with_session
def list_jobs(session: Session, /, limit: int, cursor: str | None, count: bool, **where: Any) -> None:
    """Show jobs, newest first.

    A search that no index serves looks at the newest jobs for a tenth of a second, or at 100,000 of them. It then says
    how far back it got, and how to go on.

    \b
    Examples:
      taskharbor list --state dead --queue mail
      taskharbor list --tag nightly --limit 200 --json
      taskharbor list --correlation-id order-7
      taskharbor list --error "connection refused" --enqueued-after 2026-01-31T08:00:00Z
    """
    if count:
        tell_count(session, session.run(lambda harbor: harbor.jobs.acount(**where)), "{count}")
        return
    page = session.run(lambda harbor: harbor.jobs.alist(limit=limit, cursor=cursor, **where))
    if session.screen.as_json:
        tell_page_as_json(session.screen, page)
        return
    session.screen.table(
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
            for job in page
        ],
        empty="no jobs",
        optional=("PRIORITY", "FAILURES", "QUEUE", "WHEN"),
    )
    tell_more(session, page)


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


def tell_page_as_json(screen: Screen, page: Page) -> None:
    from taskharbor.views.job_documents import JobDocument, JobPage

    screen.document(JobPage.of(page, items=[JobDocument.of(job) for job in page]))


# -- inspect -------------------------------------------------------------------------------------


@click.command
@ids_argument
@click.option("--traceback", is_flag=True, help="Show the traceback of every failed attempt.")
@click.option(
    "--limit", type=click.IntRange(1, PAGE_MAX), default=100, show_default=True, help="Attempts to show."
)
@with_session
def inspect(session: Session, job_ids: tuple[str, ...], traceback: bool, limit: int) -> None:
    """Show everything about the job ID, or about several.

    Its options, payload, result, durable steps, and the history of its attempts with their errors. With --json,
    several jobs are the items of one document.

    \b
    Examples:
      taskharbor inspect 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --traceback
      taskharbor inspect 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 --json | jq .history
    """

    async def work(harbor: Harbor) -> list[_Inspected]:
        whole_ids = [await harbor.jobs._whole_id(each) for each in job_ids]
        return [await _inspected(harbor, each, limit) for each in dict.fromkeys(whole_ids)]

    found = session.run(work)
    if session.screen.as_json:
        documents = [each.document for each in found]
        session.screen.document(documents[0] if len(documents) == 1 else {"items": documents})
        return
    for position, each in enumerate(found):
        if position:
            session.screen.line("")
        _tell_inspected(session.screen, each, traceback=traceback)


class _Inspected(NamedTuple):
    job: Job[Any]
    steps: list[Step]
    history: list[Attempt]
    metrics: RetryMetrics
    document: InspectedJob


async def _inspected(harbor: Harbor, job_id: str, limit: int) -> _Inspected:
    from taskharbor.views.job_documents import HistoryEntry, InspectedJob, LatestAction
    from taskharbor.views.retry_documents import RetryMetricsDocument

    job, steps = await harbor.jobs.aget(job_id), await harbor.jobs.asteps(job_id)
    action, history, metrics = (
        await job.alatest_action(),
        await job.ahistory(limit),
        await job.aretry_metrics(),
    )
    document = InspectedJob.of(
        job,
        steps=steps,
        history=[HistoryEntry.of(attempt) for attempt in history],
        retry_metrics=RetryMetricsDocument.of(metrics),
        latest_action=LatestAction.maybe(action),
    )
    return _Inspected(job, steps, history, metrics, document)


def _tell_inspected(screen: Screen, found: _Inspected, *, traceback: bool) -> None:
    screen.pairs(_pairs(found.job, found.document, found.metrics))
    if found.steps:
        screen.heading("steps")
        rows = [(step.name, step.number, _compact(step.result)) for step in found.steps]
        screen.table(("STEP", "ATTEMPT", "RESULT"), rows)
    screen.heading("history, newest first")
    _tell_history(screen, found.history, traceback=traceback)


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
        "parent": job.parent,
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
        else f"{job.progress.fraction:.0%} {job.progress.message} {job.progress.value_json or ''}".strip(),
        "latest action": _told(document.latest_action or None),
        "payload": _compact(document.payload),
        "result": _compact(document.result),
    }


def _told(action: LatestAction | None) -> str | None:
    if action is None:
        return None
    at = action.at.strftime("%Y-%m-%d %H:%M:%S %Z")
    return f"{action.verb} by {action.actor or 'an unknown actor'} at {at} ({action.id})"


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
@ids_argument
@with_session
def cancel(session: Session, job_ids: tuple[str, ...]) -> None:
    """Cancel the jobs ID..., or ask those that run to stop.

    \b
    Example:
      taskharbor cancel 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10
    """
    each_job(
        session,
        job_ids,
        lambda harbor, job_id: harbor.jobs.acancel(job_id),
        lambda job: "asked to stop; it is still running" if job.cancel_requested else str(job.state),
    )


@click.command("cancel-all")
@job_filters
@dry_run_option
@yes_option
@with_session
def cancel_all(session: Session, /, dry_run: bool, yes: bool, **where: Any) -> None:
    """Cancel every job that matches and is not finished, or ask it to stop if it is running.

    \b
    Example:
      taskharbor cancel-all --tag nightly --dry-run
    """
    act_on_all(
        session,
        "cancel",
        "cancelled",
        lambda harbor, dry: harbor.jobs.acancel_all(dry_run=dry, **where),
        named(where),
        dry_run=dry_run,
        yes=yes,
        where=where,
    )


@click.command("delete-all")
@job_filters
@dry_run_option
@yes_option
@with_session
def delete_all(session: Session, /, dry_run: bool, yes: bool, **where: Any) -> None:
    """Delete every job that matches and is not running, with its history.

    \b
    Example:
      taskharbor delete-all --state cancelled --finished-before 2026-01-31T00:00:00Z --yes
    """
    act_on_all(
        session,
        "delete",
        "deleted",
        lambda harbor, dry: harbor.jobs.adelete_all(dry_run=dry, **where),
        named(where),
        dry_run=dry_run,
        yes=yes,
        where=where,
    )


def tell_job(screen: Screen, job: Job[Any], what: str) -> None:
    """Print what happened to one job."""
    if screen.as_json:
        from taskharbor.views.job_documents import JobDocument

        screen.document(JobDocument.of(job))
    else:
        screen.line(f"{job.id}  {job.task}: {what}")
