"""The committer: turns outcomes into transitions by the policy, and settles them in batches.

A success is not reported to anyone before it is settled. Batches form by themselves: while one is being
settled, the next one gathers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from taskharbor.collecting import past_of
from taskharbor.drivers.base import Answer, Claimed, Driver, ProgressNote, Settled, Transition
from taskharbor.errors import StoreError
from taskharbor.job import AttemptRecord, AttemptStatus, JobRecord, Progress, Reason, State
from taskharbor.outcome import Crashed, Outcome, Succeeded, Unfit
from taskharbor.policy import UNFIT_DELAY_MAX_SECONDS, settle_crash, settle_outcome, settle_unfit
from taskharbor.retry import Decision, RetryPolicy
from taskharbor.worker.execution import Execution
from taskharbor.worker.live import LiveLeases, StoreTime
from taskharbor.worker.outage import Outages
from taskharbor.worker.recurring import Recurring
from taskharbor.worker.report import Reporter
from taskharbor.workflow.failure import FailureTasks

logger = logging.getLogger("taskharbor.worker")

T = TypeVar("T")

BATCH_MAX = 1_000
GATHER_SECONDS = 0.002  # how long a busy worker waits for a batch to fill
UNFIT_ROWS_MORE = 50


class Committer:
    def __init__(
        self,
        driver: Driver,
        *,
        worker_policy: RetryPolicy | None,
        unfit_grace_seconds: float,
        max_losses: int,
        leases: LiveLeases,
        time: StoreTime,
        outages: Outages,
        reporter: Reporter,
        is_busy: Callable[[], bool],
        on_quiet: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._failure_tasks = FailureTasks(driver)
        self._policy = worker_policy
        self._unfit_grace_seconds = unfit_grace_seconds
        self._max_losses = max_losses
        # As many rows as a job can be put back within the grace, and some: the first of them must be in sight.
        self._unfit_rows = int(unfit_grace_seconds / UNFIT_DELAY_MAX_SECONDS) + UNFIT_ROWS_MORE
        self._leases = leases
        self._time = time
        self._outages = outages
        self._reporter = reporter
        self._is_busy = is_busy
        self._on_quiet = on_quiet
        self._recurring = Recurring(
            time, settle=self._settle_surely, history=self._history_surely, get=self._get_surely
        )
        self._pending: list[tuple[Execution, Outcome]] = []
        self._notes: dict[Execution, Progress] = {}
        self._arrived = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    # -- what comes in --

    def put(self, execution: Execution, outcome: Outcome) -> None:
        self._pending.append((execution, outcome))
        self._arrived.set()
        self._quiet.clear()

    def note(self, execution: Execution, progress: Progress) -> None:
        """Of several notes of one job in a batch the last one is enough."""
        self._notes[execution] = progress
        self._arrived.set()
        self._quiet.clear()

    @property
    def is_quiet(self) -> bool:
        return self._quiet.is_set()

    async def quiet(self) -> None:
        """Until everything that came in has been settled."""
        await self._quiet.wait()

    # -- settling --

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            if len(self._pending) < BATCH_MAX and self._is_busy():
                await asyncio.sleep(GATHER_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Settle everything that has come in."""
        notes, self._notes = self._notes, {}
        pending, self._pending = self._pending, []
        self._arrived.clear()
        if notes:
            await self._store_notes(notes)
        while pending:
            try:
                await self._settle(pending[:BATCH_MAX])
            except BaseException:  # cancelled, say: whether it took effect or not, it can be settled again
                self._pending = pending + self._pending
                raise
            del pending[:BATCH_MAX]
        if not self._pending and not self._notes:
            self._quiet.set()
            self._on_quiet()

    async def _settle(self, ended: Sequence[tuple[Execution, Outcome]]) -> None:
        executions: list[Execution] = []
        transitions: list[Transition] = []
        decisions: list[Decision | None] = []
        bare: dict[Execution, Transition] = {}  # of recurring jobs: without the next occurrence
        for execution, outcome in ended:
            transition, decision = await self._transition(execution, outcome)
            if execution.claimed.due_at is not None:
                bare[execution] = transition
                transition = await self._recurring.armed(execution, transition)
            executions.append(execution)
            transitions.append(transition)
            decisions.append(decision)
        answers = await self._settle_surely(transitions)
        for index, answer in enumerate(answers):
            if answer.answer is Answer.CHANGED:
                execution = executions[index]
                changed = await self._recurring.settle_changed(execution, bare[execution], answer)
                transitions[index], answers[index] = changed
        refused: dict[str, list[tuple[str, int]]] = {}
        for execution, transition, decision, answer in zip(
            executions, transitions, decisions, answers, strict=True
        ):
            self._leases.settled(execution)
            if answer.answer is Answer.DONE:
                self._reporter.settled(execution, transition, decision, answer)
            else:
                refused.setdefault(transition.token, []).append((transition.job_id, transition.number))
                self._reporter.refused(execution, transition, answer)
        await self._reporter.ended_with(answers, self._records_surely)
        for token, jobs in refused.items():
            await self.outlive(token, jobs)

    async def _transition(self, execution: Execution, outcome: Outcome) -> tuple[Transition, Decision | None]:
        claimed, token = execution.claimed, execution.lease.token
        if type(outcome) is Succeeded:
            return (
                Transition(
                    token, claimed.id, claimed.number, AttemptStatus.SUCCEEDED, State.SUCCEEDED,
                    claimed.attempts, execution.started_at, result=outcome.result,
                    inserts=tuple(execution.children),
                ),
                None,
            )  # fmt: skip
        if isinstance(outcome, Unfit):
            history: list[AttemptRecord] = []
            if claimed.number > claimed.first_number:
                history = await self._read_surely(lambda: self._driver.history(claimed.id, self._unfit_rows))
            grace, now = self._unfit_grace_seconds, self._time.now()
            suspect = execution.lease.alone
            unfit = settle_unfit(
                token, claimed, outcome, history, now=now, grace_seconds=grace, suspect=suspect
            )
            return await self._with_failure_task(unfit, execution), None
        if isinstance(outcome, Crashed):
            job = replace(claimed, delivery=execution.delivery)  # perhaps only its declaration knows
            history, last_step = await self._read_surely(lambda: past_of(self._driver, claimed))
            crash = settle_crash(
                token,
                job,
                outcome,
                history,
                started_at=execution.started_at,
                last_step=last_step,
                max_losses=self._max_losses,
            )
            return await self._with_failure_task(crash, execution), None
        rules = execution.rules(self._policy)
        transition, decision = settle_outcome(
            token,
            claimed,
            outcome,
            rules,
            started_at=execution.started_at,
            suspect=execution.lease.alone,
        )
        return await self._with_failure_task(transition, execution), decision

    async def _with_failure_task(self, transition: Transition, execution: Execution) -> Transition:
        return await self._read_surely(
            lambda: self._failure_tasks.added(transition, execution.claimed, execution.options)
        )

    async def _settle_surely(self, transitions: list[Transition], *, safe: bool = False) -> list[Settled]:
        """Settle, and repeat while the store is away: a repeated settle is answered as the first one was."""
        try:
            return await self._outages.until_answered(
                lambda: self._driver.settle(transitions), "the store cannot settle"
            )
        except Exception as error:  # noqa: BLE001 - refused for its content: find whose
            if safe:  # there is nothing in it any more: left to its lease
                return [Settled(Answer.NOT_RUNNING)]
            return await self._settle_apart(transitions, error)

    async def has_begun(self, execution: Execution) -> bool:
        """Whether an earlier attempt of this run began, or may have."""
        return await self._recurring.has_begun(execution)

    async def _history_surely(self, job: Claimed, rows: int) -> list[AttemptRecord]:
        if job.number == job.first_number:
            return []
        return await self._read_surely(lambda: self._driver.history(job.id, rows))

    async def _get_surely(self, job_id: str) -> JobRecord | None:
        [record] = await self._records_surely([job_id])
        return record

    async def _records_surely(self, ids: Sequence[str]) -> list[JobRecord | None]:
        return await self._read_surely(lambda: self._driver.get(ids))

    async def _read_surely(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._outages.until_answered(read, "the store cannot be read")

    async def _settle_apart(self, transitions: list[Transition], error: Exception) -> list[Settled]:
        """One bad member never blocks a batch: halve it until the culprit is alone, and fail that one safely."""
        if len(transitions) == 1:
            logger.error(
                "the store refused a transition for its content",
                extra={"fields": {"job": transitions[0].job_id, "error": repr(error)}},
            )
            return await self._settle_surely([_safe(transitions[0])], safe=True)
        middle = len(transitions) // 2
        return [
            *await self._settle_surely(transitions[:middle]),
            *await self._settle_surely(transitions[middle:]),
        ]

    async def _store_notes(self, notes: dict[Execution, Progress]) -> None:
        batch = [
            ProgressNote(e.lease.token, e.claimed.id, e.claimed.number, progress)
            for e, progress in notes.items()
        ]
        try:
            await self._driver.note(batch)
        except Exception as error:  # noqa: BLE001 - progress is for onlookers: the next note will do
            logger.warning("progress could not be stored", extra={"fields": {"error": str(error)}})

    async def outlive(self, token: str, jobs: list[tuple[str, int]]) -> None:
        """Tell the store that this worker is alive: what it lost was lost to an outage, not to a crash."""
        try:
            await self._driver.outlive(token, jobs)
        except StoreError as error:
            logger.warning("the store could not be told", extra={"fields": {"error": str(error)}})


def _safe(transition: Transition) -> Transition:
    """The same ending with nothing in it that a store could choke on."""
    error = "the store refused what this attempt left behind (its result, error or children)"
    if transition.to is State.SUCCEEDED:
        return replace(
            transition, status=AttemptStatus.FAILED, to=State.DEAD, reason=Reason.UNRECOVERABLE,
            attempts=transition.attempts + 1, result=None, inserts=(), error=error, dead_letter=None,
        )  # fmt: skip
    return replace(
        transition, result=None, inserts=(), error=error, traceback=None, detail=None, dead_letter=None
    )
