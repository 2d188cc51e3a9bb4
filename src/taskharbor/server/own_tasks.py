"""Tasks of our own that act on many jobs. A caller starts them by their operations, which are for admins."""

from __future__ import annotations

from taskharbor.builtin_tasks import BULK, REPLAY
from taskharbor.client.harbor import Harbor
from taskharbor.server.auth import refuse_too_low
from taskharbor.server.errors import ApiError
from taskharbor.server.operation import Call
from taskharbor.server.tokens import Role

STARTED_BY = {BULK: "POST /jobs/bulk", REPLAY: "POST /dlq/replay"}


def refuse_own_task(harbor: Harbor, task: object) -> None:
    """Refuse to enqueue such a task like any other: its payload says what it does, and in whose name."""
    if isinstance(task, str) and _is_own(harbor, task):
        raise ApiError(403, "forbidden", f"{task} is started with {STARTED_BY[task]}, not enqueued")


async def require_admin_for_own(call: Call, job_id: str) -> None:
    """Require an admin for a new run, or a change, of a job of such a task."""
    job = await call.harbor.jobs.aget(job_id)
    if _is_own(call.harbor, job.task):
        refuse_too_low(Role.ADMIN if call.role is None else call.role, Role.ADMIN)


def _is_own(harbor: Harbor, task: str) -> bool:
    """Whether it is ours: an application may declare a task of the same name, which is then like any other."""
    return task in STARTED_BY and task not in harbor.tasks
