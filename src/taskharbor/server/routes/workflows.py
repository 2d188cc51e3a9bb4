"""`/workflows`: jobs that depend on each other, as a whole."""

from __future__ import annotations

from taskharbor.server import requests
from taskharbor.server.operation import Call, Routes
from taskharbor.server.options import given
from taskharbor.server.tokens import Role
from taskharbor.views.workflow_documents import WorkflowDocument, WorkflowPage

routes = Routes("workflows")


@routes.on("GET", "/workflows", Role.READ, query=requests.WorkflowQuery, errors=(422,))
async def list_workflows(call: Call) -> WorkflowPage:
    """List the workflows that match, newest first."""
    page = await call.harbor.workflows.alist(**given(call.query))
    return WorkflowPage([WorkflowDocument.of(workflow) for workflow in page], page.next_cursor)


@routes.on("GET", "/workflows/{id}", Role.READ, errors=(404, 422))
async def get_workflow(call: Call) -> WorkflowDocument:
    """Return a workflow."""
    return WorkflowDocument.of(await call.harbor.workflows.aget(call.params["id"]))


@routes.on("POST", "/workflows/{id}/cancel", Role.WRITE, errors=(404, 409, 422))
async def cancel_workflow(call: Call) -> WorkflowDocument:
    """Cancel the jobs of a workflow that have not begun, and ask its running jobs to stop."""
    return WorkflowDocument.of(await call.harbor.workflows.acancel(call.params["id"]))


@routes.on(
    "POST",
    "/workflows/{id}/retry",
    Role.WRITE,
    body=(requests.WorkflowRetryRequest,),
    body_required=False,
    errors=(404, 409, 422),
)
async def retry_workflow(call: Call) -> WorkflowDocument:
    """Start a new run of the dead and cancelled jobs of a workflow."""
    return WorkflowDocument.of(await call.harbor.workflows.aretry(call.params["id"], force=call.body.force))
