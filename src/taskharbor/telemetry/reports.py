"""`Reports`: the one place that reports what happens to jobs. Events, log lines and metrics hang on it.

    what happened → Reports → subscribers (`harbor.on`)
                            → log
                            → meter, where metrics are wanted

A producer, an operator's call and a supervisor have a `Reports`; a worker has `telemetry.attempts.Reporter`, which
also reports its attempts. Everything but the begin of a handler is reported after the store has committed. Nothing here
delays or fails a job: subscribers run apart, and the callers treat an error as a bug to be logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from taskharbor.clock import from_micros
from taskharbor.records import AttemptStatus, JobRecord, Options, Reason, State
from taskharbor.telemetry.events import Event, EventName, Identified

if TYPE_CHECKING:
    from taskharbor.drivers.base import Claimed, Driver, SettleResult, Transition
    from taskharbor.telemetry.metrics.meter import Meter

READ_AT_ONCE = 500

# Log lines that are written in several places.
JOB_CANCELLED = "Job {job} was cancelled, reason {reason}"
JOB_DEAD = "Job {job} is dead, reason {reason}"
NEXT_OCCURRENCE = ", rescheduled for next occurrence: {next_run}"


class Subscribers(Protocol):
    """The subscribers to events, in this process or in another one."""

    def wanted(self, name: EventName) -> bool: ...
    def emit(self, event: Event) -> None: ...


class Reports:
    """Reports jobs that no worker executes, and the attempts of workers that died.

    Without a logger nothing is logged; without a meter nothing is counted.
    """

    def __init__(
        self, events: Subscribers, logger: logging.Logger | None = None, meter: Meter | None = None
    ) -> None:
        self.meter = meter
        self._events = events
        self._logger = logger

    # -- jobs that no worker executes --

    def enqueued(self, job: Identified, options: Options, at: int) -> None:
        self._emit("enqueued", job, options, at)

    def cancelled(self, record: JobRecord) -> None:
        """Report a job that was cancelled while not running: by an operator, by its expiry, or with a dependency."""
        if self.meter is not None:
            self.meter.ended_unbegun(record)
        self._cancelled(record, record.finished_at or record.enqueued_at, str(record.reason))

    def dead_lettered(self, record: JobRecord) -> None:
        """Report a job that an operator put into the dead-letter queue while it was not running."""
        at = record.finished_at or record.enqueued_at
        self._emit("dead", record, record.options, at, reason=str(record.reason), error=record.error)

    async def dependants(
        self,
        settled: Iterable[SettleResult],
        read: Callable[[Sequence[str]], Awaitable[list[JobRecord | None]]],
    ) -> list[JobRecord]:
        """Report each job that a settle cancelled together with its dependency; return them, for the caller to count.

        A settle that is repeated names them again, so only the caller knows when they are to be counted.
        """
        ended = [(job_id, each.at) for each in settled for job_id in each.cancelled]
        found: list[JobRecord] = []
        if not ended or not (self.meter is not None or self._wants("cancelled", logging.INFO)):
            return found
        for start in range(0, len(ended), READ_AT_ONCE):
            page = ended[start : start + READ_AT_ONCE]
            records = await read([job_id for job_id, _ in page])
            for (_, at), record in zip(page, records, strict=True):
                if record is not None:  # deleted since
                    found.append(record)
                    self._cancelled(record, at, str(Reason.DEPENDENCY))
        return found

    def _cancelled(self, record: JobRecord, at: int, reason: str) -> None:
        if self._logger is not None and self._logger.isEnabledFor(logging.INFO):
            self._log(logging.INFO, JOB_CANCELLED, _fields(record, reason=reason))
        self._emit("cancelled", record, record.options, at, reason=reason)

    # -- the attempts of workers that died --

    def settled_for_others(
        self, jobs: Sequence[Claimed], transitions: Sequence[Transition], answers: Sequence[SettleResult]
    ) -> None:
        """Count attempts that this process has settled for a worker that cannot any more."""
        if self.meter is not None:
            self.meter.settled(jobs, transitions, answers)

    async def losses(self, driver: Driver, done: Sequence[tuple[Transition, SettleResult]]) -> None:
        """Report what became of lost jobs, and of the dependants that were cancelled with them."""
        reported = [pair for pair in done if pair[0].status is AttemptStatus.LOST or _has_ended(*pair)]
        records = await driver.get([transition.job_id for transition, _ in reported]) if reported else []
        for (transition, settled), record in zip(reported, records, strict=True):
            if record is not None:  # deleted since
                self._loss(transition, settled, record)
        for dependant in await self.dependants([settled for _, settled in done], driver.get):
            if self.meter is not None:
                self.meter.ended_unbegun(dependant)

    def _loss(self, transition: Transition, settled: SettleResult, record: JobRecord) -> None:
        from taskharbor.rules.recurrence import next_run, was_rearmed

        fields = _fields(record, attempt=transition.number, worker=transition.worker)

        def emit(name: EventName, **more: Any) -> None:
            about = {"attempt": transition.number, "worker": transition.worker, "error": transition.error}
            self._emit(name, record, record.options, settled.at, **about, **more)

        is_lost = transition.status is AttemptStatus.LOST
        if is_lost:
            emit("lost")
        if was_rearmed(transition, settled):
            reason = str(transition.reason) if transition.to is State.DEAD else "cancelled"
            fields |= {"reason": reason} | next_run(transition)
            how = "was lost with its worker" if is_lost else "ended, reason {reason}"
            self._log(logging.ERROR, f"Job {{job}} {how}{NEXT_OCCURRENCE}", fields)
            emit("dead" if transition.to is State.DEAD else "cancelled", reason=reason)
        elif settled.state is State.DEAD:
            reason = str(transition.reason)
            self._log(logging.ERROR, JOB_DEAD, fields | {"reason": reason})
            emit("dead", reason=reason)
        elif settled.state is State.CANCELLED:
            how = "was lost with its worker and" if is_lost else "was interrupted and"
            self._log(logging.WARNING, f"Job {{job}} {how} is cancelled, as asked", fields)
            emit("cancelled", reason="cancelled")
        else:
            self._log(logging.WARNING, "Job {job} was lost with its worker and runs again", fields)

    # -- worker processes --

    def stuck(self, worker: str, at: int, error: str, jobs: tuple[str, ...]) -> None:
        """Report a process that shows no sign of life; the caller logs it."""
        if self._events.wanted("stuck"):
            self._events.emit(
                Event("stuck", "", "", "", from_micros(at), worker=worker, error=error, jobs=jobs)
            )

    # -- where reports go --

    def _wants(self, name: EventName, level: int) -> bool:
        is_logged = self._logger is not None and self._logger.isEnabledFor(level)
        return is_logged or self._events.wanted(name)

    def _emit(self, name: EventName, job: Identified, options: Options, at: int, **more: Any) -> None:
        if self._events.wanted(name):
            self._events.emit(Event.about(job, options, name, at, **more))

    def _log(self, level: int, sentence: str, fields: dict[str, Any], traceback: str | None = None) -> None:
        if self._logger is not None:
            from taskharbor.telemetry.logs import log_line  # a producer that logs nothing starts without it

            log_line(self._logger, level, sentence, fields, traceback=traceback, stacklevel=3)


def _fields(record: JobRecord, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"job": record.id, "task": record.task, "queue": record.queue, **more}
    if record.options.correlation_id is not None:
        fields["correlation_id"] = record.options.correlation_id
    return fields


def _has_ended(transition: Transition, settled: SettleResult) -> bool:
    """Report a released job that ended: an at_most_once job that a shutdown interrupted, or a cancelled one."""
    from taskharbor.rules.recurrence import was_rearmed

    return settled.state in (State.DEAD, State.CANCELLED) or was_rearmed(transition, settled)
