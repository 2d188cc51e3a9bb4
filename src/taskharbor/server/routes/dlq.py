"""`/dlq`: the dead-letter queue."""

from __future__ import annotations

from taskharbor.server import requests
from taskharbor.server.operation import Call, Routes
from taskharbor.server.options import given, instant
from taskharbor.server.paging import page_of_jobs
from taskharbor.server.tokens import Role
from taskharbor.views.documents import Discarded, JobDocument, JobPage, Requeued

routes = Routes("dead letters")


@routes.on("GET", "/dlq", Role.READ, query=requests.DeadQuery, errors=(422,))
async def list_dead_jobs(call: Call) -> JobPage:
    """List the dead jobs that match, newest first."""
    page = await page_of_jobs(call.harbor.dlq.alist, given(call.query))
    return JobPage([JobDocument.of(job) for job in page], page.next_cursor)


@routes.on(
    "POST",
    "/dlq/requeue-all",
    Role.ADMIN,
    body=(requests.RequeueAllRequest,),
    body_required=False,
    errors=(422,),
    examples={"one queue": {"queue": "mail"}},
)
async def requeue_all(call: Call) -> Requeued:
    """Requeue every dead job that matches, except at_most_once jobs."""
    return Requeued(await call.harbor.dlq.arequeue_all(**given(call.body)))


@routes.on(
    "POST",
    "/dlq/discard-all",
    Role.ADMIN,
    body=(requests.DeadFilter,),
    body_required=False,
    errors=(422,),
)
async def discard_all(call: Call) -> Discarded:
    """Discard every dead job that matches."""
    return Discarded(await call.harbor.dlq.adiscard_all(**given(call.body)))


@routes.on(
    "POST",
    "/dlq/{id}/requeue",
    Role.WRITE,
    body=(requests.RequeueRequest,),
    body_required=False,
    errors=(404, 409, 422),
)
async def requeue_dead_job(call: Call) -> JobDocument:
    """Start a new run of a dead job."""
    run_at, reset = instant(call.body.run_at, "run_at"), call.body.reset_attempts
    job = await call.harbor.dlq.arequeue(call.params["id"], run_at, reset, force=call.body.force)
    return JobDocument.of(job)


@routes.on("POST", "/dlq/{id}/discard", Role.WRITE, errors=(404, 409, 422))
async def discard_dead_job(call: Call) -> JobDocument:
    """Discard a dead job: it leaves the dead-letter queue and never runs again."""
    return JobDocument.of(await call.harbor.dlq.adiscard(call.params["id"]))
