"""`/errors`: dead jobs by cause, and what can be done to all jobs of one cause."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from taskharbor.clock import from_micros
from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.drawing import Svg, sparkline
from taskharbor.server.errors import ApiError
from taskharbor.server.routes import dlq, jobs
from taskharbor.server.tokens import Role

pages = Pages()

GROUPS_SHOWN = 100
JOBS_SHOWN = 20
TREND_JOBS = 1_000  # the newest jobs of a group, whose deaths the trend counts
TREND_HOURS = 24
TREND_AT_ONCE = 100
TREND_QUERIES = 1 + TREND_JOBS // TREND_AT_ONCE
TREND_SECONDS = 30.0  # how old the trend may be: it is one of hours
TREND_WAIT = 0.05  # seconds that the page waits for it


class ReplayForm(Struct, forbid_unknown_fields=True):
    """When a replay stops."""

    brake: Annotated[float, Meta(ge=0, le=100)] = 20


@pages.page("/errors", nav=Nav("Errors", key="e", order=30))
async def show_errors(view: View) -> Response:
    """List the causes that jobs died of, the largest groups first."""
    found = await view.ask(dlq.list_error_groups, query={"limit": GROUPS_SHOWN})
    trend = await _trend(view)
    return view.render(
        "errors.html",
        groups=found.items,
        is_cut=len(found.items) == GROUPS_SHOWN,
        trends=None
        if trend is None
        else {group.fingerprint: _drawn(trend.of(group.fingerprint)) for group in found.items},
        is_sampled=trend is not None and trend.is_sampled,
        sampled=TREND_JOBS,
    )


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
    trend = await _trend(view, fingerprint)
    counts = None if trend is None else trend.of(fingerprint)
    return view.render(
        "error_group.html",
        group=found.items[0],
        jobs=newest.items,
        traceback=next((attempt.traceback for attempt in sample.items if attempt.traceback), None),
        trend=None if counts is None else _drawn(counts),
        deaths=None if counts is None else sum(counts),
        is_sampled=trend is not None and trend.is_sampled,
        sampled=TREND_JOBS,
    )


class Trend(Struct, frozen=True):
    """How many of the newest dead jobs died in each hour, by cause, the oldest hour first."""

    deaths: dict[str, list[int]]
    is_sampled: bool  # there are more than were looked at

    def of(self, fingerprint: str) -> list[int]:
        return self.deaths.get(fingerprint, [0] * TREND_HOURS)


async def _trend(view: View, fingerprint: str | None = None) -> Trend | None:
    """Return the trend of one cause or of all; None while it is read: a thousand jobs take a tenth of a second."""

    async def read() -> Trend:
        where: dict[str, Any] = {"state": "dead"} if fingerprint is None else {"fingerprint": fingerprint}
        now = from_micros(await view.harbor.driver.now())
        deaths: dict[str, list[int]] = {}
        cursor: str | None = None
        for _ in range(TREND_JOBS // TREND_AT_ONCE):  # a few at once, so that other pages have their turn
            page = await view.harbor.jobs.alist(cursor=cursor, limit=TREND_AT_ONCE, **where)
            for job in page:
                age = timedelta(0) if job.finished_at is None else now - job.finished_at
                hours = int(age.total_seconds() // 3_600)
                if job.state == "dead" and job.fingerprint is not None and 0 <= hours < TREND_HOURS:
                    counts = deaths.setdefault(job.fingerprint, [0] * TREND_HOURS)
                    counts[TREND_HOURS - 1 - hours] += 1
            cursor = page.next_cursor
            if cursor is None:
                break
        return Trend(deaths, cursor is not None)

    found: Trend | None = await view.share(
        f"trend {fingerprint}", TREND_SECONDS, read, queries=TREND_QUERIES, wait=TREND_WAIT
    )
    return found


def _drawn(counts: list[int]) -> Svg:
    return sparkline(counts, f"Deaths in each of the last {TREND_HOURS} hours")


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
