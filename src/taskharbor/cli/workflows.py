"""`taskharbor workflow …`: reading and changing workflows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.filters import PAGE_MAX
from taskharbor.cli.jobs import whole_page
from taskharbor.cli.screen import Screen, age, instant, span
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.handle import Attempt, Job
    from taskharbor.client.harbor import Harbor
    from taskharbor.workflow import Workflow
    from taskharbor.workflow.handle import WorkflowStateName

STATES = ("running", "stuck", "succeeded", "cancelled")
DRAWN_MAX = 500  # jobs whose times are looked up


@click.group(no_args_is_help=False)
def workflow() -> None:
    """See workflows; cancel and retry them.

    \b
    Example:
      taskharbor workflow show 0197f3c2-8a5e-7cc3-98c8-5d1f9a300000
    """


@workflow.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only workflows in this state.")
@click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=50, show_default=True)
@click.option("--cursor", metavar="ID", help="Continue after the previous list.")
@with_session
def list_workflows(session: Session, limit: int, cursor: str | None, state: WorkflowStateName | None) -> None:
    """Show workflows, newest first.

    \b
    Examples:
      taskharbor workflow list --state stuck
      taskharbor workflow list --limit 200 --json
    """
    page, next_cursor = session.run(
        lambda harbor: whole_page(partial(harbor.workflows.alist, state=state), limit, cursor)
    )
    screen = session.screen
    if screen.as_json:
        from taskharbor.views.workflow_documents import WorkflowDocument, WorkflowPage

        screen.document(WorkflowPage([WorkflowDocument.of(each) for each in page], next_cursor))
        return
    screen.table(
        ("ID", "STATE", "SUCCEEDED", "TOTAL", "DEAD", "CANCELLED", "ENQUEUED"),
        [
            (
                each.id,
                each.state,
                each.progress.done,
                each.progress.total,
                each.counts["dead"],
                each.counts["cancelled"],
                each.enqueued_at,
            )
            for each in page
        ],
        empty="no workflows",
        optional=("CANCELLED", "DEAD", "ENQUEUED"),
    )
    if next_cursor is not None:
        screen.note(f"there are more: --cursor {next_cursor}")


@workflow.command("show")
@click.argument("workflow_id", metavar="ID")
@with_session
def show(session: Session, workflow_id: str) -> None:
    """Draw the workflow ID as a tree, with the state and the times of its jobs.

    In a group of more than 20, only the members that failed are drawn; the others are counted.

    \b
    Example:
      taskharbor workflow show 0197f3c2-8a5e-7cc3-98c8-5d1f9a300000
    """
    found, jobs, attempts = session.run(lambda harbor: _read(harbor, workflow_id))
    if session.screen.as_json:
        from taskharbor.views.job_documents import JobDocument
        from taskharbor.views.workflow_documents import WorkflowWithJobs

        documents = [JobDocument.of(job) for job in jobs.values()]
        session.screen.document(WorkflowWithJobs.of(found, jobs=documents))
        return
    _draw(session.screen, found, jobs, attempts)


async def _read(harbor: Harbor, workflow_id: str) -> tuple[Workflow, dict[int, Job[Any]], dict[str, Attempt]]:
    """Read the workflow, its jobs that still exist, and the latest attempt of each job that is drawn."""
    from taskharbor.client.handle import Job
    from taskharbor.workflow.tree import branches, leaves

    found = await harbor.workflows.aget(workflow_id)
    ids = found.jobs.ids
    jobs: dict[int, Job[Any]] = {}
    for start in range(0, len(ids), 500):
        for offset, record in enumerate(await harbor.driver.get(ids[start : start + 500])):
            if record is not None:
                jobs[start + offset] = Job(record, harbor)
    drawn = [index for index in leaves(branches(found.shape), _state_in(jobs)) if index in jobs]
    attempts = {}
    for index in drawn[:DRAWN_MAX]:
        if jobs[index].number:
            for attempt in await jobs[index].ahistory(1):
                attempts[jobs[index].id] = attempt
    return found, jobs, attempts


def _state_in(jobs: dict[int, Job[Any]]) -> Any:
    return lambda index: str(jobs[index].state) if index in jobs else "deleted"


def _draw(screen: Screen, found: Workflow, jobs: dict[int, Job[Any]], attempts: dict[str, Attempt]) -> None:
    from taskharbor.workflow.tree import branches, drawn

    def line_of(index: int) -> str:
        if index not in jobs:
            return f"job {index}: deleted"
        job = jobs[index]
        parts = [job.task, str(job.state), *_times(job, attempts.get(job.id), screen), job.id]
        if job.reason is not None:
            parts.append(f"{job.reason}: {job.error}" if job.error else str(job.reason))
        return "  ".join(parts)

    screen.line(f"workflow {found.id}: {found.state}, {_succeeded(found)}")
    for line in drawn(branches(found.shape), _state_in(jobs), line_of):
        screen.line(line)


def _times(job: Job[Any], attempt: Attempt | None, screen: Screen) -> list[str]:
    times = []
    if attempt is not None and attempt.started_at is not None:
        times.append(span((attempt.finished_at - attempt.started_at).total_seconds()))
    when = job.finished_at or (job.run_at if str(job.state) == "scheduled" else None)
    if when is not None:
        times.append(age(when) if screen.is_terminal else instant(when))
    return times


@workflow.command("cancel")
@click.argument("workflow_id", metavar="ID")
@with_session
def cancel(session: Session, workflow_id: str) -> None:
    """Cancel the jobs of the workflow ID that have not begun, and ask its running jobs to stop.

    \b
    Example:
      taskharbor workflow cancel 0197f3c2-8a5e-7cc3-98c8-5d1f9a300000
    """
    _tell(session.screen, session.run(lambda harbor: harbor.workflows.acancel(workflow_id)))


@workflow.command("retry")
@click.argument("workflow_id", metavar="ID")
@click.option("--force", is_flag=True, help="Include at_most_once members that may have been executed.")
@with_session
def retry(session: Session, workflow_id: str, force: bool) -> None:
    """Start a new run of the dead and cancelled jobs of the workflow ID.

    \b
    Example:
      taskharbor workflow retry 0197f3c2-8a5e-7cc3-98c8-5d1f9a300000
    """
    _tell(session.screen, session.run(lambda harbor: harbor.workflows.aretry(workflow_id, force=force)))


def _tell(screen: Screen, found: Workflow) -> None:
    if screen.as_json:
        from taskharbor.views.workflow_documents import WorkflowDocument

        screen.document(WorkflowDocument.of(found))
    else:
        screen.line(f"{found.id}  {found.state}: {_succeeded(found)}")


def _succeeded(found: Workflow) -> str:
    from taskharbor.codec import counted

    return f"{found.progress.done:,} of {counted(found.progress.total, 'job')} succeeded"
