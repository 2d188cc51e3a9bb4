"""`task_finished`: sent after the store has committed how a job ended, from the events of the harbor.

A job that fails and is retried has not finished. One that is dead or cancelled has, in whatever process that happened.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from django.db import close_old_connections

from taskharbor.integrations.django import framework, results
from taskharbor.telemetry.events import Event

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

logger = logging.getLogger("taskharbor.django")

KEPT_MAX = 20_000  # results that wait for their commit; events themselves wait in a shorter line

_kept: OrderedDict[str, tuple[Any, Any]] = OrderedDict()
_keeping = threading.Lock()


def sender() -> Any:
    """Return the class that the signals name as their sender."""
    from taskharbor.integrations.django.backend import Backend

    return Backend


def keep(result: Any, value: Any) -> None:
    """Keep the result of an attempt that has succeeded until the store has committed it."""
    with _keeping:
        _kept[result.id] = (result, value)
        if len(_kept) > KEPT_MAX:
            _kept.popitem(last=False)


def follow(harbor: Harbor, backend: str) -> None:
    """Send `task_finished` for the jobs of this harbor whose end this process reports."""

    def finished(event: Event) -> None:
        if harbor.tasks.get(event.task) is not None and event.job_id:
            _send(event, backend)

    def ended(event: Event) -> None:
        with _keeping:
            _kept.pop(event.job_id, None)  # its commit was refused
        finished(event)

    harbor.events.subscribe("succeeded", finished)
    harbor.events.subscribe("dead", ended)
    harbor.events.subscribe("cancelled", ended)


def _send(event: Event, backend: str) -> None:
    with _keeping:
        kept = _kept.pop(event.job_id, None)
    close_old_connections()
    try:
        if kept is not None:
            result = results.succeeded(*kept, event.at)
        else:
            result = framework.task_backends[backend].get_result(event.job_id)
        framework.task_finished.send_robust(sender(), task_result=result)
    except framework.TaskResultDoesNotExist:  # deleted since
        logger.debug("job %s ended and is gone: no task_finished", event.job_id)
    finally:
        close_old_connections()
