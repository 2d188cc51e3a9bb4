"""`/dlq`: the dead-letter queue."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.server import documents
from taskharbor.server.operation import Call, Routes, answer
from taskharbor.server.options import given, instant
from taskharbor.server.paging import page_of_jobs
from taskharbor.server.tokens import Role
from taskharbor.views import documents as told

routes = Routes("dead letters")


@routes.on(
    "GET", "/dlq", Role.READ, query=documents.DeadQuery, answers={200: documents.JobPage}, errors=(422,)
)
async def list_dead_jobs(call: Call) -> Response:
    """Dead jobs that match, newest first."""
    page = await page_of_jobs(call.harbor.dlq.alist, given(call.query))
    return answer(told.of_list([told.of_job(job) for job in page], page.next_cursor))


@routes.on(
    "POST",
    "/dlq/requeue-all",
    Role.ADMIN,
    body=(documents.RequeueAllRequest,),
    body_required=False,
    answers={200: documents.Requeued},
    errors=(422,),
    examples={"one queue": {"queue": "mail"}},
)
async def requeue_all(call: Call) -> Response:
    """Requeue every dead job that matches; at_most_once jobs are left alone."""
    return answer({"requeued": await call.harbor.dlq.arequeue_all(**given(call.body))})


@routes.on(
    "POST",
    "/dlq/discard-all",
    Role.ADMIN,
    body=(documents.DeadFilter,),
    body_required=False,
    answers={200: documents.Discarded},
    errors=(422,),
)
async def discard_all(call: Call) -> Response:
    """Discard every dead job that matches."""
    return answer({"discarded": await call.harbor.dlq.adiscard_all(**given(call.body))})


@routes.on(
    "POST",
    "/dlq/{id}/requeue",
    Role.WRITE,
    body=(documents.RequeueRequest,),
    body_required=False,
    answers={200: documents.JobDocument},
    errors=(404, 409, 422),
)
async def requeue_dead_job(call: Call) -> Response:
    """Begin a new run of a dead job."""
    job = await call.harbor.dlq.arequeue(
        call.params["id"], instant(call.body.run_at, "runAt"), call.body.reset_attempts, force=call.body.force
    )
    return answer(told.of_job(job))


@routes.on(
    "POST", "/dlq/{id}/discard", Role.WRITE, answers={200: documents.JobDocument}, errors=(404, 409, 422)
)
async def discard_dead_job(call: Call) -> Response:
    """Take a dead job out of the queue for good."""
    return answer(told.of_job(await call.harbor.dlq.adiscard(call.params["id"])))
