"""Report jobs that were lost with their worker: log lines and events, after the store has settled them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from taskharbor.drivers.base import Driver, SettleResult, Transition
from taskharbor.records import AttemptStatus, JobRecord, State
from taskharbor.rules.recurrence import next_run, was_rearmed
from taskharbor.telemetry.cancellations import Subscribers, report_dependants
from taskharbor.telemetry.events import Event, EventName
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics.meter import Meter

# Log lines that several reporters share.
JOB_DEAD = "Job {job} is dead, reason {reason}"
NEXT_OCCURRENCE = ", rescheduled for next occurrence: {next_run}"


class Losses:
    """Reports losses in the same way for a worker, a supervisor and an operator's call."""

    def __init__(self, events: Subscribers, logger: logging.Logger, meter: Meter | None = None) -> None:
        self._events = events
        self._logger = logger
        self._meter = meter  # counts dependants; lost attempts are counted where they are settled

    async def report(self, driver: Driver, done: Sequence[tuple[Transition, SettleResult]]) -> None:
        """Report what became of lost jobs, and of the dependants that were cancelled with them."""
        reported = [pair for pair in done if pair[0].status is AttemptStatus.LOST or _has_ended(*pair)]
        records = await driver.get([transition.job_id for transition, _ in reported]) if reported else []
        for (transition, settled), record in zip(reported, records, strict=True):
            if record is not None:  # deleted since
                _report(self._events, self._logger, transition, settled, record)
        answers, meter = [settled for _, settled in done], self._meter
        for dependant in await report_dependants(
            self._events, answers, self._logger, driver.get, are_counted=meter is not None
        ):
            if meter is not None:
                meter.ended_unbegun(dependant)


def _has_ended(transition: Transition, settled: SettleResult) -> bool:
    """Report a released job that ended: an at_most_once job that a shutdown interrupted, or a cancelled one."""
    return settled.state in (State.DEAD, State.CANCELLED) or was_rearmed(transition, settled)


def _report(
    events: Subscribers,
    logger: logging.Logger,
    transition: Transition,
    settled: SettleResult,
    record: JobRecord,
) -> None:
    fields: dict[str, Any] = {
        "job": record.id,
        "task": record.task,
        "queue": record.queue,
        "attempt": transition.number,
        "worker": transition.worker,
    }
    if record.options.correlation_id is not None:
        fields["correlation_id"] = record.options.correlation_id

    def emit(name: EventName, **more: Any) -> None:
        if events.wanted(name):
            about = {"attempt": transition.number, "worker": transition.worker, "error": transition.error}
            events.emit(Event.about(record, record.options, name, settled.at, **about, **more))

    is_lost = transition.status is AttemptStatus.LOST
    if is_lost:
        emit("lost")
    if was_rearmed(transition, settled):
        reason = str(transition.reason) if transition.to is State.DEAD else "cancelled"
        fields |= {"reason": reason} | next_run(transition)
        how = "was lost with its worker" if is_lost else "ended, reason {reason}"
        log_line(logger, logging.ERROR, f"Job {{job}} {how}{NEXT_OCCURRENCE}", fields)
        emit("dead" if transition.to is State.DEAD else "cancelled", reason=reason)
    elif settled.state is State.DEAD:
        reason = str(transition.reason)
        log_line(logger, logging.ERROR, JOB_DEAD, fields | {"reason": reason})
        emit("dead", reason=reason)
    elif settled.state is State.CANCELLED:
        how = "was lost with its worker and" if is_lost else "was interrupted and"
        log_line(logger, logging.WARNING, f"Job {{job}} {how} is cancelled, as asked", fields)
        emit("cancelled", reason="cancelled")
    else:
        log_line(logger, logging.WARNING, "Job {job} was lost with its worker and runs again", fields)
