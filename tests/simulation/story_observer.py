"""What must hold of durable steps, of sleeps and of history, in schedules and in workflows alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from taskharbor.clock import MICROS_PER_SECOND, to_micros
from taskharbor.drivers.base import SettleAnswer, SettleResult, StepNote, Transition
from taskharbor.records import AttemptRecord, AttemptStatus, JobRecord, Reason
from taskharbor.rules.policy import LOST_ALONE
from taskharbor.worker.handlers.steps import Sleep
from tests.simulation.observer import FAILURES, SLACK_SECONDS, Attempt, Observer
from tests.simulation.story import POLICY

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from tests.simulation.story_world import StoryWorld
    from tests.simulation.world import Process

ESTIMATE_SECONDS = 0.15  # by which a worker that has no trouble may be wrong about the store's time


class StoryObserver(Observer):
    world: StoryWorld

    def __init__(self, world: StoryWorld) -> None:
        super().__init__(world)
        self.told = Counter[str]()  # what the worlds are full of
        self.stored: defaultdict[str, dict[str, tuple[str, int]]] = defaultdict(
            dict
        )  # by job: (result, number)
        self.stored_until: dict[Attempt, dict[str, tuple[str, int]]] = {}  # when the job was condemned
        self.executed: dict[Attempt, set[str]] = defaultdict(set)
        self.ended_at: dict[Attempt, int] = {}
        self._serial = 0

    # -- reading --

    def look(self, job_id: str) -> JobRecord | None:
        found: list[JobRecord | None] = self.world.ask("get", [job_id], now=self.now)
        return found[0]

    def before(self, verb: str, about: Any) -> None:
        pass

    def is_once(self, job_id: str) -> bool:
        spec: Any = self.specs.get(job_id)
        return spec is not None and spec.is_once

    def error_of(self, process: Process) -> int:
        """By how much this process may be wrong about the store's time, in microseconds."""
        waits = [seconds for _, what, seconds in process.troubles if what in ("slow", "freeze")]
        seconds = ESTIMATE_SECONDS + 4 * process.world.rates.usual_seconds + 2 * max(waits, default=0.0)
        return round(seconds * MICROS_PER_SECOND)

    # -- what handlers do --

    def is_known(self, execution: Execution) -> bool:
        """Not one of a job that was deleted, and of which there is another one by now."""
        held = self.held.get((execution.claimed.id, execution.claimed.number))
        return held is not None and held.claimed_as == execution.lease.token

    def holds(self, execution: Execution) -> bool:
        return self.is_known(execution) and self.open.get(execution.claimed.id) == execution.claimed.number

    def began(self, process: Process, execution: Execution) -> None:
        claimed = execution.claimed
        self.processes[process.name] = process
        if not self.is_known(execution):
            return
        self.note("begin", process.name, claimed.id, claimed.number)
        begins = self.begins[claimed.id]
        if self.is_once(claimed.id) and any(run == claimed.first_number for _, run, _ in begins):
            self.wrong(f"at_most_once: {claimed.id} begins a second time in run {claimed.first_number}")
        if any(number == claimed.number for number, _, _ in begins):
            self.wrong(f"{claimed.id}: attempt {claimed.number} begins twice")
        begins.append((claimed.number, claimed.first_number, self.now))
        self.running[claimed.id, claimed.number] = process.name

    def ended(self, execution: Execution) -> None:
        super().ended(execution)
        self.ended_at[execution.claimed.id, execution.claimed.number] = self.now

    def took(self, execution: Execution, taken: Any) -> None:
        """What it was given of the results of others."""

    def mourned(self, what: dict[str, Any]) -> None:
        self.note("mourned", what)

    # -- durable steps --

    def step_executed(self, execution: Execution, name: str) -> list[int]:
        """A completed step is not executed again. Gives a value that there never was before."""
        claimed = execution.claimed
        self.note("step", claimed.id, claimed.number, name)
        self.told["steps"] += 1
        known = self.stored[claimed.id].get(name) if self.is_known(execution) else None
        # Who stored it under an earlier number had lost the job, or ended, before this attempt was claimed.
        if known is not None and known[1] <= claimed.number:
            self.wrong(
                f"step: {claimed.id} executes {name!r} again in attempt {claimed.number}, stored: {known}"
            )
        if name in self.executed[claimed.id, claimed.number]:
            self.wrong(f"step: {claimed.id} executes {name!r} twice in attempt {claimed.number}")
        self.executed[claimed.id, claimed.number].add(name)
        self._serial += 1
        return [claimed.number, self._serial]

    def has_executed(self, execution: Execution, name: str) -> bool:
        return name in self.executed[execution.claimed.id, execution.claimed.number]

    def step_returned(self, execution: Execution, name: str, value: list[int]) -> None:
        """Its result is the stored one, for whoever holds the job."""
        claimed = execution.claimed
        if not self.holds(execution):
            return
        known = self.stored[claimed.id].get(name)
        if known is None:
            self.wrong(f"step: {claimed.id} goes on behind {name!r}, which is not stored")
        elif msgspec.json.decode(known[0]) != value:
            self.wrong(f"step: {name!r} of {claimed.id} gave {value}, and {known} is stored")
        elif known[1] < claimed.number:
            self.told["steps remembered"] += 1

    def awoke(self, process: Process, execution: Execution, name: str) -> None:
        """Nobody goes on behind a sleep before it is over."""
        claimed = execution.claimed
        known = self.stored[claimed.id].get(name)
        if known is None or not self.holds(execution):
            return
        until = to_micros(msgspec.json.decode(known[0], type=Sleep).sleep_until)
        if self.now < until - self.error_of(process):
            self.wrong(
                f"sleep: {claimed.id} goes on {(until - self.now) / 1e6:.3f} s before {name!r} is over"
            )
        self.told["sleeps"] += 1

    def _note(self, process: Process, notes: Any, answers: list[SettleAnswer], late: bool) -> None:
        for note, answer in zip(notes, answers, strict=True):
            if isinstance(note, StepNote) and answer is SettleAnswer.DONE:
                self._noted(note)
            elif answer is not SettleAnswer.DONE:
                self._survived(note.token)

    def _noted(self, note: StepNote) -> None:
        """A step's result is stored once, under the lease."""
        held = self.held.get((note.job_id, note.number))
        if held is None or held.token != note.token or self.open.get(note.job_id) != note.number:
            self.wrong(f"step: {note.name!r} of {note.job_id} is stored by {note.token}, and {held} holds it")
        elif self.expiry[held.token] <= self.now:
            self.wrong(f"step: {note.name!r} of {note.job_id} is stored under an expired lease")
        known = self.stored[note.job_id].setdefault(note.name, (note.result, note.number))
        if known[0] != note.result:
            self.wrong(f"step: {note.name!r} of {note.job_id} is {known}, and stored again as {note.result}")

    def _steps(self, process: Process, job_id: str, answer: Any, late: bool) -> None:
        self._compare_steps(job_id, answer)

    def _compare_steps(self, job_id: str, answer: Any) -> None:
        """They belong to the job until its next occurrence; a requeue keeps them, and a deleted job has none."""
        steps = {name: (step.result, step.number) for name, step in answer.items()}
        stored = {} if job_id in self.deleted else self.stored[job_id]
        if steps != stored:
            self.wrong(f"steps of {job_id}: the store has {steps}, and {stored} were stored")

    # -- settling --

    def _retried(self, transition: Transition, answer: SettleResult) -> None:
        job_id = transition.job_id
        if answer.run_at is None:
            return
        if transition.status in FAILURES and transition.detail is None and not self._has_ended(transition):
            due = answer.at + round(POLICY.delay(transition.attempts) * MICROS_PER_SECOND)
            if answer.run_at != due:
                self.wrong(f"{job_id} is retried at {answer.run_at}, not at {due}")
        self.not_before[job_id] = answer.run_at

    def _has_ended(self, transition: Transition) -> bool:
        """Whether this attempt was the last one of its run."""
        raise NotImplementedError

    # -- the end --

    def judge(self) -> None:
        for job_id in self.stored:
            if self.look(job_id) is not None:
                self._compare_steps(job_id, self.world.ask("steps", job_id))
        for child, (parent, number) in self.children.items():
            row = self.ledger.get((parent, number))
            wanted = row is not None and row.status is AttemptStatus.SUCCEEDED
            if (self.look(child) is not None) is not wanted:
                self.wrong(f"child {child} of {parent} exists: {not wanted}, and its attempt is {row}")

    def rows_of(self, job_id: str) -> list[AttemptRecord]:
        return list(reversed(self.world.ask("history", job_id, 10_000)))

    def judge_rows(self, job_id: str, number: int, timeout: float | None, max_attempts: int) -> int:
        """One row for each attempt, as it was settled; how many have failed in its latest run."""
        rows = self.rows_of(job_id)

        def wrong(what: str) -> None:
            shown = [(row.number, str(row.status), row.detail, row.worker_survived) for row in rows]
            self.wrong(f"history of {job_id}: {what}; {shown}")

        if [row.number for row in rows] != list(range(1, number + 1)):
            wrong(f"there were {number} attempts")
            return 0
        failures, run = 0, 0
        for row in rows:
            held = self.held.get((job_id, row.number))
            settled = self.ledger.get((job_id, row.number))
            if held is None or settled is None:
                failures, run = 0, 0  # an occurrence that an operator ended before it began
                if row.status is not AttemptStatus.CANCELLED:
                    wrong(f"attempt {row.number} is {row.status}, and nobody held it")
                continue
            if held.first_number != run:
                failures, run = 0, held.first_number
            if row.status is not settled.status or row.retry_count != failures:
                wrong(
                    f"attempt {row.number} was settled as {settled.status}, with {failures} failures before it"
                )
            failures += row.status in FAILURES
            if failures > max_attempts:
                wrong(f"{failures} failures of {max_attempts} in the run from {run}")
            if row.status is AttemptStatus.TIMED_OUT:
                began = [at for each, _, at in self.begins[job_id] if each == row.number]
                took = (row.finished_at - began[0]) / MICROS_PER_SECOND if began else 0.0
                if timeout is None or took < timeout - SLACK_SECONDS:
                    wrong(f"attempt {row.number} timed out after {took:.3f} s of {timeout}")
            if settled.reason is Reason.POISON:
                self._judge_poison(job_id, row, rows, run, wrong)
        return failures

    def _judge_poison(
        self, job_id: str, last: AttemptRecord, rows: list[AttemptRecord], run: int, wrong: Any
    ) -> None:
        """Only a loss while alone counts; a newly stored step, a requeue and a next occurrence reset the count."""
        since = max([run, *(n for _, n in self.stored_until[job_id, last.number].values())])
        alone = [
            row
            for row in rows
            if since <= row.number <= last.number and row.detail == LOST_ALONE and not row.worker_survived
        ]
        if len(alone) < self.world.max_losses:
            wrong(
                f"poison: condemned for {len(alone)} losses since attempt {since}, not {self.world.max_losses}"
            )

    def _settled(self, transition: Transition, answer: SettleResult) -> None:
        if transition.reason is Reason.POISON:
            attempt = (transition.job_id, transition.number)
            self.stored_until[attempt] = dict(self.stored[transition.job_id])
        super()._settled(transition, answer)
