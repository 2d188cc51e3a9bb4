"""Telling of jobs that were lost with their worker: log lines and events, after the store has settled them."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from taskharbor.client.events import Event
from taskharbor.drivers.base import Settled, Transition
from taskharbor.job import JobRecord, State
from taskharbor.recurring import next_run, was_rearmed


class Subscribers(Protocol):
    """Whoever wants to hear of it, here or in another process."""

    def wanted(self, name: str) -> bool: ...
    def emit(self, event: Event) -> None: ...


def tell_lost(
    events: Subscribers,
    logger: logging.Logger,
    transition: Transition,
    settled: Settled,
    record: JobRecord,
) -> None:
    """The same whoever collected the lease: a worker, or an operator's verb that came first."""
    fields: dict[str, Any] = {
        "job": record.id,
        "task": record.task,
        "queue": record.queue,
        "attempt": transition.number,
        "worker": transition.worker,
    }
    if record.options.correlation_id is not None:
        fields["correlation_id"] = record.options.correlation_id

    def emit(name: str, **more: Any) -> None:
        if events.wanted(name):
            about = {"attempt": transition.number, "worker": transition.worker, "error": transition.error}
            events.emit(Event.about(record, record.options, name, settled.at, **about, **more))

    emit("lost")
    if was_rearmed(transition, settled):
        reason = str(transition.reason) if transition.to is State.DEAD else "cancelled"
        fields |= {"reason": reason} | next_run(transition)
        logger.error(
            "occurrence was lost with its worker; next run at %s",
            fields["next_run"],
            extra={"fields": fields},
        )
        emit("dead" if transition.to is State.DEAD else "cancelled", reason=reason)
    elif settled.state is State.DEAD:
        reason = str(transition.reason)
        logger.error("job is dead", extra={"fields": fields | {"reason": reason}})
        emit("dead", reason=reason)
    elif settled.state is State.CANCELLED:
        logger.warning("job was lost with its worker and is cancelled, as asked", extra={"fields": fields})
        emit("cancelled", reason="cancelled")
    else:
        logger.warning("job was lost with its worker and runs again", extra={"fields": fields})
