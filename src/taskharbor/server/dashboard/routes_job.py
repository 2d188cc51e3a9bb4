"""One job: its state and why, its timeline, its attempts, what it carries, and what can be done to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from taskharbor.client.handle import Step
from taskharbor.codec import encode_payload
from taskharbor.drivers.capabilities import Audit, Steps
from taskharbor.errors import PayloadError
from taskharbor.server.dashboard.job_timeline import child_rows, job_rows
from taskharbor.server.dashboard.json_tree import compared, json_tree, written
from taskharbor.server.dashboard.masking import masked, unmasked
from taskharbor.server.dashboard.pages import Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.drawing import timeline
from taskharbor.server.errors import ApiError
from taskharbor.server.limits import parsed_json
from taskharbor.server.own_tasks import STARTED_BY
from taskharbor.server.routes import audit, dlq, jobs
from taskharbor.server.tokens import Role
from taskharbor.views.job_documents import AttemptDocument, History, JobDocument

pages = Pages()

ATTEMPTS_SHOWN = 50
ACTIONS_SHOWN = 50
STEPS_SHOWN = 200
STEPS_SECONDS = 1.0  # how old they may be
PAST_SECONDS = 15.0  # how old the past of a job that did not change may be: its children may have
CHILDREN_SHOWN = 50
CHILDREN_LOOKED_AT = 200  # jobs of the same correlation id, among which they are
CHILDREN_WITHIN = timedelta(minutes=1)  # of the end of a successful attempt, with which they are stored

# What can be done in each state.
OFFERED = {
    "waiting": ("cancel", "delete"),
    "scheduled": ("run", "cancel", "delete"),
    "ready": ("cancel", "delete"),
    "running": ("cancel",),
    "succeeded": ("delete",),
    "dead": ("retry", "discard", "delete"),
    "cancelled": ("retry", "delete"),
}


class EditForm(Struct, forbid_unknown_fields=True):
    """An edited payload. Without `sure`, only what would change is shown."""

    payload: str = ""
    sure: bool = False


class RetryForm(Struct, forbid_unknown_fields=True):
    force: bool = False


@pages.page("/jobs/{id}")
async def show_job(view: View) -> Response:
    """Show one job."""
    job = await view.ask(jobs.get_job, params=view.params)
    params = {"id": job.id}
    why = await view.ask(jobs.get_why, params=params)
    history, actions, children = await _past(view, job)
    steps = await _steps(view, job.id)
    since = why.facts.since if job.state == "running" else None
    rows = job_rows(job, history.items, actions, steps, running_since=since, now=why.facts.at)
    rows += child_rows(children, lambda child: view.url("jobs", child.id))
    is_recurring = job.schedule is not None
    offered = () if is_recurring and job.state != "running" else OFFERED[job.state]
    needs_force = job.delivery == "at_most_once" and job.number > 0
    return view.render(
        "job.html",
        job=job,
        why=why,
        history=history,
        actions=actions,
        children=children,
        steps=steps[:STEPS_SHOWN],
        steps_left=max(0, len(steps) - STEPS_SHOWN),
        timeline=timeline(
            rows, why.facts.at, f"What happened to the job, from {job.enqueued_at:%Y-%m-%d %H:%M}"
        ),
        payload=json_tree(masked(job.payload)),
        result=None if job.result is None else json_tree(masked(job.result)),
        progress_value=None
        if job.progress is None or job.progress.value is None
        else json_tree(masked(job.progress.value)),
        tree=lambda value: json_tree(masked(value)),
        meta=masked(job.meta),
        is_masked=any(masked(each) != each for each in (job.payload, job.result, job.meta)),
        commands=[_command(view, job, verb, needs_force) for verb in offered],
        offered=offered,
        can_edit=_why_uneditable(job) is None,
        needs_force=needs_force,
    )


def _command(view: View, job: JobDocument, verb: str, needs_force: bool) -> tuple[str, str]:
    """Return the lines that do the same from a terminal: by the command line, and by REST."""
    bearer = '-H "Authorization: Bearer $TOKEN"'
    address = view.absolute("api", "v1", "dlq" if verb == "discard" else "jobs", job.id)
    curl = f"curl -X POST {bearer} {address}/{verb}"
    if verb == "delete":
        curl = f"curl -X DELETE {bearer} {address}"
    cli = {"run": "job run-now", "discard": "dlq discard", "cancel": "cancel"}.get(verb, f"job {verb}")
    line = f"taskharbor {cli} {job.id}"
    if verb == "retry" and needs_force:
        line += " --force"
        curl += " --json '{\"force\": true}'"
    return line, curl


async def _past(view: View, job: JobDocument) -> tuple[History, list[Any], list[JobDocument]]:
    """Return the attempts, the operators' actions and the children. An open page reads them again when they changed."""

    async def read() -> tuple[History, list[Any], list[JobDocument]]:
        query = {"limit": ATTEMPTS_SHOWN}
        history: History = await view.ask(jobs.get_history, params={"id": job.id}, query=query, seconds=0)
        return history, await _actions(view, job.id), await _children(view, job, history.items)

    if not view.is_live:
        return await read()
    mark = f"{job.state} {job.number} {job.version} {job.run_at} {job.finished_at} {job.action_id}"
    found: tuple[History, list[Any], list[JobDocument]] = await view.share(
        f"past {job.id} {mark}", PAST_SECONDS, read, queries=6
    )
    return found


