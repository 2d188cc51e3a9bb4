"""`/workers`: who works, on what, since when, and what is stuck."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.routes import tasks
from taskharbor.views.workers import workers_of

pages = Pages()

WORKERS_SHOWN = 200
RUNNING_SHOWN = 200
LAG_BAD_SECONDS = 0.5  # an event loop that runs so late holds up heartbeats and other handlers
TASKS_SECONDS = WORKERS_SECONDS = 5.0


@pages.page("/workers", nav=Nav("Workers", key="p", order=60))
async def show_workers(view: View) -> Response:
    """List the workers, and the jobs that have been running for longer than a heartbeat."""
    workers = await view.share(
        "workers", WORKERS_SECONDS, lambda: workers_of(view.harbor, RUNNING_SHOWN), queries=4
    )
    known = await view.ask(tasks.list_tasks, seconds=TASKS_SECONDS)
    knows: dict[str, list[str]] = {}
    for task in known.items:
        for worker in task.workers:
            knows.setdefault(worker, []).append(task.name)
    running = sorted(
        ((worker.worker, job) for worker in workers for job in worker.running),
        key=lambda each: -each[1].seconds,
    )
    return view.render(
        "workers.html",
        workers=workers[:WORKERS_SHOWN],
        lag_bad=LAG_BAD_SECONDS,
        left=max(0, len(workers) - WORKERS_SHOWN),
        knows=knows,
        running=running[:RUNNING_SHOWN],
        held=[task for task in known.items if task.held],
    )
