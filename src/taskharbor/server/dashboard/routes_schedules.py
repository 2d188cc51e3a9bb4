"""`/schedules`: what recurs, when it runs next, and how it went."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from taskharbor.codec import counted
from taskharbor.errors import TaskHarborError
from taskharbor.schedule import parse
from taskharbor.server.dashboard.json_tree import json_tree
from taskharbor.server.dashboard.masking import masked
from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.drawing import Run, Svg, strip
from taskharbor.server.routes import jobs, schedules
from taskharbor.server.tokens import Role
from taskharbor.views.job_documents import AttemptDocument, History
from taskharbor.views.schedule_documents import ScheduleDocument

pages = Pages()

RUNS_SHOWN = 50
STRIPS_MAX = 50  # schedules of the list whose runs are drawn
RUNS_SECONDS = 600.0  # how long they are kept
INSTANTS_SHOWN = 10


class ApplicationQuery(Struct, forbid_unknown_fields=True):
    """Whose schedule; the server's own application if it is left out."""

    application: str | None = None


class NamedForm(Struct, forbid_unknown_fields=True):
    application: str | None = None


class EditForm(Struct, forbid_unknown_fields=True):
    """Changes of a schedule. Without `sure`, only the next runs are shown."""

    schedule: str = ""
    timezone: str = ""
    sure: bool = False
    application: str | None = None


@pages.page("/schedules", nav=Nav("Schedules", key="s", order=40))
async def show_schedules(view: View) -> Response:
    """List the schedules with their next run and the last fifty runs."""
    found = await view.ask(schedules.list_schedules)
    strips = {each.id: await _strip(view, each) for each in found.items[:STRIPS_MAX]}
    return view.render("schedules.html", schedules=found.items, strips=strips)


@pages.page("/schedules/{name:path}", query=ApplicationQuery)
async def show_schedule(view: View) -> Response:
    """Show one schedule."""
    schedule = await _named(view, view.query.application)
    return await _page(view, schedule, schedule.schedule, schedule.timezone)


async def _named(view: View, application: str | None) -> ScheduleDocument:
    query = {} if application is None else {"application": application}
    found: ScheduleDocument = await view.ask(schedules.get_schedule, params=view.params, query=query)
    return found


async def _page(
    view: View, schedule: ScheduleDocument, expression: str, timezone: str, *, is_edited: bool = False
) -> Response:
    instants, problem = next_instants(expression, timezone, await view.now())
    history = await _runs(view, schedule)
    return view.render(
        "schedule.html",
        status=200 if problem is None else 422,
        schedule=schedule,
        payload=json_tree(masked(schedule.payload)),
        runs=_drawn(view, schedule, history.items),
        history=history.items[:10],
        expression=expression,
        timezone=timezone,
        instants=instants,
        problem=problem,
        is_edited=is_edited,
    )


def next_instants(expression: str, timezone: str, now: datetime) -> tuple[list[datetime], str | None]:
    """Return the next ten times at which an expression runs, or what is wrong with it."""
    try:
        recurring = parse(expression, timezone)
        instants = [recurring.next_after(now)]
        while len(instants) < INSTANTS_SHOWN:
            instants.append(recurring.next_after(instants[-1]))
    except (TaskHarborError, ValueError, OverflowError) as error:
        return [], str(error)
    return instants, None


async def _strip(view: View, schedule: ScheduleDocument) -> Svg:
    return _drawn(view, schedule, (await _runs(view, schedule)).items)


async def _runs(view: View, schedule: ScheduleDocument) -> History:
    """Return the newest attempts of a schedule, which are read again when another one has ended."""

    async def read() -> History:
        query = {"limit": RUNS_SHOWN}
        history: History = await view.ask(
            jobs.get_history, params={"id": schedule.id}, query=query, seconds=0
        )
        return history

    key = f"runs {schedule.id} {schedule.last_finished_at}"
    found: History = await view.share(key, RUNS_SECONDS, read)
    return found


def _drawn(view: View, schedule: ScheduleDocument, newest_first: list[AttemptDocument]) -> Svg:
    runs = []
    for attempt in reversed(newest_first):
        outcome = "succeeded" if attempt.status == "SUCCESS" else attempt.status.lower()
        words = f"{outcome.replace('_', ' ')} at {attempt.finished_at:%Y-%m-%d %H:%M:%S} UTC"
        runs.append(Run(outcome, words, view.url("jobs", schedule.id) + f"#attempt-{attempt.number}"))
    good = sum(run.outcome == "succeeded" for run in runs)
    return strip(runs, f"{good} of {counted(len(runs), 'attempt')} succeeded, the newest ones")


# -- actions -----------------------------------------------------------------------------------------


def _asked(view: View) -> dict[str, Any]:
    query = {} if view.form.application is None else {"application": view.form.application}
    return {"params": view.params, "query": query}


def _done(view: View, words: str) -> Response:
    to = view.url("schedules", view.params["name"], application=view.form.application)
    return view.done(words, to=to)


@pages.action("/schedules/{name:path}/pause", Role.WRITE, form=NamedForm)
async def pause_schedule(view: View) -> Response:
    """Pause a schedule."""
    await view.ask(schedules.pause_schedule, **_asked(view))
    return _done(view, "Paused. A run that is in progress continues.")


@pages.action("/schedules/{name:path}/resume", Role.WRITE, form=NamedForm)
async def resume_schedule(view: View) -> Response:
    """Resume a schedule."""
    await view.ask(schedules.resume_schedule, **_asked(view))
    return _done(view, "Resumed.")


@pages.action("/schedules/{name:path}/run", Role.WRITE, form=NamedForm)
async def run_schedule(view: View) -> Response:
    """Start an extra run."""
    await view.ask(schedules.run_schedule, **_asked(view))
    return _done(view, "An extra run begins: now, or after the one in progress.")


@pages.action("/schedules/{name:path}/delete", Role.WRITE, form=NamedForm)
async def delete_schedule(view: View) -> Response:
    """Delete a schedule with its history."""
    await view.ask(schedules.delete_schedule, **_asked(view))
    return view.go(view.url("schedules"), f"Deleted the schedule {view.params['name']}.")


@pages.action("/schedules/{name:path}/edit", Role.WRITE, form=EditForm)
async def edit_schedule(view: View) -> Response:
    """Show when an edited schedule would run; then change it."""
    form = view.form
    schedule = await _named(view, form.application)
    expression, timezone = form.schedule or schedule.schedule, form.timezone or schedule.timezone
    _, problem = next_instants(expression, timezone, await view.now())
    if not form.sure or problem is not None:
        return await _page(view, schedule, expression, timezone, is_edited=True)
    await view.ask(
        schedules.update_schedule, **_asked(view), body={"schedule": expression, "timezone": timezone}
    )
    return view.go(
        view.url("schedules", schedule.name, application=form.application), "Changed the schedule."
    )
