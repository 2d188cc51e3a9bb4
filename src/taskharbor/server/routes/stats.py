"""`/stats`"""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.server import documents
from taskharbor.server.operation import Call, Routes, answer
from taskharbor.server.tokens import Role
from taskharbor.views import documents as told
from taskharbor.views.workers import workers_of

routes = Routes("stats")


@routes.on("GET", "/stats", Role.READ, answers={200: documents.Stats})
async def get_stats(call: Call) -> Response:
    """How many jobs stand where, the queues, and what the workers do."""
    queues = await call.harbor.queues.alist()
    return answer(
        {
            "counts": await call.harbor.jobs.acounts(),
            "queues": [told.of_queue(queue) for queue in queues],
            "workers": await workers_of(call.harbor),
        }
    )
