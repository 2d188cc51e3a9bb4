"""The failure task that a caller sends with a job or a schedule."""

from __future__ import annotations

from typing import Any

from taskharbor.client.harbor import Harbor
from taskharbor.failure_tasks import named_failure_task
from taskharbor.server.http_jobs import refuse_closed
from taskharbor.server.options import given_anew
from taskharbor.server.own_tasks import refuse_own_task


def with_failure_task(harbor: Harbor, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the failure task as the harbor takes it, if one was sent.

    Its job is enqueued later, by a worker: what a caller may not enqueue is refused here.
    """
    sent = options.get("failure_task")
    if sent is None:
        return options
    refuse_own_task(harbor, sent.task)
    fields = given_anew(sent)
    refuse_closed(harbor, sent.task, fields.get("payload", {}))
    return {**options, "failure_task": named_failure_task(harbor, fields)}