async def _actions(view: View, job_id: str) -> list[Any]:
    if Audit.offered_by(view.harbor.driver) is None:
        return []
    found = await view.ask(audit.list_actions, query={"job": job_id, "limit": ACTIONS_SHOWN}, seconds=0)
    return list(found.items)


async def _children(view: View, job: JobDocument, attempts: Sequence[AttemptDocument]) -> list[JobDocument]:
    """Return the jobs that this one's handler enqueued, the oldest first; they exist from its success on."""
    succeeded = [attempt.finished_at for attempt in attempts if attempt.status == "SUCCESS"]
    if not succeeded:
        return []
    query = {
        "correlationId": job.correlation_id or job.id,
        "enqueuedAfter": (min(succeeded) - CHILDREN_WITHIN).isoformat(),
        "enqueuedBefore": (max(succeeded) + CHILDREN_WITHIN).isoformat(),
        "limit": CHILDREN_LOOKED_AT,
    }
    page = await view.ask(jobs.list_jobs, query=query, seconds=0)
    return [each for each in reversed(page.items) if each.parent == job.id][:CHILDREN_SHOWN]


async def _steps(view: View, job_id: str) -> list[Step]:
    if Steps.offered_by(view.harbor.driver) is None:
        return []
    found: list[Step] = await view.share(
        f"steps {job_id}", STEPS_SECONDS, lambda: view.harbor.jobs.asteps(job_id), queries=1
    )
    return found


# -- actions -----------------------------------------------------------------------------------------


@pages.action("/jobs/{id}/run", Role.WRITE)
async def run_job(view: View) -> Response:
    """Make a scheduled job ready."""
    await view.ask(jobs.run_job, params=view.params)
    return _done(view, "It runs as soon as a worker is free.")


@pages.action("/jobs/{id}/cancel", Role.WRITE)
async def cancel_job(view: View) -> Response:
    """Cancel a job, or ask a running one to stop."""
    job = await view.ask(jobs.cancel_job, params=view.params)
    return _done(view, "Cancelled." if job.state == "cancelled" else "Asked it to stop.")


@pages.action("/jobs/{id}/retry", Role.WRITE, form=RetryForm)
async def retry_job(view: View) -> Response:
    """Begin a new run of a dead or cancelled job."""
    await view.ask(jobs.retry_job, params=view.params, body={"force": view.form.force})
    return _done(view, "A new run begins.")


@pages.action("/jobs/{id}/discard", Role.WRITE)
async def discard_job(view: View) -> Response:
    """Take a dead job out of the dead-letter queue."""
    await view.ask(dlq.discard_dead_job, params=view.params)
    return _done(view, "Discarded: it is cancelled now.")


@pages.action("/jobs/{id}/delete", Role.WRITE)
async def delete_job(view: View) -> Response:
    """Delete a job with its history."""
    await view.ask(jobs.delete_job, params=view.params)
    return view.go(view.url("jobs"), f"Deleted the job {view.params['id']}.")


