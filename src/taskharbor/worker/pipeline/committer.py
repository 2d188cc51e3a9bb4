"""The committer: turns outcomes into transitions by the policy, and settles them in batches.

The log and the events report a success only after it is settled. While the store settles one batch, the next one
gathers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import Clock
from taskharbor.drivers.base import (
    SETTLE_BYTES,
    Claimed,
    PlainSuccesses,
    ProgressNote,
    SettleAnswer,
    SettleResult,
    Transition,
    pieces,
)
from taskharbor.drivers.capabilities import Steps
from taskharbor.failure_tasks import FailureTasks
from taskharbor.records import AttemptRecord, JobRecord, Progress
from taskharbor.rescue import HISTORY_ROWS, loss_history
from taskharbor.rules.aside import task_label
from taskharbor.rules.outcome import Crashed, Disturbed, Outcome, Succeeded, Unrunnable
from taskharbor.rules.policy import (
    UNRUNNABLE_DELAY_MAX_SECONDS,
    settle_crash,
    settle_disturbed,
    settle_known_elsewhere,
    settle_outcome,
    settle_success,
    settle_unrunnable,
    settle_unsettled,
)
from taskharbor.rules.recurrence import armed_blindly
from taskharbor.rules.retry import Decision, RetryPolicy
from taskharbor.settle_batch import (
    LEFT,
    REFUSALS,
    is_outage,
    log_bug,
    log_refusal,
    settle_apart,
    without_content,
)
from taskharbor.telemetry.attempts import Reporter
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.worker.handlers.outcomes import error_text
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.executor import Executor
from taskharbor.worker.pipeline.pipeline import Ended, Pipeline
from taskharbor.worker.pipeline.recurring import Recurring
from taskharbor.worker.upkeep.colleagues import Colleagues

logger = logging.getLogger("taskharbor.worker")

T = TypeVar("T")

# What became of a batch: the executions that the store asks to settle later, and what counts the others, if anything.
_Settled = tuple[Set[Execution], Callable[[], None] | None]
_ALL_SETTLED: _Settled = (frozenset(), None)

_size_of: Callable[[Ended], int] = itemgetter(2)

BATCH_MAX = 1_000
GATHER_SECONDS = 0.002  # how long a busy worker waits for a batch to fill
UNRUNNABLE_ROWS_MORE = 50
LATER_SECONDS = 1.0  # before the committer repeats a settle that the store answered with LATER


class Committer:
    def __init__(
        self,
        pipeline: Pipeline,
        executor: Executor,
        *,
        worker_policy: RetryPolicy | None,
        unrunnable_grace_seconds: float,
        max_losses: int,
        recurring: Recurring,
        colleagues: Colleagues,
        clock: Clock,
        reporter: Reporter,
        code_version: str | None,
    ) -> None:
        self._pipeline = pipeline
        self._executor = executor
        self._store = store = pipeline.store
        self._failure_tasks = FailureTasks(store)
        self._step_reader = None if Steps.offered_by(store.driver) is None else store
        self._policy = worker_policy
        self._unrunnable_grace_seconds = unrunnable_grace_seconds
        self._max_losses = max_losses
        # At least as many rows as a job can be put back within the grace period: the policy needs to see the first one.
        self._unrunnable_rows = (
            int(unrunnable_grace_seconds / UNRUNNABLE_DELAY_MAX_SECONDS) + UNRUNNABLE_ROWS_MORE
        )
        self._leases = pipeline.leases
        self._time = pipeline.time
        self._clock = clock
        self._reporter = reporter
        self._meter = reporter.meter
        self._recurring = recurring
        self._code_version = code_version
        self._colleagues = colleagues
        self._later: list[Ended] = []  # the store answered LATER for these

    # -- settling --

    async def run(self) -> None:
        pipeline = self._pipeline
        while True:
            await pipeline.arrived.wait()
            if pipeline.claimed and len(pipeline.ended) < BATCH_MAX:
                await asyncio.sleep(GATHER_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Settle everything that has ended so far."""
        pipeline = self._pipeline
        notes, pipeline.notes = pipeline.notes, {}
        plain, others = _parted(pipeline.ended)
        pipeline.ended = []
        pipeline.arrived.clear()
        try:
            if notes:
                await self._store_notes(notes)
                notes = {}
            await self._settle_in_batches(plain, self._settle_successes)
            await self._settle_in_batches(others, self._settle)
        except (
            BaseException
        ):  # such as a cancellation: settles can be repeated, whether or not they took effect
            pipeline.notes = notes | pipeline.notes
            pipeline.ended = plain + others + pipeline.ended
            pipeline.arrived.set()
            raise
        if not pipeline.ended and not pipeline.notes and not self._later:
            pipeline.quiet.set()
            pipeline.room.set()

    async def _settle_in_batches(
        self, pending: list[Ended], settle: Callable[[Sequence[Ended]], Awaitable[_Settled]]
    ) -> None:
        """Settle these; take them off the list as they are settled."""
        pipeline = self._pipeline
        while pending:
            batch = self._first_of(pending)
            later, count = await settle(batch)
            # Counted where nothing can come between this and the moment when the batch is forgotten: what a
            # cancellation puts back is settled, and counted, again.
            del pending[: len(batch)]
            if count is not None:
                _try(count)
            if later:
                self._settle_later([each for each in batch if each[0] in later])
                batch = [each for each in batch if each[0] not in later]
            was_full = pipeline.is_full
            pipeline.settled(batch)
            if was_full and not pipeline.is_full:
                self._executor.wake_a_slot()
                pipeline.room.set()

    def _settle_later(self, later: list[Ended]) -> None:
        """Settle these again after a pause; the rest does not wait for them."""
        if not self._later:
            self._clock.call_later(LATER_SECONDS, self._come_again)
        self._later += later

    def _come_again(self) -> None:
        self._pipeline.ended += self._later
        self._later = []
        self._pipeline.arrived.set()

    def _first_of(self, pending: list[Ended]) -> Sequence[Ended]:
        """Return the first batch, bounded in number and in bytes."""
        if self._pipeline.fits_one_settle:
            return pending[:BATCH_MAX]
        return next(pieces(pending, _size_of, SETTLE_BYTES, BATCH_MAX))

    async def _settle_successes(self, ended: Sequence[Ended]) -> _Settled:
        """Settle plain successes, nearly all that there is to settle, without a value for each of them.

        If the store refuses one of them, or someone wants to hear of each, they go the way of all other endings.
        """
        jobs = [execution.claimed for execution, _, _ in ended]
        successes = _columns_of(ended, jobs)
        meter, clock = self._meter, self._clock
        asked_at = 0.0 if meter is None else clock.monotonic()
        try:
            answers = await self._store.settle(successes)
        except Exception as error:
            if is_outage(error):
                raise
            return await self._settle(ended)
        first = answers[0]
        are_all_done = first.answer is SettleAnswer.DONE and answers.count(first) == len(ended)
        if are_all_done and not first.cancelled and not self._reporter.wants_successes:
            executions = [execution for execution, _, _ in ended]
            self._leases.settled_all(executions)
            if meter is None:
                return _ALL_SETTLED
            seconds = clock.monotonic() - asked_at
            began: list[int] = successes.started_ats  # type: ignore[assignment]  # of a success, never None
            series = {lease.series for lease in {execution.lease for execution in executions}}
            common = series.pop() if len(series) == 1 else None
            return frozenset(), partial(meter.succeeded, jobs, began, first.at, seconds, common)
        if meter is not None:
            meter.store_settled(len(ended), clock.monotonic() - asked_at)
        endings = [_Ending(each[0], t, t, None) for each, t in zip(ended, successes, strict=True)]
        return await self._settled(list(zip(endings, answers, strict=True)))

    async def _settle(self, ended: Sequence[Ended]) -> _Settled:
        """Settle a batch that may hold any ending."""
        endings: list[_Ending] = []
        for execution, outcome, _ in ended:
            if (ending := await self._ending(execution, outcome)) is not None:
                endings.append(ending)
            else:
                self._leases.settled(execution)
        settled = await settle_apart(self._settle_all, endings, self._mend) if endings else []
        return await self._settled(settled)

    async def _settled(self, settled: Sequence[tuple[_Ending, SettleResult | None]]) -> _Settled:
        """Act on the store's answers, and report them."""
        later: set[Execution] = set()
        answered: list[_Ending] = []
        answers: list[SettleResult] = []
        dependants: list[JobRecord] = []
        for pair in settled:
            ending, answer = pair
            if answer is not None and answer.answer is SettleAnswer.CHANGED:
                ending, answer = await self._settle_changed(ending, answer)
            if answer is not None and answer.answer is SettleAnswer.LATER:
                later.add(ending.execution)
                continue
            self._leases.settled(ending.execution)
            # (Left to its lease, it is a loss that counts: a job that comes back to this must end in time.)
            if answer is None:
                continue
            answered.append(ending)
            answers.append(answer)
            try:
                if answer.answer is SettleAnswer.DONE:
                    self._reporter.settled(ending.execution, ending.transition, ending.decision, answer)
                else:
                    self._reporter.refused(ending.execution, ending.transition, answer)
            except Exception as error:  # noqa: BLE001 - it is settled, whether it is reported or not
                log_bug(logger, "the end of a job could not be reported", error, ending.execution.fields())
        try:
            dependants = await self._reporter.dependants(answers, self._store.get)
        except Exception as error:  # noqa: BLE001 - it is settled, whether it is reported or not
            log_bug(logger, "the jobs that ended with others could not be reported", error)
        meter = self._meter
        return later, None if meter is None else partial(_count, meter, answered, answers, dependants)

    async def _ending(self, execution: Execution, outcome: Outcome) -> _Ending | None:
        """Return what to settle, or None if only the expiry of its lease can end the attempt."""
        try:
            bare, decision = await self._transition(execution, outcome)
            if bare.fingerprint is not None and self._code_version is not None:
                bare = replace(bare, code_version=self._code_version)
            if execution.claimed.due_at is None:
                return _Ending(execution, bare, bare, decision)
            return _Ending(execution, bare, await self._recurring.armed(execution, bare), decision)
        except Exception as error:  # noqa: BLE001 - a bug of ours must cost no other job anything
            return await self._released(execution, error)

    async def _settle_all(self, endings: Sequence[_Ending]) -> list[tuple[_Ending, SettleResult | None]]:
        asked_at = 0.0 if self._meter is None else self._clock.monotonic()
        answers = await self._store.settle([ending.transition for ending in endings])
        if self._meter is not None:
            self._meter.store_settled(len(endings), self._clock.monotonic() - asked_at)
        return list(zip(endings, answers, strict=True))

    async def _mend(self, ending: _Ending, error: Exception) -> tuple[_Ending, SettleResult | None]:
        """Settle an attempt that the store refused: without its content, or as released."""
        if isinstance(error, REFUSALS):
            log_refusal(logger, error, ending.execution.fields())
            try:
                return await self._settle_one(ending.without_content())
            except Exception as another:  # noqa: BLE001 - it has no content left to refuse, so this is a bug of ours
                error = another
        released = await self._released(ending.execution, error)
        try:
            if released is not None:
                return await self._settle_one(released)
        except Exception as another:  # noqa: BLE001 - the same bug, most likely
            log_bug(logger, LEFT, another, ending.execution.fields())
        return ending, None

    async def _settle_one(self, ending: _Ending) -> tuple[_Ending, SettleResult | None]:
        [settled] = await self._settle_all([ending])
        return settled

    async def _released(self, execution: Execution, error: Exception) -> _Ending | None:
        """Release an attempt that a bug of ours keeps from being settled; None if even that fails."""
        log_bug(logger, "a job could not be settled", error, execution.fields())
        try:
            # The store may not know the delivery that the task declares.
            job = replace(execution.claimed, delivery=execution.delivery)
            is_first = job.number == job.first_number
            bare = settle_unsettled(
                execution.lease.token,
                job,
                error_text(error),
                [] if is_first else await self._store.history(job.id, HISTORY_ROWS),
                started_at=execution.started_at,
                suspect=execution.lease.alone,
            )
            bare = await self._with_failure_task(execution, bare)
        except Exception as another:  # noqa: BLE001 - the same bug, most likely
            log_bug(logger, LEFT, another, execution.fields())
            return None
        if job.due_at is None:
            return _Ending(execution, bare, bare, None)
        try:
            return _Ending(execution, bare, await self._recurring.armed(execution, bare), None)
        except Exception:  # noqa: BLE001 - the bug is in its schedule, and is logged already
            blindly = armed_blindly(bare, job, job.version, self._time.now())
            return _Ending(execution, bare, blindly, None)

    async def _settle_changed(
        self, ending: _Ending, settled: SettleResult | None
    ) -> tuple[_Ending, SettleResult | None]:
        """Settle by the schedule as it is now: it was changed after this attempt was claimed."""
        while settled is not None and settled.answer is SettleAnswer.CHANGED:
            try:
                transition = await self._recurring.by_the_schedule_now(ending.execution, ending.bare)
            except Exception as error:  # noqa: BLE001 - a bug of ours must cost no other job anything
                log_bug(logger, LEFT, error, ending.execution.fields())
                return ending, None
            if transition is None:
                return ending, SettleResult(SettleAnswer.NOT_RUNNING, at=settled.at)
            ending = replace(ending, transition=transition)
            [(ending, settled)] = await settle_apart(self._settle_all, [ending], self._mend)
        return ending, settled

    async def _transition(self, execution: Execution, outcome: Outcome) -> tuple[Transition, Decision | None]:
        claimed, token = execution.claimed, execution.lease.token
        if isinstance(outcome, Succeeded):
            children = execution.children
            return settle_success(token, claimed, outcome, execution.started_at, children), None
        if isinstance(outcome, Unrunnable):
            aside = None
            if execution.task is None and self._colleagues.are_known:
                if await self._colleagues.know(claimed.task, claimed.queue):
                    return settle_known_elsewhere(token, claimed, suspect=execution.lease.alone), None
                aside = task_label(claimed.task)
            history: list[AttemptRecord] = []
            if claimed.number > claimed.first_number:
                history = await self._store.history(claimed.id, self._unrunnable_rows)
            grace, now = self._unrunnable_grace_seconds, self._time.now()
            suspect = execution.lease.alone
            unrunnable = settle_unrunnable(
                token, claimed, outcome, history, now=now, grace_seconds=grace, suspect=suspect, aside=aside
            )
            return await self._with_failure_task(execution, unrunnable), None
        if isinstance(outcome, Crashed | Disturbed):
            job = replace(claimed, delivery=execution.delivery)  # perhaps only its declaration knows
            history, last_step = await loss_history(self._store, self._step_reader, claimed)
            weighed: dict[str, Any] = {
                "started_at": execution.started_at,
                "last_step": last_step,
                "max_losses": self._max_losses,
            }
            if isinstance(outcome, Crashed):
                cut_off = settle_crash(token, job, outcome, history, **weighed)
            else:
                alone = execution.lease.alone
                cut_off = settle_disturbed(token, job, outcome, history, alone=alone, **weighed)
            return await self._with_failure_task(execution, cut_off), None
        rules = execution.rules(self._policy)
        transition, decision = settle_outcome(
            token,
            claimed,
            outcome,
            rules,
            started_at=execution.started_at,
            suspect=execution.lease.alone,
        )
        return await self._with_failure_task(execution, transition), decision

    async def _with_failure_task(self, execution: Execution, transition: Transition) -> Transition:
        declared = execution.task.declared_failure_task if execution.task else None
        return await self._failure_tasks.added(transition, execution.claimed, execution.options, declared)

    async def _store_notes(self, notes: dict[Execution, Progress]) -> None:
        batch = [
            ProgressNote(e.lease.token, e.claimed.id, e.claimed.number, progress)
            for e, progress in notes.items()
        ]
        try:
            await Steps.of(self._store.driver).note(batch)
        except Exception as error:  # noqa: BLE001 - no job depends on progress, and the next note replaces it
            log_line(logger, logging.WARNING, "progress could not be stored: {error}", {"error": str(error)})


