"""`/enqueue`: a job by hand, with its payload checked against the handler's signature."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from starlette.responses import Response

from taskharbor.codec import encode_payload
from taskharbor.errors import PayloadError
from taskharbor.server.dashboard.json_tree import written
from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.errors import ApiError, api_error
from taskharbor.server.limits import parsed_json
from taskharbor.server.own_tasks import STARTED_BY
from taskharbor.server.routes import jobs, tasks
from taskharbor.server.tokens import Role

pages = Pages()

TASKS_SECONDS = 5.0


class EnqueueQuery(Struct, forbid_unknown_fields=True):
    """Which task."""

    task: str | None = None


class EnqueueForm(Struct, forbid_unknown_fields=True):
    """A job. Without `sure`, it is only checked."""

    task: str = ""
    payload: str = "{}"
    queue: str | None = None
    delay: float | None = None
    priority: int | None = None
    tags: str | None = None
    key: str | None = None
    sure: bool = False


@pages.page("/enqueue", Role.WRITE, query=EnqueueQuery, nav=Nav("Enqueue", key="n", order=80))
async def show_enqueue(view: View) -> Response:
    """Show the form of a task."""
    task = view.query.task
    form = EnqueueForm(task or "", "{}" if task is None else written(_template(view, task)))
    return await _page(view, form)


@pages.action("/enqueue", Role.WRITE, form=EnqueueForm)
async def enqueue(view: View) -> Response:
    """Check a job; then enqueue it."""
    form: EnqueueForm = view.form
    try:
        payload = _payload(view, form)
        if not form.sure:
            return await _page(view, form, is_checked=True)
        job = await view.ask(jobs.create_job, body=_request(form, payload))
    except Exception as error:
        refusal = api_error(error)
        if refusal.status >= 500:
            raise
        return await _page(view, form, problem=refusal.message)
    return view.go(
        view.url("jobs", job.id), "A job with this key existed; this is it." if job.attempts else "Enqueued."
    )


async def _page(
    view: View, form: EnqueueForm, *, is_checked: bool = False, problem: str | None = None
) -> Response:
    found = await view.ask(tasks.list_tasks, seconds=TASKS_SECONDS)
    names = {task.name for task in found.items if task.kind == "task"} | set(view.harbor.tasks)
    known = view.harbor._known(form.task) if form.task else None
    return view.render(
        "enqueue.html",
        status=200 if problem is None else 422,
        tasks=sorted(names - STARTED_BY.keys()),
        form=form,
        parameters=[] if known is None else known.plan.described(),
        is_known=known is not None,
        is_checked=is_checked,
        problem=problem,
    )


def _template(view: View, name: str) -> dict[str, Any]:
    """Return a payload with the required names of a task, to be filled in."""
    task = view.harbor._known(name)
    return {} if task is None else dict.fromkeys(task.plan.required)


def _payload(view: View, form: EnqueueForm) -> dict[str, Any]:
    if not form.task:
        raise ApiError(422, "unprocessable", "choose a task")
    try:
        payload = parsed_json(form.payload.encode())
    except ApiError as error:
        raise PayloadError(error.message.replace("the body", "the payload")) from None
    if not isinstance(payload, dict):
        raise PayloadError("a payload is a JSON object: the arguments by their names")
    task = view.harbor._known(form.task)
    encoded = encode_payload(payload)
    if task is not None:
        task.validate(encoded)
    return payload


def _request(form: EnqueueForm, payload: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {"task": form.task, "payload": payload}
    given = {"queue": form.queue, "delay": form.delay, "priority": form.priority, "idempotencyKey": form.key}
    request |= {name: value for name, value in given.items() if value is not None}
    if form.tags:
        request["tags"] = [tag.strip() for tag in form.tags.split(",") if tag.strip()]
    return request
