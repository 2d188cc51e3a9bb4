"""`/errors`: dead jobs by cause, and what can be done to all jobs of one cause."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.drawing import sparkline
from taskharbor.server.errors import ApiError
from taskharbor.server.routes import dlq, jobs
from taskharbor.server.tokens import Role
from taskharbor.views.documents import JobDocument

pages = Pages()

GROUPS_SHOWN = 100
JOBS_SHOWN = 20
TREND_JOBS = 1_000  # the newest jobs of a group, whose deaths the trend counts
TREND_HOURS = 24
TREND_SECONDS = 5.0  # how old the trend may be


class ReplayForm(Struct, forbid_unknown_fields=True):
    """When a replay stops."""

    brake: Annotated[float, Meta(ge=0, le=100)] = 20


@pages.page("/errors", nav=Nav("Errors", key="e", order=30))
async def show_errors(view: View) -> Response:
    """List the causes that jobs died of, the largest groups first."""
    found = await view.ask(dlq.list_error_groups, query={"limit": GROUPS_SHOWN})
    return view.render("errors.html", groups=found.items, is_cut=len(found.items) == GROUPS_SHOWN)


@pages.page("/errors/{fingerprint}")
async def show_error(view: View) -> Response:
    """Show one cause: how often it struck lately, its newest jobs, and what to do about them."""
    fingerprint = view.params["fingerprint"]
    if not re.fullmatch(r"[0-9a-f]{16}", fingerprint):
        raise ApiError(404, "not_found", "a cause has 16 hexadecimal digits, as in the list of errors")
    found = await view.ask(dlq.list_error_groups, query={"fingerprint": fingerprint, "limit": 1})
    newest = await view.ask(dlq.list_dead_jobs, query={"fingerprint": fingerprint, "limit": JOBS_SHOWN})
    if not found.items:
        raise ApiError(
            404, "not_found", "no dead job has this cause now: its jobs were requeued, discarded or deleted"
        )
    sample = await view.ask(jobs.get_history, params={"id": found.items[0].sample_id}, query={"limit": 1})
    # A thousand jobs take a tenth of a second to read, and a trend of hours changes slowly.
    sampled = await view.ask(
        dlq.list_dead_jobs, query={"fingerprint": fingerprint, "limit": TREND_JOBS}, seconds=TREND_SECONDS
    )
    counts = await _trend(view, sampled.items)
    return view.render(
        "error_group.html",
        group=found.items[0],
        jobs=newest.items,
        traceback=next((attempt.traceback for attempt in sample.items if attempt.traceback), None),
        trend=sparkline(counts, f"Deaths in each of the last {TREND_HOURS} hours"),
        deaths=sum(counts),
        is_sampled=sampled.next_cursor is not None,
        sampled=TREND_JOBS,
    )


async def _trend(view: View, dead: list[JobDocument]) -> list[int]:
    """Count the deaths of each hour, the oldest hour first."""
    now = await view.now()
    counts = [0] * TREND_HOURS
    for job in dead:
        age = timedelta(0) if job.finished_at is None else now - job.finished_at
        hours = int(age.total_seconds() // 3_600)
        if 0 <= hours < TREND_HOURS:
            counts[TREND_HOURS - 1 - hours] += 1
    return counts


@pages.action("/errors/{fingerprint}/replay", Role.ADMIN, form=ReplayForm)
async def replay_group(view: View) -> Response:
    """Requeue a group in slices, and stop if its cause is still there."""
    body = {"fingerprint": view.params["fingerprint"], "brake": view.form.brake / 100}
    job = await view.ask(dlq.replay_dead_jobs, body=body)
    return view.go(view.url("jobs", job.id), "This job replays them. Cancel it to stop.")


@pages.action("/errors/{fingerprint}/discard", Role.ADMIN)
async def discard_group(view: View) -> Response:
    """Discard the jobs of a group."""
    body = {"verb": "discard", "fingerprint": view.params["fingerprint"]}
    job = await view.ask(jobs.start_bulk, body=body)
    return view.go(view.url("jobs", job.id), "This job discards them. Cancel it to stop.")