def _parted(ended: list[Ended]) -> tuple[list[Ended], list[Ended]]:
    """Return the plain successes (see `Transition.is_plain`), and everything else."""
    plain: list[Ended] = []
    others: list[Ended] = []
    for each in ended:
        execution, outcome, _ = each
        if type(outcome) is Succeeded and execution.claimed.due_at is None and not execution.children:
            plain.append(each)
        else:
            others.append(each)
    return plain, others


def _columns_of(ended: Sequence[Ended], claimed: Sequence[Claimed]) -> PlainSuccesses:
    executions = [each[0] for each in ended]
    results: list[str | None] = [each[1].result for each in ended]  # type: ignore[union-attr]
    return PlainSuccesses(
        [execution.lease.token for execution in executions],
        [job.id for job in claimed],
        [job.number for job in claimed],
        [job.attempts for job in claimed],
        [execution.started_at for execution in executions],
        results if results.count(None) < len(results) else None,
    )


def _try(count: Callable[[], None]) -> None:
    try:
        count()
    except Exception as error:  # noqa: BLE001 - it is settled, whether it is counted or not
        log_bug(logger, "settled jobs could not be counted", error)


def _count(
    meter: Meter, endings: list[_Ending], answers: list[SettleResult], dependants: list[JobRecord]
) -> None:
    """Count attempts that are settled, and the jobs that ended with theirs."""
    jobs = [ending.execution.claimed for ending in endings]
    meter.settled(jobs, [ending.transition for ending in endings], answers)
    for record in dependants:
        meter.ended_unbegun(record)


class _Ending(Struct, frozen=True):
    """An attempt that has ended, and the transition that settles it."""

    execution: Execution
    bare: Transition  # of a recurring job: without the next occurrence
    transition: Transition
    decision: Decision | None

    def without_content(self) -> _Ending:
        return _Ending(
            self.execution, without_content(self.bare), without_content(self.transition), self.decision
        )
