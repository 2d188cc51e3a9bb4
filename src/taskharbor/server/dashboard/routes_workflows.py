"""`/workflows`: jobs that depend on each other, as a picture."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from starlette.responses import Response

from taskharbor.codec import counted
from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.drawing import Node, graph
from taskharbor.server.routes import jobs, workflows
from taskharbor.server.tokens import Role
from taskharbor.views.job_documents import JobDocument

pages = Pages()

PAGE_SIZE = 50
MEMBERS_MAX = 2_000  # that the picture is made of; a larger workflow is cut, and the page says so
MEMBERS_AT_ONCE = 1_000


class WorkflowsQuery(Struct, forbid_unknown_fields=True):
    """Which workflows."""

    state: str | None = None
    cursor: str | None = None


class RetryForm(Struct, forbid_unknown_fields=True):
    force: bool = False


@pages.page("/workflows", query=WorkflowsQuery, nav=Nav("Workflows", key="w", order=50))
async def show_workflows(view: View) -> Response:
    """List the workflows, newest first."""
    query: dict[str, Any] = {"limit": PAGE_SIZE}
    query |= {name: value for name in ("state", "cursor") if (value := getattr(view.query, name)) is not None}
    page = await view.ask(workflows.list_workflows, query=query)
    return view.render("workflows.html", page=page, chosen=view.query.state)


@pages.page("/workflows/{id}")
async def show_workflow(view: View) -> Response:
    """Show one workflow as a graph of its members."""
    workflow = await view.ask(workflows.get_workflow, params=view.params)
    members = await _members(view, workflow.id)
    nodes = [
        Node(job.id, job.task, str(job.state), job.depends_on, view.url("jobs", job.id))
        for job in reversed(members)
    ]
    drawn = graph(nodes, f"{counted(workflow.total, 'job')}, and what they depend on")
    return view.render(
        "workflow.html",
        workflow=workflow,
        drawn=drawn,
        left_out=drawn.left_out + workflow.total - len(members),
        dead=[job for job in members if job.state == "dead"][:20],
    )


async def _members(view: View, workflow_id: str) -> list[JobDocument]:
    members: list[JobDocument] = []
    cursor: str | None = None
    while len(members) < MEMBERS_MAX:
        query = {"workflow": workflow_id, "limit": MEMBERS_AT_ONCE}
        page = await view.ask(jobs.list_jobs, query=query if cursor is None else {**query, "cursor": cursor})
        members += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return members


@pages.action("/workflows/{id}/cancel", Role.WRITE)
async def cancel_workflow(view: View) -> Response:
    """Cancel the members that have not ended."""
    await view.ask(workflows.cancel_workflow, params=view.params)
    return view.done(
        "Cancelled; running jobs are asked to stop.", to=view.url("workflows", view.params["id"])
    )


@pages.action("/workflows/{id}/retry", Role.WRITE, form=RetryForm)
async def retry_workflow(view: View) -> Response:
    """Begin new runs of the dead and cancelled members."""
    await view.ask(workflows.retry_workflow, params=view.params, body={"force": view.form.force})
    return view.done("New runs begin.", to=view.url("workflows", view.params["id"]))
