"""`/workflows`: jobs that depend on each other, as a whole."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.server import documents
from taskharbor.server.operation import Call, Routes, answer
from taskharbor.server.options import given
from taskharbor.server.tokens import Role
from taskharbor.views import documents as told

routes = Routes("workflows")


@routes.on(
    "GET",
    "/workflows",
    Role.READ,
    query=documents.WorkflowQuery,
    answers={200: documents.WorkflowPage},
    errors=(422,),
)
async def list_workflows(call: Call) -> Response:
    """Workflows that match, newest first."""
    page = await call.harbor.workflows.alist(**given(call.query))
    return answer(told.of_list([told.of_workflow(workflow) for workflow in page], page.next_cursor))


@routes.on("GET", "/workflows/{id}", Role.READ, answers={200: documents.WorkflowDocument}, errors=(404, 422))
async def get_workflow(call: Call) -> Response:
    """A workflow as it stands."""
    return answer(told.of_workflow(await call.harbor.workflows.aget(call.params["id"])))


@routes.on(
    "POST",
    "/workflows/{id}/cancel",
    Role.WRITE,
    answers={200: documents.WorkflowDocument},
    errors=(404, 409, 422),
)
async def cancel_workflow(call: Call) -> Response:
    """End all that has not begun, and ask what is running to end."""
    return answer(told.of_workflow(await call.harbor.workflows.acancel(call.params["id"])))


@routes.on(
    "POST",
    "/workflows/{id}/retry",
    Role.WRITE,
    body=(documents.WorkflowRetryRequest,),
    body_required=False,
    answers={200: documents.WorkflowDocument},
    errors=(404, 409, 422),
)
async def retry_workflow(call: Call) -> Response:
    """Begin again what is dead or cancelled."""
    workflow = await call.harbor.workflows.aretry(call.params["id"], force=call.body.force)
    return answer(told.of_workflow(workflow))
