"""What must hold of recurring jobs: when the next run is due, which runs there are, and what ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import (
    Cancel,
    Claim,
    Claimed,
    ClaimRequest,
    Delete,
    Enqueued,
    OperationResult,
    OperationVerdict,
    SettleResult,
    Transition,
    Update,
)
from taskharbor.records import AttemptStatus, JobFilter, JobRecord, Misfire, Reason, Recurrence, State
from taskharbor.rules.standing import PARKED_AT
from tests.simulation.grid import Grid
from tests.simulation.observer import TERMINAL, Held
from tests.simulation.story_observer import StoryObserver

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from tests.simulation.recurring_world import RecurringWorld
    from tests.simulation.world import Process

BEGIN_SECONDS = 0.3  # from deciding that an occurrence is not too late to beginning it
DAY = 24 * 3600 * MICROS_PER_SECOND  # far beyond any error of an estimate
DEAD = JobFilter(state=State.DEAD)


class Recurring(Struct):
    """A schedule as it should stand."""

    recurrence: Recurrence | None  # None: it was deleted while it ran
    due: int
    first: int = 1  # of the run that is next or under way
    extra: bool = False  # that run was asked for
    unsure: bool = False  # by now its place does not tell whether it was asked for, and either will do
    again: bool = False  # another one was asked for while it ran
    cancels: int = 0  # occurrences that an operator ended before they began
    last_due: int = 0  # of the latest ordinary run
    last_settled_due: int = 0

    @property
    def grid(self) -> Grid:
        assert self.recurrence is not None
        return Grid(self.recurrence.schedule, self.due)


class RecurringObserver(StoryObserver):
    world: RecurringWorld

    def __init__(self, world: RecurringWorld) -> None:
        super().__init__(world)
        self.recurring: dict[str, Recurring] = {}
        self.copies: set[str] = set()
        self.claimed_by: dict[str, str | None] = {}  # the schedule when the job was last claimed
        self._settler: Process | None = None

    # -- being there --

    def _enqueue(self, process: Process, jobs: Any, answers: list[Enqueued], late: bool) -> None:
        super()._enqueue(process, jobs, answers, late)
        for job, answer in zip(jobs, answers, strict=True):
            if job.options.recurrence is None or answer.existed:
                continue
            self.not_before[job.id] = job.due_at
            self.recurring[job.id] = Recurring(job.options.recurrence, job.due_at)

    def _forget(self, job_id: str) -> None:
        super()._forget(job_id)
        self.recurring.pop(job_id, None)
        self.stored.pop(job_id, None)
        for known in (self.executed, self.ended_at):
            for attempt in [each for each in known if each[0] == job_id]:
                del known[attempt]

    # -- claims and begins --

    def _claim(self, process: Process, request: ClaimRequest, claim: Claim, late: bool) -> None:
        fresh = [job for job in claim.jobs if (job.id, job.number) not in self.held]
        super()._claim(process, request, claim, late)
        for job in fresh:
            if job.id in self.recurring:
                self._claimed(job, self.recurring[job.id])
        for job in claim.jobs:  # also a repeated claim tells what holds now
            if (it := self.recurring.get(job.id)) is not None:
                self.claimed_by[job.id] = None if it.recurrence is None else it.recurrence.schedule

    def _claimed(self, job: Claimed, it: Recurring) -> None:
        if it.recurrence is not None and it.recurrence.paused:
            self.wrong(f"pause: {job.id} is claimed although its schedule is paused")
        if job.first_number != it.first:
            self.wrong(f"run: {job.id} is claimed in the run from {job.first_number}, not from {it.first}")
        if job.due_at != it.due:
            self.wrong(f"due: {job.id} is claimed for {job.due_at}, and due at {it.due}")
        if job.number != job.first_number:
            return
        if job.attempts:
            self.wrong(f"run: {job.id} begins a run with {job.attempts} failures")
        if (job.run_at < it.due) is not it.extra:
            self.wrong(f"run now: {job.id} is placed at {job.run_at} and due at {it.due}, extra: {it.extra}")
        self.told["extra runs" if it.extra else "runs"] += 1
        if it.extra:
            return
        if it.due <= it.last_due:
            self.wrong(f"double fire: {job.id} runs for {it.due}, and ran for {it.last_due} already")
        it.last_due = it.due

    def began(self, process: Process, execution: Execution) -> None:
        super().began(process, execution)
        claimed, it = execution.claimed, self.recurring.get(execution.claimed.id)
        if it is None or not self.holds(execution) or it.recurrence is None or it.extra:
            return
        known = execution.options.recurrence
        earlier = [
            each for each in self.begins[claimed.id] if each[1] == it.first and each[0] < claimed.number
        ]
        lost = any(
            (claimed.id, each) in self.ledger and self.ledger[claimed.id, each].status is AttemptStatus.LOST
            for each in range(it.first, claimed.number)
        )
        if known is None or known.misfire is not Misfire.SKIP or earlier or lost or claimed.due_at is None:
            return
        late = self.now - claimed.due_at - self.error_of(process)
        if late > round((known.misfire_grace + BEGIN_SECONDS) * MICROS_PER_SECOND):
            self.wrong(f"misfire: {claimed.id} begins {late / 1e6:.3f} s late, grace {known.misfire_grace}")

    # -- endings --

    def _retried(self, transition: Transition, answer: SettleResult) -> None:
        it = self.recurring.get(transition.job_id)
        if it is None or it.recurrence is None or not it.recurrence.paused:  # that one is parked
            super()._retried(transition, answer)

    def _settle(self, process: Process, transitions: Any, answers: list[SettleResult], late: bool) -> None:
        self._settler = process
        super()._settle(process, transitions, answers, late)
        self._settler = None

    def _has_ended(self, transition: Transition) -> bool:
        held = self.held[transition.job_id, transition.number]
        return transition.to is not State.READY or held.cancel_requested

    def _is_cancelled(self, transition: Transition, answer: SettleResult) -> bool:
        if transition.job_id not in self.recurring or self.recurring[transition.job_id].recurrence is None:
            return super()._is_cancelled(transition, answer)
        return True  # that its occurrence has ended is seen below

    def _settled(self, transition: Transition, answer: SettleResult) -> None:
        super()._settled(transition, answer)
        job_id = transition.job_id
        it, record = self.recurring.get(job_id), self.look(job_id)
        if it is None:
            return
        if record is None:
            self.wrong(f"{job_id} was settled and is gone")
        elif not self._has_ended(transition):
            self._put_back(it, record)
        elif it.recurrence is None:
            if record.state not in TERMINAL:
                self.wrong(f"delete: {job_id} was deleted while it ran, and is {record.state} after that run")
        else:
            self._rearmed(it, record, transition)

    def _put_back(self, it: Recurring, record: JobRecord) -> None:
        if it.recurrence is None:  # an ordinary job by now, unless it is added again
            it.unsure = it.unsure or it.extra
            return
        if record.due_at != it.due:
            self.wrong(f"due: {record.id} was put back, and is due at {record.due_at} instead of {it.due}")
        if it.recurrence.paused and record.run_at < PARKED_AT - DAY:
            self.wrong(f"pause: {record.id} is paused, and placed at {record.run_at}")

    def _rearmed(self, it: Recurring, record: JobRecord, transition: Transition) -> None:
        """Every ending of a run sets the next one, in the same transaction."""
        assert it.recurrence is not None
        job_id, number = transition.job_id, transition.number
        held = self.held[job_id, number]
        self.told["endings"] += 1
        if record.state in TERMINAL or record.due_at is None:
            self.wrong(f"re-arming: {job_id} is {record.state} after attempt {number}, {transition.status}")
            return
        if record.attempts:
            self.wrong(f"re-arming: {job_id} has {record.attempts} failures in a new run")
        self.stored[job_id] = {}
        self._compare_steps(job_id, self.world.ask("steps", job_id))
        self._judge_missed(it, transition)
        self._judge_copy(it, transition, held)
        begins = [at for _, run, at in self.begins[job_id] if run == it.first]
        if transition.status is AttemptStatus.LOST:
            since = self.expiry[held.claimed_as]
        else:
            since = self.ended_at.get((job_id, number), held.claimed_at)
        assert self._settler is not None
        error = self.error_of(self._settler)
        since, until = since - error, self.now + error
        if (it.extra or it.unsure) and self.claimed_by[job_id] != it.recurrence.schedule:
            # The occurrence that an extra run leaves alone is none any more: the first by the new schedule.
            grid = Grid(it.recurrence.schedule, record.due_at)
            allowed = {grid.after(now) for now in (since, until, *grid.between(since, until))}
            if (
                transition.status is AttemptStatus.LOST or it.unsure
            ):  # a collector knows only the new schedule
                allowed |= self._next_dues(it, begins, since, until, error)
        else:
            allowed = self._next_dues(it, begins, since, until, error)
        if record.due_at not in allowed:
            self.wrong(
                f"next due: {job_id} was due at {it.due} (extra: {it.extra}), began at {begins}, ended at {self.now}, "
                f"and is due at {record.due_at} by {it.recurrence.schedule} {it.recurrence.misfire}, not at {allowed}"
            )
        if not it.extra:
            it.last_settled_due = it.due
        self._begin_run(it, record, number + 1, extra=it.again)

    def _begin_run(self, it: Recurring, record: JobRecord, first: int, *, extra: bool = False) -> None:
        assert it.recurrence is not None
        assert record.due_at is not None
        it.due, it.first, it.again, it.unsure = record.due_at, first, False, False
        it.extra = extra and not it.recurrence.paused
        place = PARKED_AT if it.recurrence.paused else it.due
        if it.extra and record.run_at >= it.due:
            self.wrong(f"run now: {record.id} should run again right after, and is placed at {record.run_at}")
        elif not it.extra and record.run_at != place:
            self.wrong(f"place: {record.id} is due at {it.due} and placed at {record.run_at}, not at {place}")
        if it.recurrence.paused and record.state is not State.SCHEDULED:
            self.wrong(f"pause: {record.id} is paused, and {record.state}")
        self.not_before[record.id] = record.run_at

    def _next_dues(self, it: Recurring, begins: list[int], since: int, until: int, error: int) -> set[int]:
        """The first occurrence after both this one and now, or by `run_once` the latest missed one.

        When exactly the worker looked, and what it knew of the begin, is not known here: any of these is right.
        """
        assert it.recurrence is not None
        grid, due = it.grid, it.due
        begun = {due}
        if begins:
            first, last = begins[0] - error, begins[-1] + error
            begun |= {first, last, *grid.between(first, last)}
            if first > due:
                begun.discard(due)
        allowed: set[int] = set()
        if it.unsure:
            for extra in (False, True):
                either = replace(it, extra=extra, unsure=False)
                allowed |= self._next_dues(either, begins, since, until, error)
            return allowed
        for now in (since, until, *grid.between(since, until)):
            if it.extra and (due > now or it.recurrence.misfire is Misfire.SKIP):
                allowed.add(due)  # as if there had been no extra run
                continue
            for begin in [due - 1] if it.extra else begun:
                missed = None
                if it.recurrence.misfire is Misfire.RUN_ONCE:
                    missed = max(grid.between(max(begin, due if not it.extra else begin), now), default=None)
                allowed.add(grid.after(max(due, now)) if missed is None else missed)
        return allowed

    def _judge_missed(self, it: Recurring, transition: Transition) -> None:
        """Dropped only when it is later than its grace, and was not begun."""
        if transition.reason is not Reason.EXPIRED:
            return
        self.told["missed"] += 1
        assert it.recurrence is not None
        assert self._settler is not None
        late = self.now - it.due + self.error_of(self._settler)
        if it.recurrence.misfire is not Misfire.SKIP and not self._was_changed(transition):
            self.wrong(f"misfire: {transition.job_id} was dropped by {it.recurrence.misfire}")
        if late < it.recurrence.misfire_grace * MICROS_PER_SECOND and not self._was_changed(transition):
            self.wrong(f"misfire: {transition.job_id} was dropped {late / 1e6:.3f} s late")
        if any(run == it.first for _, run, _ in self.begins[transition.job_id]):
            self.wrong(f"misfire: {transition.job_id} was dropped after it had begun")

    def _was_changed(self, transition: Transition) -> bool:
        """Whether an operator changed it while this attempt had it."""
        return transition.job_id in self.touched

    def _judge_copy(self, it: Recurring, transition: Transition, held: Held) -> None:
        """With `dead_letter`, a failed occurrence leaves a one-off copy in the DLQ; nothing else does."""
        assert it.recurrence is not None
        wanted = it.recurrence.dead_letter and transition.to is State.DEAD and not held.cancel_requested
        copy = None if transition.dead_letter is None else self.look(transition.dead_letter.id)
        if (copy is not None) is not wanted:
            self.wrong(f"dead letter: {transition.job_id} should have left one: {wanted}, and left {copy}")
        if copy is None:
            return
        self.told["dead letters"] += 1
        self.copies.add(copy.id)
        numbers = [row.number for row in self.rows_of(copy.id)]
        if copy.state is not State.DEAD or copy.due_at is not None or copy.options.recurrence is not None:
            self.wrong(f"dead letter: {copy}")
        if numbers != list(range(it.first, transition.number + 1)):
            self.wrong(f"dead letter: the run from {it.first} to {transition.number} left {numbers}")

    # -- operators --

    def _operate(self, process: Process, about: Any, answers: list[OperationResult], late: bool) -> None:
        operation, _ = about
        for answer in answers:
            it = self.recurring.get(answer.job_id)
            if it is None or answer.verdict not in (OperationVerdict.DONE, OperationVerdict.REQUESTED):
                continue
            self.note("operated", type(operation).__name__, answer.job_id, answer.verdict)
            self.told[type(operation).__name__] += 1
            match operation:
                case Update():
                    self._updated(it, operation, answer)
                case Cancel() if answer.verdict is OperationVerdict.REQUESTED:
                    self._holder(answer.job_id).cancel_requested = True
                case Cancel():
                    self._cancelled(it, process, answer.job_id)
                case Delete():
                    self._forget(answer.job_id)

    def _updated(self, it: Recurring, update: Update, answer: OperationResult) -> None:
        job_id, before = answer.job_id, it.recurrence
        if update.options is UNSET:
            if update.run_at is not UNSET:
                self._ran_now(it, job_id)
            return
        it.recurrence = new = update.options.recurrence
        it.again = it.again and new is not None  # what was asked of a schedule ends with it
        if answer.state is State.RUNNING:
            self.touched.add(job_id)
            if new is not None and before is not None and new.again_after != before.again_after:
                it.again = True
            return
        self.touched.discard(job_id)
        record = self.look(job_id)
        if record is None or record.due_at is None or new is None:
            return
        if isinstance(update.due_at, int):
            it.due = record.due_at
            if not it.grid.has(it.due):
                self.wrong(f"change: {job_id} is due at {it.due}, which is no occurrence of {new.schedule}")
            it.last_due = min(it.last_due, it.due - 1)  # it has other occurrences from here on
        elif record.due_at != it.due:
            self.wrong(f"change: {job_id} was due at {it.due}, and is at {record.due_at}")
        is_fresh = record.number < it.first  # an extra run that is under way stays one
        if new.paused:
            it.extra = it.extra and not is_fresh
            if record.state is not State.SCHEDULED:
                self.wrong(f"pause: {job_id} is paused, and {record.state}")
        elif update.at_due:
            it.unsure = it.extra and not is_fresh
            it.extra = it.extra and not is_fresh
            if record.run_at != it.due:
                self.wrong(f"resume: {job_id} is due at {it.due}, and placed at {record.run_at}")
        self.not_before[job_id] = record.run_at

    def _ran_now(self, it: Recurring, job_id: str) -> None:
        if it.recurrence is not None and it.recurrence.paused:
            self.wrong(f"pause: {job_id} is run now although its schedule is paused")
        record = self.look(job_id)
        assert record is not None
        if it.recurrence is not None and record.due_at != it.due:
            self.wrong(f"run now: {job_id} was due at {it.due}, and is at {record.due_at}")
        it.extra = it.extra or record.run_at < it.due
        self.not_before[job_id] = record.run_at

    def _cancelled(self, it: Recurring, process: Process, job_id: str) -> None:
        """Cancel ends the occurrence: the next one is another one."""
        record = self.look(job_id)
        if it.recurrence is None:
            return  # the last run of what was deleted: it ends
        if record is None or record.due_at is None:
            self.wrong(f"cancel: {job_id} should go on, and is {record}")
            return
        self.stored[job_id] = {}
        self._compare_steps(job_id, self.world.ask("steps", job_id))
        error = self.error_of(process)
        ended = Recurring(it.recurrence, it.due)
        since = self.now - error - MICROS_PER_SECOND
        nexts = {
            ended.grid.after(max(it.due, now))
            for now in (since, self.now, *ended.grid.between(since, self.now))
        }
        allowed = {it.due} if it.extra else nexts
        if it.unsure or (it.extra and record.number > it.first):
            allowed = {it.due, *nexts}  # one that is to go on past the occurrence may be cancelled with it
        if record.due_at not in allowed:
            self.wrong(
                f"cancel: {job_id} was due at {it.due} (extra: {it.extra}), and is at {record.due_at}, not {allowed}"
            )
        self._begin_run(it, record, record.number + 1)

    # -- the end --

    def judge(self) -> None:
        super().judge()
        for job_id, it in self.recurring.items():
            spec: Any = self.specs[job_id]
            record = self.look(job_id)
            if record is None:
                self.wrong(f"{job_id} is gone")
                continue
            settled = record.number - (record.state is State.RUNNING)
            failures = self.judge_rows(job_id, settled, spec.timeout, spec.most_attempts)
            if it.recurrence is not None and it.first == record.number + 1 and record.attempts:
                self.wrong(f"re-arming: {job_id} has {record.attempts} failures in a new run")
            elif it.first <= settled and record.attempts != failures:
                self.wrong(f"{job_id}: attempts is {record.attempts}, and {failures} have failed")
        dead = {job.id for job in self.world.ask("list", DEAD, limit=1000, now=self.now).jobs} - set(
            self.recurring
        )
        if dead != self.copies:
            self.wrong(f"dead letter: {sorted(dead)} are in the DLQ, and {sorted(self.copies)} were left")
