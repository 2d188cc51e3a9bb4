"""`/jobs`: enqueueing, reading and changing jobs."""

from __future__ import annotations

from typing import Any

from taskharbor.client.handle import Job
from taskharbor.server import requests
from taskharbor.server.errors import malformed
from taskharbor.server.failure_tasks import with_failure_task
from taskharbor.server.http_jobs import NewHttpJob, enqueue_http_job, refuse_closed
from taskharbor.server.operation import Call, Routes
from taskharbor.server.options import given, given_anew, instant
from taskharbor.server.own_tasks import refuse_own_task, require_admin_for_own
from taskharbor.server.paging import page_of_jobs
from taskharbor.server.tokens import Role
from taskharbor.server.trace_context import store_traced
from taskharbor.views.bulk import Cancelled, Changed, CountDocument, Deleted
from taskharbor.views.job_documents import AttemptDocument, History, JobDocument, JobPage, LatestAction
from taskharbor.views.retry_documents import RetryMetricsDocument
from taskharbor.views.why import WhyDocument

routes = Routes("jobs")

EXAMPLE_TASK = {"task": "email:send", "payload": {"to": "a@b.c", "subject": "hi"}, "queue": "mail"}
EXAMPLE_HTTP = {
    "schedule": "*/10 * * * * *",
    "api": "https://example.com/hook",
    "type": "AT_LEAST_ONCE",
    "isRecurring": True,
    "maxRetryCount": 3,
}


def _which(sent: Any) -> type[Any]:
    """Return which of the two forms was sent."""
    if isinstance(sent, dict) and ("task" in sent) == ("api" in sent):
        what = "not both" if "task" in sent else "and neither was sent"
        raise malformed(f"give task, for a job of that task, or api, for a URL to call: {what}")
    return NewHttpJob if isinstance(sent, dict) and "api" in sent else requests.NewTaskJob


@routes.on(
    "POST",
    "/jobs",
    Role.WRITE,
    body=(requests.NewTaskJob, NewHttpJob),
    choose=_which,
    statuses=(201, 200),
    errors=(422,),
    examples={"task": EXAMPLE_TASK, "HTTP": EXAMPLE_HTTP},
)
async def create_job(call: Call) -> JobDocument:
    """Enqueue a job. 201: it was created; 200: a job with this id or idempotency key existed."""
    if isinstance(call.body, NewHttpJob):
        more = await _failure_task(call, given(call.body))
        job = await enqueue_http_job(call.harbor, call.body, call.place, call.request.headers, more)
    else:
        refuse_own_task(call.harbor, call.body.task)
        options = given_anew(call.body, without=("task", "payload"))
        payload = call.body.payload if isinstance(call.body.payload, dict) else {}
        refuse_closed(call.harbor, call.body.task, payload)
        options |= await _failure_task(call, options)
        new_job = await call.place.beside(call.harbor._by_name, call.body.task, payload, options)
        job = await store_traced(call.harbor, new_job, call.request.headers)
    if job.existed:
        call.status = 200
    return await _document(call, job)


@routes.on("GET", "/jobs", Role.READ, query=requests.JobQuery, errors=(422,))
async def list_jobs(call: Call) -> JobPage:
    """List the jobs that match, newest first."""
    page = await page_of_jobs(call.harbor.jobs.alist, given(call.query))
    return JobPage.of(page, items=[JobDocument.of(job) for job in page])


@routes.on("GET", "/jobs/count", Role.READ, query=requests.JobCountQuery, errors=(422,))
async def count_jobs(call: Call) -> CountDocument:
    """Count the jobs that match, up to 10,000."""
    return CountDocument.of(await call.harbor.jobs.acount(**given(call.query)))


@routes.on(
    "POST",
    "/jobs/cancel-all",
    Role.ADMIN,
    body=(requests.BulkFilter,),
    errors=(422,),
    examples={"one tag": {"tag": "nightly", "dryRun": True}},
)
async def cancel_all_jobs(call: Call) -> Cancelled:
    """Cancel every job that matches and is not finished, or ask it to stop if it is running."""
    return Cancelled.of(await call.harbor.jobs.acancel_all(**given(call.body)))


@routes.on("POST", "/jobs/delete-all", Role.ADMIN, body=(requests.BulkFilter,), errors=(422,))
async def delete_all_jobs(call: Call) -> Deleted:
    """Delete every job that matches and is not running, with its history."""
    return Deleted.of(await call.harbor.jobs.adelete_all(**given(call.body)))


