"""`Reporter`: the `Reports` of a worker. It also reports the attempts that the worker makes."""

from __future__ import annotations

import logging
from typing import Any

from taskharbor.clock import MICROS_PER_SECOND, from_micros
from taskharbor.codec import agreeing
from taskharbor.drivers.base import SettleAnswer, SettleResult, Transition
from taskharbor.records import AttemptStatus, JobRecord, Reason, State
from taskharbor.rules.recurrence import next_run, was_rearmed
from taskharbor.rules.retry import Decision
from taskharbor.telemetry.events import EventName, Events
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.telemetry.reports import JOB_CANCELLED, JOB_DEAD, NEXT_OCCURRENCE, Reports
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.leases import StoreTime

logger = logging.getLogger("taskharbor.worker")


class Reporter(Reports):
    def __init__(
        self,
        worker: str,
        events: Events,
        time: StoreTime,
        *,
        tracebacks: bool = True,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(events, logger, meter)
        self._worker = worker
        self._time = time
        self._tracebacks = tracebacks  # whether the log shows the tracebacks of failed attempts

    @property
    def wants_begins(self) -> bool:
        return self._events.wanted("started") or logger.isEnabledFor(logging.DEBUG)

    @property
    def wants_successes(self) -> bool:
        return self._events.wanted("succeeded") or logger.isEnabledFor(logging.INFO)

    def began(self, execution: Execution) -> None:
        log_line(logger, logging.DEBUG, "Job {job} started", execution.fields())
        self._emit_of("started", execution, self._time.now())

    def settled(
        self, execution: Execution, transition: Transition, decision: Decision | None, settled: SettleResult
    ) -> None:
        if decision is not None and decision.problems:
            self._log_problems(execution, decision)
        if was_rearmed(transition, settled) and transition.to is not State.SUCCEEDED:
            self._rearmed(execution, transition, decision, settled)
            return
        if transition.to is State.SUCCEEDED:
            if logger.isEnabledFor(logging.INFO):
                fields = execution.fields() | _duration(transition, settled) | next_run(transition)
                log_line(logger, logging.INFO, "Job {job} succeeded", fields)
            if self._events.wanted("succeeded"):
                self._emit_of("succeeded", execution, settled.at)
            return
        fields = execution.fields() | _duration(transition, settled)
        if transition.error:
            fields["error"] = transition.error
        if decision is not None:
            self._emit_of("failed", execution, settled.at, error=transition.error)
        lost = transition.status is AttemptStatus.LOST
        if lost:
            self._emit_of("lost", execution, settled.at, error=transition.error)
        # The answer to a repeated settle says itself which state the job reached.
        state = settled.state or transition.to
        if state is State.CANCELLED:
            reason = str(transition.reason if transition.to is State.CANCELLED else "cancelled")
            self._log_of(logging.INFO, JOB_CANCELLED, fields | {"reason": reason}, transition)
            self._emit_of("cancelled", execution, settled.at, reason=reason, error=transition.error)
        elif state is State.DEAD:
            fields |= {"reason": str(transition.reason)}
            failed = _failed(transition) + " and is dead, reason {reason}" if decision else JOB_DEAD
            self._log_of(logging.ERROR, failed, fields | _retries(decision, transition), transition)
            self._emit_of(
                "dead", execution, settled.at, reason=str(transition.reason), error=transition.error
            )
        elif decision is not None:
            self._retried(execution, transition, decision, settled, fields)
        elif lost:
            self._log_of(
                logging.WARNING,
                "Job {job} was lost while it ran alone, and runs again: {error}",
                fields,
                transition,
            )
        elif transition.status is AttemptStatus.SLEPT:
            delayed = fields | _delay(transition, settled)
            self._log_of(logging.INFO, "Job {job} sleeps for {delay}s (until {at})", delayed, transition)
        elif transition.aside is not None and not transition.error:
            self._log_of(
                logging.DEBUG,
                "Job {job} stands aside ({aside})",
                fields | {"aside": transition.aside},
                transition,
            )
        elif transition.error:
            delayed = fields | _delay(transition, settled)
            how = "for {delay}s (until {at})" if transition.delay else "and runs again at once"
            self._log_of(logging.WARNING, f"Job {{job}} was put back {how}: {{error}}", delayed, transition)
        else:
            self._log_of(logging.INFO, "Job {job} was handed back", fields, transition)

    def _log_of(self, level: int, sentence: str, fields: dict[str, Any], transition: Transition) -> None:
        traceback = transition.traceback if self._tracebacks else None
        log_line(logger, level, sentence, fields, traceback=traceback, stacklevel=3)

    def _log_problems(self, execution: Execution, decision: Decision) -> None:
        """Log each function of a retry policy that failed."""
        for problem in decision.problems:
            log_line(
                logger,
                logging.ERROR,
                "a function of the retry policy of Job {job} is ignored: {problem}",
                execution.fields() | {"problem": problem},
            )

    def _rearmed(
        self, execution: Execution, transition: Transition, decision: Decision | None, settled: SettleResult
    ) -> None:
        """Report an occurrence of a recurring job that ended without success; the next one is scheduled."""
        reason = str(transition.reason) if transition.to is not State.READY else "cancelled"
        fields = execution.fields() | _duration(transition, settled) | {"reason": reason}
        fields |= next_run(transition) | {"detail": transition.detail, "error": transition.error}
        if decision is not None:
            fields |= _retries(decision, transition) | {"delay": _ahead(settled)}
            self._emit_of("failed", execution, settled.at, error=transition.error)
        if transition.to is State.DEAD:
            failed = _failed(transition) if decision else "Job {job} ended, reason {reason}"
            self._log_of(logging.ERROR, failed + NEXT_OCCURRENCE, fields, transition)
            self._emit_of("dead", execution, settled.at, reason=reason, error=transition.error)
        elif transition.reason is Reason.EXPIRED:
            dropped = "Job {job} dropped an occurrence ({detail})"
            self._log_of(logging.WARNING, dropped + NEXT_OCCURRENCE, fields, transition)
            self._emit_of("cancelled", execution, settled.at, reason=reason)
        else:
            self._log_of(logging.INFO, "Job {job} was cancelled" + NEXT_OCCURRENCE, fields, transition)
            self._emit_of("cancelled", execution, settled.at, reason=reason, error=transition.error)

    def _retried(
        self,
        execution: Execution,
        transition: Transition,
        decision: Decision,
        settled: SettleResult,
        fields: dict[str, Any],
    ) -> None:
        fields |= {"retry": decision.attempts, "max_retries": decision.limit - 1}
        sentence = "Job {job} failed, scheduling retry {retry}/{max_retries} in {delay}s (at {at})"
        self._log_of(logging.WARNING, sentence, fields | _delay(transition, settled), transition)
        self._emit_of(
            "retried",
            execution,
            settled.at,
            error=transition.error,
            retry_at=None if settled.run_at is None else from_micros(settled.run_at),
            delay_seconds=decision.delay_seconds,
        )

    def refused(self, execution: Execution, transition: Transition, settled: SettleResult) -> None:
        fields = execution.fields() | {"status": str(transition.status), "answer": str(settled.answer)}
        # A duration longer than the lease shows that the handler blocked the event loop.
        fields |= _duration(transition, settled)
        if settled.answer is SettleAnswer.NOT_RUNNING and settled.recorded is not None:
            fields["recorded"] = str(settled.recorded)
        log_line(logger, logging.WARNING, "Job {job} lost its lease; nothing was committed", fields)

    def unreadable(self, record: JobRecord) -> None:
        """Report a job that a claim could not read: it is dead, and no handler began."""
        if self.meter is not None:
            self.meter.ended_unbegun(record)
        reason = str(Reason.UNREADABLE)
        fields = {"job": record.id, "task": record.task, "queue": record.queue, "reason": reason}
        log_line(logger, logging.ERROR, JOB_DEAD, fields | {"unreadable": record.unreadable})
        at = self._time.now() if record.finished_at is None else record.finished_at
        self._emit("dead", record, record.options, at, reason=reason)

    def _emit_of(self, name: EventName, execution: Execution, at: int, **more: Any) -> None:
        if self._events.wanted(name):
            claimed = execution.claimed
            about = {"attempt": claimed.number, "worker": self._worker}
            self._emit(name, claimed, execution.options, at, **about, **more)


def _failed(transition: Transition) -> str:
    """Return `Job {job} failed after 3 retries` for an attempt that is not retried."""
    retries = transition.attempts - 1
    if retries <= 0:
        return "Job {job} failed"
    return "Job {job} failed after {retry} " + agreeing(retries, "retry", "retries")


def _retries(decision: Decision | None, transition: Transition) -> dict[str, Any]:
    if decision is None:
        return {}
    return {"retry": transition.attempts - 1, "max_retries": max(decision.limit - 1, 0)}


def _ahead(settled: SettleResult) -> float:
    """Return the seconds until the job's next run."""
    return round(max(0, (settled.run_at or settled.at) - settled.at) / MICROS_PER_SECOND, 3)


def _duration(transition: Transition, settled: SettleResult) -> dict[str, Any]:
    if transition.started_at is None or transition.status is AttemptStatus.RELEASED:
        return {}
    return {"seconds": round((settled.at - transition.started_at) / MICROS_PER_SECOND, 6)}


def _delay(transition: Transition, settled: SettleResult) -> dict[str, Any]:
    run_at = settled.run_at if settled.run_at is not None else settled.at
    return {
        "delay": round((transition.delay or 0) / MICROS_PER_SECOND, 3),
        "at": from_micros(run_at).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
