"""`/tasks` and `/tags`"""

from __future__ import annotations

from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.server.operation import Call, Routes
from taskharbor.server.tokens import Role
from taskharbor.views.tasks import HoldFlag, TaskList, tasks_of

routes = Routes("tasks")


@routes.on("GET", "/tasks", Role.READ)
async def list_tasks(call: Call) -> TaskList:
    """List the tasks that live workers know, and every task or tag that is held."""
    return await tasks_of(call.harbor)


@routes.on("POST", "/tasks/{name:path}/hold", Role.ADMIN, errors=(422,))
async def hold_task(call: Call) -> HoldFlag:
    """Hold the jobs of a task: no more of them start. Running jobs continue."""
    await call.harbor.holds.ahold(task=call.params["name"])
    return HoldFlag(HoldKind.TASK, call.params["name"], held=True)


@routes.on("POST", "/tasks/{name:path}/release", Role.ADMIN, errors=(422,))
async def release_task(call: Call) -> HoldFlag:
    """Let the held jobs of a task start again."""
    await call.harbor.holds.arelease(task=call.params["name"])
    return HoldFlag(HoldKind.TASK, call.params["name"], held=False)


@routes.on("POST", "/tags/{name:path}/hold", Role.ADMIN, errors=(422,))
async def hold_tag(call: Call) -> HoldFlag:
    """Hold the jobs of a tag: no more of them start. Running jobs continue."""
    await call.harbor.holds.ahold(tag=call.params["name"])
    return HoldFlag(HoldKind.TAG, call.params["name"], held=True)


@routes.on("POST", "/tags/{name:path}/release", Role.ADMIN, errors=(422,))
async def release_tag(call: Call) -> HoldFlag:
    """Let the held jobs of a tag start again."""
    await call.harbor.holds.arelease(tag=call.params["name"])
    return HoldFlag(HoldKind.TAG, call.params["name"], held=False)