@routes.on(
    "POST",
    "/jobs/update-all",
    Role.ADMIN,
    body=(requests.UpdateAllRequest,),
    errors=(422,),
    examples={"one task": {"task": "mail:send", "changes": {"timeout": 30}, "dryRun": True}},
)
async def update_all_jobs(call: Call) -> Changed:
    """Change every job that matches and is neither running nor finished, but no schedule."""
    where, changes = given(call.body, without=("changes",)), given(call.body.changes)
    return Changed.of(await call.harbor.jobs.aupdate_all(**where, **changes))


@routes.on(
    "POST",
    "/jobs/bulk",
    Role.ADMIN,
    body=(requests.BulkRequest,),
    statuses=(201,),
    errors=(422,),
    examples={"one tag": {"verb": "cancel", "tag": "nightly"}},
)
async def start_bulk(call: Call) -> JobDocument:
    """Enqueue a job that requeues, discards, cancels or deletes every job that matches; it shows its progress."""
    where = given(call.body, without=("verb",))
    return JobDocument.of(await call.harbor.jobs.astart_bulk(call.body.verb, **where))


@routes.on("GET", "/jobs/{id}", Role.READ, errors=(404, 422))
async def get_job(call: Call) -> JobDocument:
    """Return a job."""
    job = await call.harbor.jobs.aget(await call.job_id())
    return JobDocument.of(job, latest_action=LatestAction.maybe(await job.alatest_action()))


@routes.on(
    "PATCH",
    "/jobs/{id}",
    Role.WRITE,
    body=(requests.JobChanges,),
    errors=(404, 409, 422),
    examples={"sooner": {"priority": 9}},
)
async def update_job(call: Call) -> JobDocument:
    """Change a job that is neither running nor finished."""
    await require_admin_for_own(call, await call.job_id())
    if isinstance(call.body.payload, dict):
        job = await call.harbor.jobs.aget(await call.job_id())
        refuse_closed(call.harbor, job.task, call.body.payload)
    return await _document(call, await call.harbor.jobs.aupdate(await call.job_id(), **given(call.body)))


@routes.on("DELETE", "/jobs/{id}", Role.WRITE, statuses=(204,), errors=(404, 409, 422))
async def delete_job(call: Call) -> None:
    """Delete a job that is not running, with its history."""
    await call.harbor.jobs.adelete(await call.job_id())


@routes.on("GET", "/jobs/{id}/history", Role.READ, query=requests.HistoryQuery, errors=(404, 422))
async def get_history(call: Call) -> History:
    """List a job's attempts, newest first, and say how its current run was retried."""
    job = await call.harbor.jobs.aget(await call.job_id())
    attempts = await job.ahistory(call.query.limit)
    retry_metrics = RetryMetricsDocument.of(await job.aretry_metrics())
    return History([AttemptDocument.of(attempt) for attempt in attempts], None, retry_metrics)


@routes.on("GET", "/jobs/{id}/why", Role.READ, errors=(404, 422))
async def get_why(call: Call) -> WhyDocument:
    """Say why a job does not run, or does: one sentence, and the facts behind it."""
    job_id = await call.job_id()
    return WhyDocument.of(await call.harbor.jobs.awhy(job_id), id=job_id)


@routes.on("POST", "/jobs/{id}/cancel", Role.WRITE, errors=(404, 409, 422))
async def cancel_job(call: Call) -> JobDocument:
    """Cancel a job that has not begun, or ask a running one to stop. For a recurring job, this ends the occurrence."""
    return JobDocument.of(await call.harbor.jobs.acancel(await call.job_id()))


@routes.on(
    "POST",
    "/jobs/{id}/retry",
    Role.WRITE,
    body=(requests.RetryRequest,),
    body_required=False,
    errors=(404, 409, 422),
)
async def retry_job(call: Call) -> JobDocument:
    """Start a new run of a dead or cancelled job."""
    run_at = instant(call.body.run_at, "run_at")
    await require_admin_for_own(call, await call.job_id())
    job = await call.harbor.jobs.aretry(await call.job_id(), run_at=run_at, force=call.body.force)
    return JobDocument.of(job)


@routes.on("POST", "/jobs/{id}/run", Role.WRITE, errors=(404, 409, 422))
async def run_job(call: Call) -> JobDocument:
    """Make a scheduled job ready now. For a recurring job, this is an extra run."""
    return JobDocument.of(await call.harbor.jobs.arun_now(await call.job_id()))


async def _failure_task(call: Call, options: dict[str, Any]) -> dict[str, Any]:
    """Return the failure task that was sent, as an option of the harbor; nothing if none was."""
    if "failure_task" not in options:
        return {}
    checked = await call.place.beside(with_failure_task, call.harbor, options)
    return {"failure_task": checked["failure_task"]}


async def _document(call: Call, job: Job[Any]) -> JobDocument:
    """Build the document in a thread if the request, and so the payload, is large."""
    return await call.place.beside(JobDocument.of, job)
