"""Report jobs that ended without being executed: log lines and events, after the store has committed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from taskharbor.drivers.base import SettleResult
from taskharbor.records import JobRecord, Reason
from taskharbor.telemetry.events import Event, EventName
from taskharbor.telemetry.logs import log_line

READ_AT_ONCE = 500
JOB_CANCELLED = "Job {job} was cancelled, reason {reason}"


class Subscribers(Protocol):
    """The subscribers to events, in this process or in another one."""

    def wanted(self, name: EventName) -> bool: ...
    def emit(self, event: Event) -> None: ...


def report_cancelled(events: Subscribers, record: JobRecord, logger: logging.Logger | None = None) -> None:
    """Report a job that was cancelled while not running: by an operator, by its expiry, or with a dependency."""
    _report(events, record, record.finished_at or record.enqueued_at, str(record.reason), logger)


async def report_dependants(
    events: Subscribers,
    settled: Iterable[SettleResult],
    logger: logging.Logger,
    read: Callable[[Sequence[str]], Awaitable[list[JobRecord | None]]],
    *,
    are_counted: bool = False,
) -> list[JobRecord]:
    """Report each job that a settle cancelled together with its dependency; return those that were read for it."""
    ended = [(job_id, each.at) for each in settled for job_id in each.cancelled]
    found: list[JobRecord] = []
    if not ended or not (are_counted or events.wanted("cancelled") or logger.isEnabledFor(logging.INFO)):
        return found
    for start in range(0, len(ended), READ_AT_ONCE):
        page = ended[start : start + READ_AT_ONCE]
        records = await read([job_id for job_id, _ in page])
        for (_, at), record in zip(page, records, strict=True):
            if record is not None:  # deleted since
                found.append(record)
                _report(events, record, at, str(Reason.DEPENDENCY), logger)
    return found


def _report(
    events: Subscribers, record: JobRecord, at: int, reason: str, logger: logging.Logger | None
) -> None:
    if logger is not None and logger.isEnabledFor(logging.INFO):
        fields = {"job": record.id, "task": record.task, "queue": record.queue, "reason": reason}
        if record.options.correlation_id is not None:
            fields["correlation_id"] = record.options.correlation_id
        log_line(logger, logging.INFO, JOB_CANCELLED, fields)
    if events.wanted("cancelled"):
        events.emit(Event.about(record, record.options, "cancelled", at, reason=reason))
