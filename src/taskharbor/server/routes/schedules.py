"""`/schedules`: jobs that recur, by name."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from taskharbor.client.schedule import Schedule
from taskharbor.server import documents
from taskharbor.server.http_jobs import refuse_closed
from taskharbor.server.operation import Call, Routes, answer, no_content
from taskharbor.server.options import given, given_anew
from taskharbor.server.tokens import Role
from taskharbor.views import documents as told

routes = Routes("schedules")

_ONE: dict[str, Any] = {
    "query": documents.ApplicationQuery,
    "answers": {200: documents.ScheduleDocument},
    "errors": (404, 409, 422),
}
_NAMED = "/schedules/{name:path}"


@routes.on(
    "GET",
    "/schedules",
    Role.READ,
    query=documents.ApplicationQuery,
    answers={200: documents.ScheduleList},
    errors=(422,),
)
async def list_schedules(call: Call) -> Response:
    """Every schedule of the store, or of one application, by name."""
    found = await call.harbor.schedules.alist(call.query.application)
    return answer(told.of_list([told.of_schedule(schedule) for schedule in found]))


@routes.on(
    "POST",
    "/schedules",
    Role.WRITE,
    query=documents.ApplicationQuery,
    body=(documents.NewSchedule,),
    answers={201: documents.ScheduleDocument},
    errors=(409, 422),
    examples={"every morning": {"name": "report", "task": "reports.build", "schedule": "0 6 * * *"}},
)
async def create_schedule(call: Call) -> Response:
    """Let a job recur. A name that is taken is a conflict."""
    if isinstance(call.body.payload, dict):
        refuse_closed(call.harbor, call.body.task, call.body.payload)
    schedule = await call.harbor.schedules.aadd(
        call.body.name,
        call.body.task,
        application=call.query.application,
        replace=False,
        **given_anew(call.body, without=("name", "task")),
    )
    return _told(schedule, 201)


@routes.on("POST", f"{_NAMED}/pause", Role.WRITE, **_ONE)
async def pause_schedule(call: Call) -> Response:
    """Let it run no more, until it is resumed. A run that is under way goes on."""
    return _told(await call.harbor.schedules.apause(call.params["name"], application=call.query.application))


@routes.on("POST", f"{_NAMED}/resume", Role.WRITE, **_ONE)
async def resume_schedule(call: Call) -> Response:
    """Let it run again."""
    return _told(await call.harbor.schedules.aresume(call.params["name"], application=call.query.application))


@routes.on("POST", f"{_NAMED}/run", Role.WRITE, **_ONE)
async def run_schedule(call: Call) -> Response:
    """An extra run that consumes no occurrence: at once, or right after the run that is under way."""
    return _told(
        await call.harbor.schedules.arun_now(call.params["name"], application=call.query.application)
    )


@routes.on("GET", _NAMED, Role.READ, **_ONE)
async def get_schedule(call: Call) -> Response:
    """A schedule as it stands."""
    return _told(await call.harbor.schedules.aget(call.params["name"], application=call.query.application))


@routes.on("PATCH", _NAMED, Role.WRITE, body=(documents.ScheduleChanges,), **_ONE)
async def update_schedule(call: Call) -> Response:
    """Change a schedule, also one that runs."""
    await _refuse_closed(call)
    changed = await call.harbor.schedules.aupdate(
        call.params["name"], application=call.query.application, **given(call.body)
    )
    return _told(changed)


@routes.on(
    "DELETE",
    _NAMED,
    Role.WRITE,
    query=documents.ApplicationQuery,
    answers={204: None},
    errors=(404, 409, 422),
)
async def delete_schedule(call: Call) -> Response:
    """Remove a schedule with its history. A run that is under way goes on, and is the last one."""
    await call.harbor.schedules.adelete(call.params["name"], application=call.query.application)
    return no_content()


async def _refuse_closed(call: Call) -> None:
    """By the task and the payload that it would have: either may be changed without the other."""
    task, payload = call.body.task, call.body.payload
    if task is UNSET and payload is UNSET:
        return
    now = await call.harbor.schedules.aget(call.params["name"], application=call.query.application)
    refuse_closed(
        call.harbor, now.task if task is UNSET else task, now.payload if payload is UNSET else payload
    )


def _told(schedule: Schedule, status: int = 200) -> Response:
    return answer(told.of_schedule(schedule), status)
