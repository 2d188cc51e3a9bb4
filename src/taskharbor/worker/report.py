"""Telling what was settled: log lines and events, after the store has said so."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from taskharbor.client.endings import tell_cancelled, tell_dependants
from taskharbor.client.events import Event, EventName, Events
from taskharbor.client.losses import Losses
from taskharbor.clock import MICROS_PER_SECOND, from_micros
from taskharbor.drivers.base import Answer, Settled, Transition
from taskharbor.job import AttemptStatus, JobRecord, Reason, State
from taskharbor.recurring import next_run, was_rearmed
from taskharbor.retry import Decision
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.execution import Execution
from taskharbor.worker.live import StoreTime

logger = logging.getLogger("taskharbor.worker")


class Reporter:
    def __init__(self, worker: str, events: Events, time: StoreTime) -> None:
        self._worker = worker
        self._events = events
        self._time = time
        self.losses = Losses(events, logger)  # of workers that vanished

    @property
    def wants_begins(self) -> bool:
        return self._events.wanted("started") or logger.isEnabledFor(logging.DEBUG)

    def began(self, execution: Execution) -> None:
        logger.debug("job started", extra={"fields": execution.fields()})
        self._emit("started", execution, self._time.now())

    def settled(
        self, execution: Execution, transition: Transition, decision: Decision | None, settled: Settled
    ) -> None:
        if decision is not None and decision.problems:
            self._tell_problems(execution, decision)
        if was_rearmed(transition, settled) and transition.to is not State.SUCCEEDED:
            self._rearmed(execution, transition, decision, settled)
            return
        if transition.to is State.SUCCEEDED:
            if logger.isEnabledFor(logging.INFO):
                fields = execution.fields() | _duration(transition, settled) | next_run(transition)
                logger.info("job succeeded", extra={"fields": fields})
            if self._events.wanted("succeeded"):
                self._emit("succeeded", execution, settled.at)
            return
        fields = execution.fields() | _duration(transition, settled)
        if transition.error:
            fields["error"] = transition.error
        if decision is not None:
            self._emit("failed", execution, settled.at, error=transition.error)
        lost = transition.status is AttemptStatus.LOST
        if lost:
            self._emit("lost", execution, settled.at, error=transition.error)
        # A settle whose answer was lost and that was repeated is done; where the job went, it says itself.
        state = settled.state or transition.to
        if state is State.CANCELLED:
            reason = transition.reason if transition.to is State.CANCELLED else "cancelled"
            logger.info("job cancelled", extra={"fields": fields | {"reason": str(reason)}})
            self._emit("cancelled", execution, settled.at, reason=str(reason), error=transition.error)
        elif state is State.DEAD:
            logger.error("job is dead", extra={"fields": fields | {"reason": str(transition.reason)}})
            self._emit("dead", execution, settled.at, reason=str(transition.reason), error=transition.error)
        elif decision is not None:
            self._retried(execution, transition, decision, settled, fields)
        elif lost:
            logger.warning("job ended its own process and runs again", extra={"fields": fields})
        elif transition.status is AttemptStatus.SLEPT:
            logger.info("job sleeps", extra={"fields": fields | _delay(transition, settled)})
        elif transition.error:
            logger.warning("job put back", extra={"fields": fields | _delay(transition, settled)})
        else:
            logger.info("job handed back", extra={"fields": fields})

    def _tell_problems(self, execution: Execution, decision: Decision) -> None:
        """Functions of a retry policy that went wrong."""
        for problem in decision.problems:
            log_line(
                logger,
                logging.ERROR,
                "a function of the retry policy of Job {job} is passed over: {problem}",
                execution.fields() | {"problem": problem},
            )

    def _rearmed(
        self, execution: Execution, transition: Transition, decision: Decision | None, settled: Settled
    ) -> None:
        """An occurrence of a recurring job has ended without success, and the next one is set."""
        reason = str(transition.reason) if transition.to is not State.READY else "cancelled"
        fields = execution.fields() | _duration(transition, settled) | {"reason": reason}
        fields |= next_run(transition)
        if transition.error:
            fields["error"] = transition.error
        if decision is not None:
            retries = max(decision.limit - 1, 0)
            fields |= {"retry": transition.attempts - 1, "max_retries": retries, "delay": _ahead(settled)}
            self._emit("failed", execution, settled.at, error=transition.error)
        told = f"; next run in {_ahead(settled):g}s (at {fields['next_run']})"
        if transition.to is State.DEAD:
            retry = f" after retry {fields['retry']}/{fields['max_retries']}" if decision is not None else ""
            logger.error("occurrence failed%s%s", retry, told, extra={"fields": fields})
            self._emit("dead", execution, settled.at, reason=reason, error=transition.error)
        elif transition.reason is Reason.EXPIRED:
            logger.warning("occurrence dropped, %s%s", transition.detail, told, extra={"fields": fields})
            self._emit("cancelled", execution, settled.at, reason=reason)
        else:
            logger.info("occurrence cancelled%s", told, extra={"fields": fields})
            self._emit("cancelled", execution, settled.at, reason=reason, error=transition.error)

    def _retried(
        self,
        execution: Execution,
        transition: Transition,
        decision: Decision,
        settled: Settled,
        fields: dict[str, Any],
    ) -> None:
        retry, retries = decision.attempts, decision.limit - 1
        delay = _delay(transition, settled)
        logger.warning(
            "job failed, retry %d/%d in %gs (at %s)",
            retry,
            retries,
            round(delay["delay"], 3),
            delay["at"],
            extra={"fields": fields | {"retry": retry, "max_retries": retries} | delay},
        )
        self._emit(
            "retried",
            execution,
            settled.at,
            error=transition.error,
            retry_at=None if settled.run_at is None else from_micros(settled.run_at),
            delay_seconds=decision.delay_seconds,
        )

    def refused(self, execution: Execution, transition: Transition, settled: Settled) -> None:
        fields = execution.fields() | {"status": str(transition.status), "answer": str(settled.answer)}
        # If that is longer than the lease, the handler held the event loop up.
        fields |= _duration(transition, settled)
        if settled.answer is Answer.NOT_RUNNING and settled.recorded is not None:
            fields["recorded"] = str(settled.recorded)
        logger.warning("the lease was lost; nothing was committed", extra={"fields": fields})

    async def ended_with(
        self, settled: Sequence[Settled], read: Callable[[Sequence[str]], Awaitable[list[JobRecord | None]]]
    ) -> None:
        """Jobs that ended with one that they depend on."""
        await tell_dependants(self._events, settled, logger, read)

    def expired(self, record: JobRecord) -> None:
        """A job that nobody began by its `expires_at`, or that ended with such a one."""
        tell_cancelled(self._events, record, logger)

    def _emit(self, name: EventName, execution: Execution, at: int, **more: Any) -> None:
        if self._events.wanted(name):
            claimed = execution.claimed
            about = {"attempt": claimed.number, "worker": self._worker}
            self._events.emit(Event.about(claimed, execution.options, name, at, **about, **more))


def _ahead(settled: Settled) -> float:
    """Seconds until the job's next run."""
    return round(max(0, (settled.run_at or settled.at) - settled.at) / MICROS_PER_SECOND, 3)


def _duration(transition: Transition, settled: Settled) -> dict[str, Any]:
    if transition.started_at is None or transition.status is AttemptStatus.RELEASED:
        return {}
    return {"seconds": round((settled.at - transition.started_at) / MICROS_PER_SECOND, 6)}


def _delay(transition: Transition, settled: Settled) -> dict[str, Any]:
    run_at = settled.run_at if settled.run_at is not None else settled.at
    return {
        "delay": (transition.delay or 0) / MICROS_PER_SECOND,
        "at": from_micros(run_at).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
