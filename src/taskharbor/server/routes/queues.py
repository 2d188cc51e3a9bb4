"""`/queues`"""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.server import documents
from taskharbor.server.operation import Call, Routes, answer
from taskharbor.server.tokens import Role
from taskharbor.views import documents as told

routes = Routes("queues")


@routes.on("GET", "/queues", Role.READ, answers={200: documents.QueueList})
async def list_queues(call: Call) -> Response:
    """Every queue that holds runnable or running jobs, or is paused."""
    return answer(told.of_list([told.of_queue(queue) for queue in await call.harbor.queues.alist()]))


@routes.on("POST", "/queues/{name:path}/pause", Role.ADMIN, answers={200: documents.QueueFlag}, errors=(422,))
async def pause_queue(call: Call) -> Response:
    """Stop this queue's jobs from being begun; those that run go on."""
    await call.harbor.queues.apause(call.params["name"])
    return answer({"name": call.params["name"], "paused": True})


@routes.on(
    "POST", "/queues/{name:path}/resume", Role.ADMIN, answers={200: documents.QueueFlag}, errors=(422,)
)
async def resume_queue(call: Call) -> Response:
    """Let this queue's jobs run again."""
    await call.harbor.queues.aresume(call.params["name"])
    return answer({"name": call.params["name"], "paused": False})
