"""`/queues` and one queue: its depth, its age, its rate, who serves it, and whether it is paused."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.responses import Response

from taskharbor.clock import from_micros
from taskharbor.codec import checked_name
from taskharbor.drivers.base import PauseRecord
from taskharbor.drivers.capabilities import Audit, Rollups
from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.routes_overview import (
    DEPTHS_SECONDS,
    DEPTHS_WAIT,
    WINDOWS,
    WindowQuery,
    charts_of,
    read_series,
    read_stats,
)
from taskharbor.server.dashboard.view import LIVE_SECONDS, View
from taskharbor.server.routes import queues, stats
from taskharbor.server.tokens import Role
from taskharbor.views.queue_documents import QueueDocument
from taskharbor.views.rates import backlog_of, rates_of, serving
from taskharbor.views.rollup_documents import QueueDemandDocument

pages = Pages()


@pages.page("/queues", nav=Nav("Queues", key="q", order=20))
async def show_queues(view: View) -> Response:
    """List every queue that has runnable or running jobs, or is paused, or that a worker serves by name."""
    found = await read_stats(view)
    if found is None:
        return view.render("queues.html", queues=None)
    known = {queue.name: queue for queue in found.queues}
    for name in {name for worker in found.workers for name in worker.queues or ()} - known.keys():
        known[name] = _idle(name)
    demand = await _demand(view)
    for name in demand.keys() - known.keys():
        known[name] = _idle(name)
    return view.render(
        "queues.html",
        queues=[known[name] for name in sorted(known)],
        demand=demand,
        serving={name: serving(found.workers, name) for name in known},
        depths_seconds=DEPTHS_SECONDS,
    )


@pages.page("/queues/{name:path}", query=WindowQuery)
async def show_queue(view: View) -> Response:
    """Show one queue."""
    name = checked_name("queue", view.params["name"])
    found = await read_stats(view)
    window = WINDOWS[view.query.window]
    series = await read_series(view, window, name)
    recent = series if window.step == "minute" else await read_series(view, WINDOWS["1h"], name)
    queue = _idle(name)
    if found is None:  # whether it is paused is known at once
        pause = await _pause(view, name)
        if pause is not None:
            queue = replace(queue, paused=True, paused_by=pause.by, paused_since=from_micros(pause.since))
    else:
        queue = next((each for each in found.queues if each.name == name), queue)
    return view.render(
        "queue.html",
        queue=queue,
        is_counted=found is not None,
        demand=None if found is None else (await _demand(view)).get(name),
        workers=[] if found is None else serving(found.workers, name),
        windows=WINDOWS,
        chosen=view.query.window,
        series=series,
        rates=None if series is None else rates_of(series.total),
        backlog=backlog_of([queue], [] if recent is None else recent.items),
        charts=None if series is None else charts_of(series.items),
        depths_seconds=DEPTHS_SECONDS,
    )


async def _pause(view: View, name: str) -> PauseRecord | None:
    """Return who paused this queue, if it is paused and the store keeps that."""
    audit = Audit.offered_by(view.harbor.driver)
    if audit is None:
        return None
    pauses = await view.share("pauses", LIVE_SECONDS, audit.pauses, queries=1)
    return next((pause for pause in pauses if pause.queue == name), None)


@pages.action("/queues/{name:path}/pause", Role.ADMIN)
async def pause_queue(view: View) -> Response:
    """Pause a queue."""
    await view.ask(queues.pause_queue, params=view.params)
    name = view.params["name"]
    return view.done(f"Paused the queue {name}. Running jobs continue.", to=view.url("queues", name))


@pages.action("/queues/{name:path}/resume", Role.ADMIN)
async def resume_queue(view: View) -> Response:
    """Resume a queue."""
    await view.ask(queues.resume_queue, params=view.params)
    name = view.params["name"]
    return view.done(f"Resumed the queue {name}.", to=view.url("queues", name))


async def _demand(view: View) -> dict[str, QueueDemandDocument]:
    """Return what the roll-ups say of each queue, where the store keeps them."""
    if Rollups.offered_by(view.harbor.driver) is None:
        return {}
    found = await view.ask(stats.get_autoscale, seconds=DEPTHS_SECONDS, wait=DEPTHS_WAIT)
    return {} if found is None else {each.queue: each for each in found.queues}


def _idle(name: str) -> QueueDocument:
    """Return a queue without jobs, which the store does not list."""
    return QueueDocument(
        name=name,
        paused=False,
        ready=0,
        scheduled=0,
        running=0,
        oldest_ready_at=None,
        oldest_ready_seconds=None,
        paused_by=None,
        paused_since=None,
    )
