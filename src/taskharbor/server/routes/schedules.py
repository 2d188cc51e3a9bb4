"""`/schedules`: jobs that recur, by name."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from taskharbor.server import requests
from taskharbor.server.failure_tasks import with_failure_task
from taskharbor.server.http_jobs import refuse_closed
from taskharbor.server.operation import Call, Routes
from taskharbor.server.options import given, given_anew
from taskharbor.server.own_tasks import refuse_own_task
from taskharbor.server.tokens import Role
from taskharbor.views.schedule_documents import ScheduleDocument, ScheduleList

routes = Routes("schedules")

_ONE: dict[str, Any] = {"query": requests.ApplicationQuery, "errors": (404, 409, 422)}
_NAMED = "/schedules/{name:path}"


@routes.on("GET", "/schedules", Role.READ, query=requests.ApplicationQuery, errors=(422,))
async def list_schedules(call: Call) -> ScheduleList:
    """List every schedule of the store, or of one application, by name."""
    found = await call.harbor.schedules.alist(call.query.application)
    return ScheduleList([ScheduleDocument.of(schedule) for schedule in found], None)


@routes.on(
    "POST",
    "/schedules",
    Role.WRITE,
    query=requests.ApplicationQuery,
    body=(requests.NewSchedule,),
    statuses=(201,),
    errors=(409, 422),
    examples={"every morning": {"name": "report", "task": "reports.build", "schedule": "0 6 * * *"}},
)
async def create_schedule(call: Call) -> ScheduleDocument:
    """Create a schedule. 409: its name is taken."""
    refuse_own_task(call.harbor, call.body.task)
    if isinstance(call.body.payload, dict):
        refuse_closed(call.harbor, call.body.task, call.body.payload)
    options = given_anew(call.body, without=("name", "task"))
    schedule = await call.harbor.schedules.aadd(
        call.body.name,
        call.body.task,
        application=call.query.application,
        replace=False,
        **with_failure_task(call.harbor, options),
    )
    return ScheduleDocument.of(schedule)


@routes.on("POST", f"{_NAMED}/pause", Role.WRITE, **_ONE)
async def pause_schedule(call: Call) -> ScheduleDocument:
    """Pause a schedule until it is resumed. A run that is in progress continues."""
    return ScheduleDocument.of(await call.harbor.schedules.apause(**_named(call)))


@routes.on("POST", f"{_NAMED}/resume", Role.WRITE, **_ONE)
async def resume_schedule(call: Call) -> ScheduleDocument:
    """Resume a paused schedule."""
    return ScheduleDocument.of(await call.harbor.schedules.aresume(**_named(call)))


@routes.on("POST", f"{_NAMED}/run", Role.WRITE, **_ONE)
async def run_schedule(call: Call) -> ScheduleDocument:
    """Start an extra run that uses up no occurrence: now, or right after the run that is in progress."""
    return ScheduleDocument.of(await call.harbor.schedules.arun_now(**_named(call)))


@routes.on("GET", _NAMED, Role.READ, **_ONE)
async def get_schedule(call: Call) -> ScheduleDocument:
    """Return a schedule."""
    return ScheduleDocument.of(await call.harbor.schedules.aget(**_named(call)))


@routes.on("PATCH", _NAMED, Role.WRITE, body=(requests.ScheduleChanges,), **_ONE)
async def update_schedule(call: Call) -> ScheduleDocument:
    """Change a schedule, even while it runs."""
    await _refuse_closed(call)
    changes = with_failure_task(call.harbor, given(call.body))
    changed = await call.harbor.schedules.aupdate(**_named(call), **changes)
    return ScheduleDocument.of(changed)


@routes.on("DELETE", _NAMED, Role.WRITE, statuses=(204,), **_ONE)
async def delete_schedule(call: Call) -> None:
    """Delete a schedule with its history. A run that is in progress continues, and is the last one."""
    await call.harbor.schedules.adelete(**_named(call))


async def _refuse_closed(call: Call) -> None:
    """Check the task and the payload that the schedule would have: either may be changed without the other."""
    task, payload = call.body.task, call.body.payload
    refuse_own_task(call.harbor, task)
    if task is UNSET and payload is UNSET:
        return
    now = await call.harbor.schedules.aget(**_named(call))
    refuse_closed(
        call.harbor, now.task if task is UNSET else task, now.payload if payload is UNSET else payload
    )


def _named(call: Call) -> dict[str, Any]:
    return {"name": call.params["name"], "application": call.query.application}
