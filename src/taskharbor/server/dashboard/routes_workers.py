"""`/workers`: who works, on what, since when, and what is stuck."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.routes_overview import read_stats
from taskharbor.server.dashboard.view import View
from taskharbor.server.routes import tasks

pages = Pages()

WORKERS_SHOWN = 200
RUNNING_SHOWN = 200
TASKS_SECONDS = 5.0


@pages.page("/workers", nav=Nav("Workers", key="p", order=60))
async def show_workers(view: View) -> Response:
    """List the workers, and the jobs that have been running for longer than a heartbeat."""
    found = await read_stats(view)
    known = await view.ask(tasks.list_tasks, seconds=TASKS_SECONDS)
    knows: dict[str, list[str]] = {}
    for task in known.items:
        for worker in task.workers:
            knows.setdefault(worker, []).append(task.name)
    running = sorted(
        ((worker.worker, job) for worker in found.workers for job in worker.running),
        key=lambda each: -each[1].seconds,
    )
    return view.render(
        "workers.html",
        workers=found.workers[:WORKERS_SHOWN],
        left=max(0, len(found.workers) - WORKERS_SHOWN),
        knows=knows,
        running=running[:RUNNING_SHOWN],
        held=[task for task in known.items if task.held],
    )
