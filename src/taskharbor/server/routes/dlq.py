"""`/dlq`: the dead-letter queue."""

from __future__ import annotations

from taskharbor.server import requests
from taskharbor.server.operation import Call, Routes
from taskharbor.server.options import given, instant
from taskharbor.server.own_tasks import require_admin_for_own
from taskharbor.server.paging import page_of_jobs
from taskharbor.server.tokens import Role
from taskharbor.views.bulk import CountDocument, Discarded, Requeued
from taskharbor.views.group_documents import ErrorGroupDocument, ErrorGroups
from taskharbor.views.job_documents import JobDocument, JobPage

routes = Routes("dead letters")


@routes.on("GET", "/dlq", Role.READ, query=requests.DeadQuery, errors=(422,))
async def list_dead_jobs(call: Call) -> JobPage:
    """List the dead jobs that match, newest first."""
    page = await page_of_jobs(call.harbor.dlq.alist, given(call.query))
    return JobPage.of(page, items=[JobDocument.of(job) for job in page])


@routes.on("GET", "/dlq/count", Role.READ, query=requests.DeadCountQuery, errors=(422,))
async def count_dead_jobs(call: Call) -> CountDocument:
    """Count the dead jobs that match, up to 10,000."""
    return CountDocument.of(await call.harbor.dlq.acount(**given(call.query)))


@routes.on("GET", "/dlq/groups", Role.READ, query=requests.GroupQuery, errors=(422,))
async def list_error_groups(call: Call) -> ErrorGroups:
    """Group the dead jobs that match by what they died of, the largest groups first."""
    found = await call.harbor.dlq.agroups(**given(call.query))
    return ErrorGroups([ErrorGroupDocument.of(group) for group in found], None)


@routes.on(
    "POST",
    "/dlq/replay",
    Role.ADMIN,
    body=(requests.ReplayRequest,),
    body_required=False,
    errors=(422,),
    examples={"one group": {"fingerprint": "3f9c2a7be01d4c55", "brake": 0.2}},
)
async def replay_dead_jobs(call: Call) -> JobDocument:
    """Enqueue a job that requeues the dead jobs that match in slices, and stops if too many fail again alike."""
    return JobDocument.of(await call.harbor.dlq.areplay(**given(call.body)))


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
    """Requeue every dead job that matches, except at_most_once jobs that may have begun."""
    return Requeued.of(await call.harbor.dlq.arequeue_all(**given(call.body)))


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
    return Discarded.of(await call.harbor.dlq.adiscard_all(**given(call.body)))


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
    await require_admin_for_own(call, await call.job_id())
    job = await call.harbor.dlq.arequeue(await call.job_id(), run_at, reset, force=call.body.force)
    return JobDocument.of(job)


@routes.on("POST", "/dlq/{id}/discard", Role.WRITE, errors=(404, 409, 422))
async def discard_dead_job(call: Call) -> JobDocument:
    """Discard a dead job: it leaves the dead-letter queue and never runs again."""
    return JobDocument.of(await call.harbor.dlq.adiscard(await call.job_id()))


@routes.on("POST", "/dlq/{id}/add", Role.WRITE, errors=(404, 409, 422))
async def add_dead_job(call: Call) -> JobDocument:
    """Dead-letter a job that has not finished and is not running."""
    return JobDocument.of(await call.harbor.dlq.aadd(await call.job_id()))
