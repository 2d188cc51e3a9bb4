"""`/stats`"""

from __future__ import annotations

from taskharbor.server.operation import Call, Routes
from taskharbor.server.tokens import Role
from taskharbor.views.documents import Stats
from taskharbor.views.workers import stats_of

routes = Routes("stats")


@routes.on("GET", "/stats", Role.READ)
async def get_stats(call: Call) -> Stats:
    """Return the counts of jobs by state, the queues, and what the workers do."""
    return await stats_of(call.harbor)
