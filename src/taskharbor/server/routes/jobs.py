"""`/jobs`: enqueueing, looking at jobs, and changing their fate."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from taskharbor.client.handle import Attempt, Job
from taskharbor.records import AttemptStatus
from taskharbor.server import documents
from taskharbor.server.errors import malformed
from taskharbor.server.http_jobs import NewHttpJob, enqueue_http_job, refuse_closed
from taskharbor.server.operation import Call, Routes, answer, no_content
from taskharbor.server.options import given, given_anew, instant
from taskharbor.server.paging import page_of_jobs
from taskharbor.server.tokens import Role
from taskharbor.views import documents as told

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
    """Which of the two forms was sent."""
    if isinstance(sent, dict) and ("task" in sent) == ("api" in sent):
        what = "not both" if "task" in sent else "and neither was sent"
        raise malformed(f"give task, for a job of that task, or api, for a URL to call: {what}")
    return NewHttpJob if isinstance(sent, dict) and "api" in sent else documents.NewTaskJob


_WORDS = {AttemptStatus.SUCCEEDED: "SUCCESS"}


@routes.on(
    "POST",
    "/jobs",
    Role.WRITE,
    body=(documents.NewTaskJob, NewHttpJob),
    choose=_which,
    answers={201: documents.JobDocument, 200: documents.JobDocument},
    errors=(422,),
    examples={"task": EXAMPLE_TASK, "HTTP": EXAMPLE_HTTP},
)
async def create_job(call: Call) -> Response:
    """Enqueue a job. 201: it was created; 200: it existed already, by its id or its idempotency key."""
    if isinstance(call.body, NewHttpJob):
        job = await enqueue_http_job(call.harbor, call.body)
        return _told(job, 200 if job.existed else 201)
    options = given_anew(call.body, without=("task", "payload"))
    payload = call.body.payload if isinstance(call.body.payload, dict) else {}
    refuse_closed(call.harbor, call.body.task, payload)
    new_job = await call.beside(call.harbor._by_name, call.body.task, payload, options)
    [job] = await call.harbor._store([new_job])
    response: Response = await call.beside(_told, job, 200 if job.existed else 201)
    return response


@routes.on(
    "GET",
    "/jobs",
    Role.READ,
    query=documents.JobQuery,
    answers={200: documents.JobPage},
    errors=(422,),
)
async def list_jobs(call: Call) -> Response:
    """Jobs that match, newest first."""
    page = await page_of_jobs(call.harbor.jobs.alist, given(call.query))
    return answer(told.of_list([told.of_job(job) for job in page], page.next_cursor))


@routes.on("GET", "/jobs/{id}", Role.READ, answers={200: documents.JobDocument}, errors=(404, 422))
async def get_job(call: Call) -> Response:
    """A job as it stands."""
    return _told(await call.harbor.jobs.aget(call.params["id"]))


@routes.on(
    "PATCH",
    "/jobs/{id}",
    Role.WRITE,
    body=(documents.JobChanges,),
    answers={200: documents.JobDocument},
    errors=(404, 409, 422),
    examples={"sooner": {"priority": 9}},
)
async def update_job(call: Call) -> Response:
    """Change a job that is neither running nor finished."""
    if isinstance(call.body.payload, dict):
        job = await call.harbor.jobs.aget(call.params["id"])
        refuse_closed(call.harbor, job.task, call.body.payload)
    return _told(await call.harbor.jobs.aupdate(call.params["id"], **given(call.body)))


@routes.on("DELETE", "/jobs/{id}", Role.WRITE, answers={204: None}, errors=(404, 409, 422))
async def delete_job(call: Call) -> Response:
    """Remove a job that is not running, with its history."""
    await call.harbor.jobs.adelete(call.params["id"])
    return no_content()


@routes.on(
    "GET",
    "/jobs/{id}/history",
    Role.READ,
    query=documents.HistoryQuery,
    answers={200: documents.History},
    errors=(404, 422),
)
async def get_history(call: Call) -> Response:
    """A job's attempts, newest first."""
    attempts = await call.harbor.jobs.ahistory(call.params["id"], call.query.limit)
    return answer(told.of_list([_execution(attempt) for attempt in attempts]))


@routes.on(
    "POST", "/jobs/{id}/cancel", Role.WRITE, answers={200: documents.JobDocument}, errors=(404, 409, 422)
)
async def cancel_job(call: Call) -> Response:
    """End a job that has not begun; ask a running one to end. Of a recurring one, that ends the occurrence."""
    return _told(await call.harbor.jobs.acancel(call.params["id"]))


@routes.on(
    "POST",
    "/jobs/{id}/retry",
    Role.WRITE,
    body=(documents.RetryRequest,),
    body_required=False,
    answers={200: documents.JobDocument},
    errors=(404, 409, 422),
)
async def retry_job(call: Call) -> Response:
    """Begin a new run of a dead or cancelled job."""
    run_at = instant(call.body.run_at, "runAt")
    return _told(await call.harbor.jobs.aretry(call.params["id"], run_at=run_at, force=call.body.force))


@routes.on("POST", "/jobs/{id}/run", Role.WRITE, answers={200: documents.JobDocument}, errors=(404, 409, 422))
async def run_job(call: Call) -> Response:
    """Make a scheduled job ready. Of a recurring one, that is an extra run."""
    return _told(await call.harbor.jobs.arun_now(call.params["id"]))


def _told(job: Job[Any], status: int = 200) -> Response:
    return answer(told.of_job(job), status)


def _execution(attempt: Attempt) -> dict[str, Any]:
    began = attempt.started_at
    return {
        "jobId": attempt.job_id,
        "number": attempt.number,
        "status": _WORDS.get(attempt.status, attempt.status.upper()),
        "retryCount": attempt.retry_count,
        "executionTime": began or attempt.finished_at,
        "executionDuration": None if began is None else (attempt.finished_at - began).total_seconds(),
        "errorMessage": attempt.error,
        "worker": attempt.worker,
        "startedAt": began,
        "finishedAt": attempt.finished_at,
        "traceback": attempt.traceback,
        "detail": attempt.detail,
        "outlived": attempt.outlived,
    }
