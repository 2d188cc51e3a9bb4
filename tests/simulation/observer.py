"""An independent account of what happened, and the rules it is judged by.

It sees every verb at the moment it takes effect, and everything that handlers do. It keeps its own idea of who holds
which attempt and until when, and shares no code with the store.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import (
    Cancel,
    Claim,
    ClaimRequest,
    Delete,
    Discard,
    Enqueued,
    Heartbeat,
    OperationVerdict,
    Requeue,
    RunNow,
    SettleAnswer,
    SettleResult,
    Transition,
    Update,
)
from taskharbor.errors import StoreError
from taskharbor.records import AttemptRecord, AttemptStatus, Reason, State
from taskharbor.rules.settling import REFUSALS
from tests.simulation.program import POLICY, RETRY_AFTER_SECONDS, Spec

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from tests.simulation.world import Process, World

TERMINAL = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
FAILURES = (AttemptStatus.FAILED, AttemptStatus.TIMED_OUT)
CAUSED = (*FAILURES, AttemptStatus.LOST)
FINGERPRINT = re.compile("[0-9a-f]{16}")
FORGIVEN_TROUBLES = 2  # lost calls that may not cost anybody a lease
SLACK_SECONDS = 0.2
HEED_MICROS = (
    20_000  # from an answer of the store until a worker has looked at it, if it does not stand still
)

Attempt = tuple[str, int]  # (job, number)
HeldBack = tuple[str, str]  # a task or a tag, and its name


class Held(Struct):
    """Who holds an attempt: a worker by its claim, then perhaps a collector."""

    token: str
    claimed_as: str
    process: str
    claimed_at: int
    first_number: int
    once: bool
    late: bool  # the claim took effect after its caller had given up
    cancel_requested: bool = False


class Observer:
    def __init__(self, world: World) -> None:
        self.world = world
        self.trace: list[Any] = []
        self.faults_found: list[str] = []
        self.specs: dict[str, Spec] = {spec.id: spec for spec in world.specs}
        self.accepted_ids: dict[str, Spec] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.deleted: set[str] = set()
        self.stored_again: set[str] = set()  # deleted, and enqueued again with the same id
        self.expiry: dict[str, int] = {}  # by the token that holds it
        self.leased_at: dict[str, int] = {}  # by token: when its present lease began
        self.held: dict[Attempt, Held] = {}  # every attempt, settled or not
        self.open: dict[str, int] = {}  # job → the number that is claimed and not settled
        self.ledger: dict[Attempt, Transition] = {}
        self.begins: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)  # (number, run, when)
        self.running: dict[Attempt, str] = {}
        self.children: dict[str, Attempt] = {}
        self.survived: set[Attempt] = set()
        self.not_before: dict[str, int] = {}
        self.touched: set[str] = set()  # by an operator: its times and limits may be others
        self.may_be_cancelled: set[str] = set()
        self.released: Counter[str] = Counter()
        self.requeued: Counter[str] = Counter()
        self.processes: dict[str, Process] = {}
        self.in_force: dict[HeldBack, int] = {}  # holds, and since when
        self.aside: dict[str, HeldBack] = {}  # which jobs stand aside for a hold
        self.heard: dict[str, tuple[int, int]] = {}  # by process: what it knows of the store, and since when

    # -- telling --

    @property
    def now(self) -> int:
        return self.world.universe.now

    def note(self, *what: Any) -> None:
        self.trace.append((self.now, *what))

    def wrong(self, what: str) -> None:
        self.note("wrong", what)
        self.faults_found.append(what)

    # -- what handlers do --

    def began(self, process: Process, execution: Execution) -> None:
        claimed = execution.claimed
        self.note("begin", process.name, claimed.id, claimed.number)
        begins = self.begins[claimed.id]
        spec = self.specs[claimed.id]
        if spec.is_once and any(run == claimed.first_number for _, run, _ in begins):
            self.wrong(f"at_most_once: {claimed.id} begins a second time in run {claimed.first_number}")
        if any(number == claimed.number for number, _, _ in begins):
            self.wrong(f"{claimed.id}: attempt {claimed.number} begins twice")
        self._judge_hold(process, spec, self.held[claimed.id, claimed.number])
        if self.now < self.not_before.get(claimed.id, 0):
            self.wrong(f"{claimed.id} begins early, attempt {claimed.number}")
        begins.append((claimed.number, claimed.first_number, self.now))
        self.running[claimed.id, claimed.number] = process.name

    def _judge_hold(self, process: Process, spec: Spec, held: Held) -> None:
        """A worker that has heard of a hold begins nothing that the hold keeps back."""
        knows, since = self.heard[process.name]
        stood_still = any(what in ("freeze", "thaw") and at >= since for at, what, _ in process.troubles)
        if stood_still or self.now < since + HEED_MICROS:
            knows = held.claimed_at  # it may not have looked at a later answer yet
        for by in (("task", spec.task), *(("tag", tag) for tag in spec.tags)):
            if self.in_force.get(by, self.now) <= knows:
                self.wrong(f"hold: {spec.id} begins in {process.name}, which knows of the hold of its {by}")

    def ended(self, execution: Execution) -> None:
        claimed = execution.claimed
        self.note("end", claimed.id, claimed.number)
        self.running.pop((claimed.id, claimed.number), None)

    def child_asked(self, execution: Execution, child: str) -> None:
        self.children[child] = (execution.claimed.id, execution.claimed.number)

    def child_ran(self, parent: str) -> None:
        self.note("child", parent)

    def process_ended(self, process: Process, error: BaseException | None) -> None:
        self.note("ended", process.name, repr(error))
        if error is not None and not (isinstance(error, StoreError) and process.worker is not None):
            self.wrong(f"process {process.name} failed: {error!r}")
        for context in process.loop.errors:
            self.wrong(f"process {process.name}: {context}")
        if process.stopped_at is not None and error is None:
            took = (self.now - process.stopped_at) / MICROS_PER_SECOND
            frozen = sum(seconds for _, what, seconds in process.troubles if what in ("freeze", "slow"))
            most = self.world.grace_seconds + 2 * self.world.lease_seconds + 8 + 2 * frozen
            if took > most:
                self.wrong(f"process {process.name} took {took:.1f} s to stop; at most {most:.1f} s")
            if not process.ends_now and not any(at >= process.stopped_at for at, _, _ in process.troubles):
                left = [held for held in map(self._holder, list(self.open)) if held.process == process.name]
                left = [held for held in left if held.token == held.claimed_as and not held.late]
                if any(self.expiry[held.token] > self.now for held in left) and not self._was_in_trouble(
                    process, min(held.claimed_at for held in left)
                ):
                    self.wrong(f"process {process.name} stopped and left jobs under a lease")

    def _was_in_trouble(self, process: Process, since: int) -> bool:
        return bool(self._troubles_since(process, since))

    def _troubles_since(self, process: Process, since: int) -> list[tuple[int, str, float]]:
        """Also those that began earlier and still lasted: a slow settle holds up the jobs that end after it."""
        return [each for each in process.troubles if each[0] + each[2] * MICROS_PER_SECOND >= since]

    def _holder(self, job_id: str) -> Held:
        return self.held[job_id, self.open[job_id]]

    # -- what the store does --

    def before(self, verb: str, about: Any) -> None:
        """Which jobs an operation is about to change, and where they stand."""
        if verb == "operate":
            jobs = self.world.store._store.jobs
            self._states = {
                job_id: jobs[job_id].standing_at(self.now).state for job_id in about[1] if job_id in jobs
            }

    def after(self, process: Process, verb: str, about: Any, answer: Any, late: bool) -> None:
        self.processes[process.name] = process
        self.note(verb, process.name, _digest(answer))
        handle = getattr(self, f"_{verb}", None)
        if handle is not None:
            handle(process, about, answer, late)

    def answered(self, process: Process, verb: str, about: Any, took_effect_at: int) -> None:
        """A worker learns of holds by its claims and heartbeats, whichever of them is the latest in the store."""
        is_heartbeat = verb == "extend" and not any(each.at_most_once for each in about)
        knows, _ = self.heard.get(process.name, (0, 0))
        if (verb == "claim" or is_heartbeat) and took_effect_at > knows:
            self.heard[process.name] = (took_effect_at, self.now)

    def _hold(self, process: Process, held: Any, is_new: bool, late: bool) -> None:
        if is_new:
            self.in_force[str(held[0]), held[1]] = self.now

    def _release(self, process: Process, held: Any, was_held: bool, late: bool) -> None:
        if was_held:
            del self.in_force[str(held[0]), held[1]]

    def accepted(self, spec: Spec, answer: Enqueued) -> None:
        self.accepted_ids[answer.id] = self.specs[answer.id]
        if spec.key is not None:
            first = self.keys.setdefault((spec.queue, spec.key), answer.id)
            if first != answer.id and first not in self.deleted:
                self.wrong(f"two jobs for the key {spec.key}: {first} and {answer.id}")

    def _enqueue(self, process: Process, jobs: Any, answers: list[Enqueued], late: bool) -> None:
        for job, answer in zip(jobs, answers, strict=True):
            if not answer.existed:
                self.not_before[answer.id] = self.now + (job.delay or 0)
                if answer.id in self.deleted:  # the repeat of an enqueue whose answer was lost
                    self.deleted.discard(answer.id)
                    self.stored_again.add(answer.id)
                    self._forget(answer.id)
            if job.expires_at is not None:
                self.may_be_cancelled.add(job.id)

    def _forget(self, job_id: str) -> None:
        """Forget a deleted job: if its id is enqueued again, its numbers begin anew."""
        self.begins.pop(job_id, None)
        self.released.pop(job_id, None)
        self.requeued.pop(job_id, None)
        for known in (self.held, self.ledger):
            for attempt in [each for each in known if each[0] == job_id]:
                del known[attempt]
        self.survived = {each for each in self.survived if each[0] != job_id}
        self.children = {child: (p, n) for child, (p, n) in self.children.items() if p != job_id}

    def _claim(self, process: Process, request: ClaimRequest, claim: Claim, late: bool) -> None:
        if not claim.jobs:
            return
        if not any(self._holder(job_id).token == request.token for job_id in self.open):
            self.expiry[request.token], self.leased_at[request.token] = claim.expires_at, self.now
        elif claim.expires_at != self.expiry[request.token]:
            self.wrong(f"a repeated claim of {request.token} has another expiry")
        for job in claim.jobs:
            attempt = (job.id, job.number)
            held = self.held.get(attempt)
            if held is not None and held.token == request.token:
                continue  # the same claim, repeated
            if job.id in self.open:
                self.wrong(f"{job.id} is claimed although attempt {self.open[job.id]} is held")
            if held is not None:
                self.wrong(f"{attempt} is claimed twice")
            if self.aside.pop(job.id, None) in self.in_force:
                self.wrong(f"hold: {job.id} is claimed although it stands aside for a hold")
            if self.now < self.not_before.get(job.id, 0):
                self.wrong(f"{job.id} is claimed early")
            spec = self.specs.get(job.id)
            if spec is not None and any(not self._has_succeeded(each) for each in spec.depends_on):
                self.wrong(f"{job.id} is claimed before those it depends on have succeeded")
            self.open[job.id] = job.number
            once = spec is not None and spec.is_once
            self.held[attempt] = Held(
                request.token, request.token, process.name, self.now, job.first_number, once, late
            )

    def _has_succeeded(self, job_id: str) -> bool:
        return job_id in self.deleted | self.stored_again or any(
            job == job_id and row.status is AttemptStatus.SUCCEEDED for (job, _), row in self.ledger.items()
        )

    def _extend(self, process: Process, extensions: Any, heartbeat: Heartbeat, late: bool) -> None:
        for extension, extended in zip(extensions, heartbeat.leases, strict=True):
            if extended.answer is not SettleAnswer.DONE:
                self._survived(extension.token)
                continue
            if self.expiry[extension.token] <= self.now:
                self.wrong(f"the expired lease {extension.token} was extended")
            self.expiry[extension.token] = extended.expires_at

    def _take_expired(self, process: Process, about: Any, lease: Any, late: bool) -> None:
        if lease is None:
            return
        self.expiry.setdefault(lease.token, lease.expires_at)
        for job in lease.jobs:
            held = self.held[job.id, job.number]
            if held.token != lease.token and self.expiry[held.token] > self.now:
                self.wrong(f"the lease {held.token} was collected before it expired")
            held.token = lease.token

    def _survived(self, token: str) -> None:
        """A worker was refused, so it is alive: what it lost under a lease that is over counts for no job."""
        for attempt, held in self.held.items():
            settled = self.ledger.get(attempt)
            is_open = held.claimed_as == token and (settled is None or settled.token != token)
            if is_open and (held.token != token or self.expiry[token] <= self.now):
                self.survived.add(attempt)

    def _settle(self, process: Process, transitions: Any, answers: list[SettleResult], late: bool) -> None:
        for transition, answer in zip(transitions, answers, strict=True):
            if answer.answer is SettleAnswer.DONE and answer.recorded is None:
                self._settled(transition, answer)
            elif answer.answer in REFUSALS and transition.worker is None:
                self._survived(transition.token)

    def _settled(self, transition: Transition, answer: SettleResult) -> None:
        attempt = (transition.job_id, transition.number)
        job_id = transition.job_id
        if attempt in self.ledger:
            self.wrong(f"{attempt} is settled twice: {self.ledger[attempt].status}, {transition.status}")
            return
        self.ledger[attempt] = transition
        held = self.held[attempt]
        if held.token != transition.token or self.open.get(job_id) != transition.number:
            self.wrong(f"{attempt} is settled by {transition.token}, and {held.token} holds it")
        elif self.expiry[held.token] <= self.now:
            self.wrong(f"{attempt} is settled under an expired lease")
        self.open.pop(job_id, None)
        if transition.status is AttemptStatus.LOST:
            self._lost(attempt, held)
        if held.cancel_requested and not self._is_cancelled(transition, answer):
            self.wrong(f"{attempt} was to be cancelled and is {answer.state}")
        for released in answer.released:
            self.released[released] += 1
            if self.released[released] > 1 + self.requeued[released]:
                self.wrong(f"{released} was released twice")
        self._retried(transition, answer)
        kind, _, label = (transition.aside or "").partition(":")
        if kind == "hold":
            of, _, name = label.partition(":")
            self.aside[job_id] = (of, name)

    def _is_cancelled(self, transition: Transition, answer: SettleResult) -> bool:
        """Whether a request to cancel has had its way, or a success was first."""
        return answer.state in (State.SUCCEEDED, State.CANCELLED)

    def _retried(self, transition: Transition, answer: SettleResult) -> None:
        spec = self.specs.get(transition.job_id)
        if spec is None or transition.status not in FAILURES or answer.state in TERMINAL:
            return
        asked = spec.action(transition.attempts - 1) == "retry_after" and not spec.is_once
        if transition.status is AttemptStatus.TIMED_OUT:
            asked = False
        seconds = RETRY_AFTER_SECONDS if asked else POLICY.delay(transition.attempts)
        due = answer.at + round(seconds * MICROS_PER_SECOND)
        if answer.run_at != due:
            self.wrong(f"{transition.job_id} is retried at {answer.run_at}, not at {due}")
        self.not_before[transition.job_id] = due

    def _lost(self, attempt: Attempt, held: Held) -> None:
        """A worker that lives and can reach the store does not lose a job for a call or two."""
        # A claim that is repeated after its lease was collected begins another lease under the same token.
        is_its_lease = self.leased_at[held.claimed_as] <= held.claimed_at
        if is_its_lease and self.expiry[held.claimed_as] > self.now:
            self.wrong(f"{attempt} is lost while the lease of its worker is valid")
        process = self.processes[held.process]
        if not process.alive or held.late:
            return
        troubles = self._troubles_since(process, held.claimed_at)
        long = any(
            what in ("freeze", "thaw", "late") or seconds > self.world.lease_seconds / 8
            for _, what, seconds in troubles
        )
        if len(troubles) <= FORGIVEN_TROUBLES and not long:
            self.wrong(f"{attempt} is lost by {held.process}, which is alive and had {troubles}")

    def _operate(self, process: Process, about: Any, answers: Any, late: bool) -> None:
        operation, _ = about
        for answer in answers:
            job_id = answer.job_id
            if answer.verdict not in (OperationVerdict.DONE, OperationVerdict.REQUESTED):
                continue
            self.note("operated", type(operation).__name__, job_id, answer.verdict)
            self.aside.pop(job_id, None)  # back in its ordinary place
            self._heed(operation, job_id, answer.verdict)

    def _heed(self, operation: Any, job_id: str, verdict: OperationVerdict) -> None:
        match operation:
            case Cancel():
                self.may_be_cancelled.add(job_id)
                if verdict is OperationVerdict.REQUESTED:
                    self._holder(job_id).cancel_requested = True
            case Discard():
                self.may_be_cancelled.add(job_id)
            case Delete():
                self.deleted.add(job_id)
                spec = self.specs[job_id]
                if spec.key is not None and self.keys.get((spec.queue, spec.key)) == job_id:
                    del self.keys[spec.queue, spec.key]
            case RunNow():
                self.not_before[job_id] = self.now
            case Requeue():
                self.not_before[job_id] = self.now
                self.requeued[job_id] += 1
                self.touched.add(job_id)
            case Update():
                self.touched.add(job_id)
                if isinstance(operation.run_at, int):
                    self.not_before[job_id] = operation.run_at

    # -- the end --

    def all_waiting_are_stuck(self) -> bool:
        """Whether each job that still waits does so for one that will never succeed."""
        jobs = self.world.store._store.jobs
        return all(
            any(jobs[each].state in (State.DEAD, State.CANCELLED, State.WAITING) for each in job.unmet)
            for job in jobs.values()
            if job.state is State.WAITING
        )

    def judge(self) -> None:
        store = self.world.store._store
        if store.leases:
            self.wrong(f"leases are left: {sorted(store.leases)}")
        for job_id in self.accepted_ids:
            if job_id not in store.jobs and job_id not in self.deleted:
                self.wrong(f"{job_id} was accepted and is gone")
        for child, (parent, number) in self.children.items():
            row = self.ledger.get((parent, number))
            wanted = row is not None and row.status is AttemptStatus.SUCCEEDED
            if (child in store.jobs) is not wanted:
                self.wrong(f"child {child} of {parent}: {child in store.jobs}, and its attempt {row}")
        for job in store.jobs.values():
            rows = [attempt.record for attempt in job.history.values()]
            if job.id in self.specs:
                self._judge(self.specs[job.id], job, rows)
        self._judge_counts()

    def _judge_counts(self) -> None:
        counts: dict[State, int] = {}
        try:
            self.world.store.counts().send(None)
        except StopIteration as stop:
            counts = {state: number for state, number in stop.value.items() if number}
        recount = Counter(job.standing_at(self.now).state for job in self.world.store._store.jobs.values())
        if counts != dict(recount):
            self.wrong(f"counts() says {counts}, and there are {dict(recount)}")

    def _judge(self, spec: Spec, job: Any, rows: list[AttemptRecord]) -> None:
        def wrong(what: str) -> None:
            shown = [(row.number, str(row.status), row.detail, row.worker_survived) for row in rows]
            self.wrong(f"{job.id} {spec.task} {spec.script}: {what}; {job.state} {job.at.reason} {shown}")

        if [row.number for row in rows] != list(range(1, job.at.number + 1)):
            wrong("numbers are missing")
        failures, run = 0, 1
        for index, row in enumerate(rows):
            first = self.held[job.id, row.number].first_number
            if first != run:
                run, failures = first, 0
            self._judge_row(spec, row, failures, wrong)
            counted = row.status in FAILURES and row.detail is None
            failures += counted
            goes_on = index + 1 < len(rows) and self.held[job.id, rows[index + 1].number].first_number == run
            if counted and goes_on and (spec.is_once or failures >= spec.max_attempts):
                wrong(f"goes on after failure {failures} of {spec.max_attempts}")
            if row.status is AttemptStatus.SUCCEEDED and index + 1 < len(rows):
                wrong("goes on after a success")
            if (
                (job.id, row.number) in self.survived
                and row.status is AttemptStatus.LOST
                and not row.worker_survived
            ):
                wrong(f"the worker survived the loss of attempt {row.number}, and its row does not say so")
        if job.at.first_number > job.at.number:  # requeued, and ended before it was claimed again
            failures = 0
        if job.at.attempts != failures:
            wrong(f"attempts is {job.at.attempts}, and {failures} have failed")
        self._judge_ending(spec, job, rows, failures, wrong)

    def _judge_row(self, spec: Spec, row: AttemptRecord, failures: int, wrong: Any) -> None:
        action = spec.action(failures)
        begun = [when for number, _, when in self.begins[spec.id] if number == row.number]
        if row.status in CAUSED and FINGERPRINT.fullmatch(row.fingerprint or "") is None:
            wrong(f"fingerprint: attempt {row.number} is {row.status}, and its cause is {row.fingerprint!r}")
        if row.retry_count != failures:
            wrong(f"attempt {row.number} says {row.retry_count} failures before it, not {failures}")
        match row.status:
            case AttemptStatus.SUCCEEDED if not begun or action not in ("ok", "child", "deaf", "progress"):
                wrong(f"attempt {row.number} succeeded, by {action}")
            case AttemptStatus.FAILED if row.detail is None and (
                not begun or action not in ("fail", "unrecoverable", "retry_after")
            ):
                wrong(f"attempt {row.number} failed, by {action}")
            case AttemptStatus.TIMED_OUT:
                took = (row.finished_at - begun[0]) / MICROS_PER_SECOND if begun else 0.0
                if spec.timeout is None or took < spec.timeout - SLACK_SECONDS:
                    wrong(f"attempt {row.number} timed out after {took:.3f} s of {spec.timeout}")

    def _judge_ending(
        self, spec: Spec, job: Any, rows: list[AttemptRecord], failures: int, wrong: Any
    ) -> None:
        last = rows[-1] if rows else None
        match job.state, job.at.reason:
            case State.SUCCEEDED, _ if last is None or last.status is not AttemptStatus.SUCCEEDED:
                wrong("succeeded without a success")
            case State.DEAD, Reason.EXHAUSTED if failures != spec.max_attempts or spec.is_once:
                wrong(f"exhausted after {failures} of {spec.max_attempts}")
            case State.DEAD, Reason.UNRECOVERABLE if spec.action(failures - 1) != "unrecoverable":
                wrong("unrecoverable")
            case State.DEAD, Reason.LOST | Reason.INTERRUPTED | Reason.NOT_RETRYABLE if not spec.is_once:
                wrong("only at_most_once jobs end so")
            case State.DEAD, Reason.POISON:
                alone = [row for row in rows if row.detail == "alone" and not row.worker_survived]
                if not spec.is_poison and self.world.kills < len(alone) and self._nothing_stood_still():
                    wrong("a neighbour was condemned")
                if len(alone) > self.world.max_losses + self.requeued[job.id] * self.world.max_losses:
                    wrong(f"condemned after {len(alone)} losses, not {self.world.max_losses}")
                if not alone:
                    wrong("condemned without a loss while alone")
            case State.DEAD, Reason.UNKNOWN_TASK if spec.task != "stranger":
                wrong("its task is known")
            case State.DEAD, Reason.INVALID_PAYLOAD if spec.script != ("unfit",):
                wrong("its payload fits")
            case State.CANCELLED, _ if job.id not in self.may_be_cancelled:
                wrong("cancelled, and nobody asked for that")
        if spec.is_poison and not spec.is_once and job.state is State.SUCCEEDED:
            wrong("poison cannot succeed")

    def _nothing_stood_still(self) -> bool:
        return not any(
            what in ("freeze", "late") or seconds > self.world.lease_seconds / 8
            for process in self.processes.values()
            for _, what, seconds in process.troubles
        )


def _digest(answer: Any) -> Any:
    """Enough of an answer to tell one story from another."""
    if isinstance(answer, Claim):
        return [(job.id, job.number) for job in answer.jobs]
    if isinstance(answer, list):
        return [
            (str(each.answer), str(each.state), each.run_at)
            if isinstance(each, SettleResult)
            else str(each)[:60]
            for each in answer[:3]
        ]
    return type(answer).__name__
