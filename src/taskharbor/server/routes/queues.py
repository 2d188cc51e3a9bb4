"""`/queues`"""

from __future__ import annotations

from taskharbor.server.operation import Call, Routes
from taskharbor.server.tokens import Role
from taskharbor.views.queue_documents import QueueDocument, QueueFlag, QueueList

routes = Routes("queues")


@routes.on("GET", "/queues", Role.READ)
async def list_queues(call: Call) -> QueueList:
    """List every queue that has runnable or running jobs, or is paused."""
    return QueueList([QueueDocument.of(queue) for queue in await call.harbor.queues.alist()], None)


@routes.on("POST", "/queues/{name:path}/pause", Role.ADMIN, errors=(422,))
async def pause_queue(call: Call) -> QueueFlag:
    """Pause a queue: no more of its jobs start. Running jobs continue."""
    await call.harbor.queues.apause(call.params["name"])
    return QueueFlag(call.params["name"], paused=True)


@routes.on("POST", "/queues/{name:path}/resume", Role.ADMIN, errors=(422,))
async def resume_queue(call: Call) -> QueueFlag:
    """Resume a paused queue."""
    await call.harbor.queues.aresume(call.params["name"])
    return QueueFlag(call.params["name"], paused=False)
