"""The built-in task that acts on all jobs that match a filter: `harbor.jobs.start_bulk(…)`.

It does what `cancel_all` and its relatives do, in a worker, so that an operator can watch its progress and stop it. It
acts only on jobs that were there before it was enqueued. After a crash it begins again: on a job that it has changed
already, it changes nothing more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from taskharbor.acting import acting_as
from taskharbor.builtin_tasks import BULK
from taskharbor.client.operating import seen_jobs
from taskharbor.clock import to_micros
from taskharbor.context import Context
from taskharbor.errors import Unrecoverable
from taskharbor.records import JobFilter
from taskharbor.rules.retry import RetryPolicy

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.task import Task

OF_DEAD = ("requeue", "discard")
VERBS = (*OF_DEAD, "cancel", "delete")
RETRY = RetryPolicy(
    max_attempts=20, initial=1, maximum=60, multiplier=2, jitter=0.1
)  # of outages of the store


def bulk_task(harbor: Harbor) -> Task[Any, Any, Any, Any]:
    """The task of a harbor."""
    from taskharbor.client.task import Task

    async def bulk(ctx: Context, verb: str, where: dict[str, Any], actor: str) -> dict[str, int]:
        """Requeue, discard, cancel or delete every job that matches and was there when this was enqueued."""
        try:
            asked = msgspec.convert(where, JobFilter)
        except msgspec.ValidationError as error:
            raise Unrecoverable(f"the filter cannot be read: {error}") from None
        if verb not in VERBS:
            raise Unrecoverable(f"nothing is called {verb!r}; it is one of {', '.join(VERBS)}")
        with acting_as(actor):
            return {"changed": await _act(ctx, harbor, verb, asked)}

    return Task(harbor, bulk, name=BULK, options={"retry": RETRY, "max_attempts": RETRY.max_attempts})


async def _act(ctx: Context, harbor: Harbor, verb: str, where: JobFilter) -> int:
    began = to_micros(ctx.job.enqueued_at)
    acts: dict[str, Callable[[JobFilter], Awaitable[int]]] = {
        "requeue": harbor.dlq.arequeue_all,
        "discard": harbor.dlq.adiscard_all,
        "cancel": harbor.jobs.acancel_all,
        "delete": harbor.jobs.adelete_all,
    }
    if verb in OF_DEAD:
        where = replace(where, finished_before=_earlier(where.finished_before, began + 1))
        total = await harbor.dlq.acount(where)
    else:
        where = replace(where, enqueued_before=_earlier(where.enqueued_before, began))
        total = await harbor.jobs.acount(where)
    seen = 0

    def tell(jobs: int) -> None:
        nonlocal seen
        seen += jobs
        fraction = 0.0 if total.more or not total else min(1.0, seen / total)
        ctx.progress(fraction, f"looked at {seen:,} of {total}")

    watched = seen_jobs.set(tell)
    try:
        return await acts[verb](where)
    finally:
        seen_jobs.reset(watched)


def _earlier(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