def _done(view: View, words: str) -> Response:
    return view.done(words, to=view.url("jobs", view.params["id"]))


# -- edit and requeue --------------------------------------------------------------------------------


@pages.page("/jobs/{id}/edit", Role.WRITE)
async def edit_job(view: View) -> Response:
    """Show the payload to edit."""
    job = await view.ask(jobs.get_job, params=view.params)
    _refuse_uneditable(job)
    return _edit_page(view, job, written(masked(job.payload)))


@pages.action("/jobs/{id}/edit", Role.WRITE, form=EditForm)
async def requeue_edited(view: View) -> Response:
    """Show what an edit changes and whether it fits the handler; then enqueue the job anew, and discard the old one."""
    job = await view.ask(jobs.get_job, params=view.params)
    _refuse_uneditable(job)
    edited, problem = _read(view, job, view.form.payload)
    if problem is not None:
        return _edit_page(view, job, view.form.payload, problem=problem)
    if not view.form.sure:
        return _edit_page(view, job, view.form.payload, edited=edited)
    made = await view.ask(jobs.create_job, body=_anew(job, edited))
    if job.state == "dead":
        await view.ask(dlq.discard_dead_job, params={"id": job.id})
    return view.go(view.url("jobs", made.id), f"This job runs instead of {job.id}.")


def _edit_page(
    view: View, job: JobDocument, text: str, *, edited: Any = None, problem: str | None = None
) -> Response:
    return view.render(
        "edit.html",
        status=200 if problem is None else 422,
        job=job,
        text=text,
        problem=problem,
        is_checked=view.harbor._known(job.task) is not None,
        is_edited=edited is not None,
        changes=[] if edited is None else compared(masked(job.payload), masked(edited)),
        hidden=edited is not None and edited != job.payload and masked(edited) == masked(job.payload),
        is_masked=masked(job.payload) != job.payload,
    )


def _why_uneditable(job: JobDocument) -> str | None:
    """Say why a job cannot be edited and requeued; None if it can."""
    if job.state not in ("dead", "cancelled"):
        return f"the job is {job.state}; only a dead or cancelled one is edited and requeued"
    if job.workflow is not None:
        return "the job is a member of a workflow, which waits for this one and no other; retry it as it is"
    if job.task in STARTED_BY or job.task == "http" or job.schedule is not None:
        return f"a job of the task {job.task}, or of a schedule, is not edited here"
    return None


def _refuse_uneditable(job: JobDocument) -> None:
    why = _why_uneditable(job)
    if why is not None:
        raise ApiError(409, "conflict", why)


def _read(view: View, job: JobDocument, text: str) -> tuple[Any, str | None]:
    """Read an edited payload; return it and what is wrong with it."""
    try:
        edited = parsed_json(text.encode())
    except ApiError as error:
        return None, error.message.replace("the body", "the payload")
    if not isinstance(edited, dict):
        return None, "a payload is a JSON object: the arguments by their names"
    try:
        edited = unmasked(edited, job.payload)
    except ValueError as error:
        return None, str(error)
    task = view.harbor._known(job.task)
    try:
        encoded = encode_payload(edited)
        if task is not None:
            task.validate(encoded)
    except PayloadError as error:
        return edited, str(error)
    return edited, None


def _anew(job: JobDocument, payload: dict[str, Any]) -> dict[str, Any]:
    """Return the request for a job like this one with another payload. Sent twice, it makes one job."""
    digest = sha256(encode_payload(payload).encode()).hexdigest()[:16]
    given: dict[str, Any] = {
        "task": job.task,
        "payload": payload,
        "queue": job.queue,
        "priority": job.priority,
        "tags": job.tags,
        "meta": job.meta,
        "delivery": str(job.delivery),
        "idempotencyKey": f"edited:{job.id}:{job.version}:{digest}",
    }
    optional = {
        "maxAttempts": job.max_attempts,
        "timeout": job.timeout,
        "correlationId": job.correlation_id or job.id,
        "retry": None if job.retry is None else msgspec.to_builtins(job.retry),
    }
    return given | {name: value for name, value in optional.items() if value is not None}
