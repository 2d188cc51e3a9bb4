"""What must hold of workflows: who waits for whom, who takes what, and what an ending without success does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from taskharbor.drivers.base import (
    Cancel,
    Delete,
    OperationResult,
    OperationVerdict,
    Requeue,
    SettleResult,
    Transition,
    member_id,
)
from taskharbor.records import AttemptStatus, JobFilter, JobRecord, Reason, State
from taskharbor.workflow.handle import WorkflowState, state_of
from tests.simulation.observer import TERMINAL
from tests.simulation.story_observer import StoryObserver

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from tests.simulation.workflow_world import MemberSpec, WorkflowSpec, WorkflowWorld
    from tests.simulation.world import Process

WITHOUT_SUCCESS = (State.DEAD, State.CANCELLED)


class Stored(Struct):
    """A workflow that the store has accepted."""

    spec: Any  # WorkflowSpec
    cancelled: bool = False  # by an operator, as a whole
    deaths: set[str] = msgspec.field(default_factory=set)  # that its failure task is to be told of


class WorkflowObserver(StoryObserver):
    world: WorkflowWorld

    def __init__(self, world: WorkflowWorld) -> None:
        super().__init__(world)
        self.workflows: dict[str, Stored] = {}
        self.results: dict[str, Any] = {}  # of members that have succeeded
        self.resurrected: set[str] = set()  # retried although one that they wait for has failed
        self.members: dict[str, MemberSpec] = {
            member.id: member for spec in world.workflow_specs for member in spec.members
        }

    # -- being stored --

    def after(self, process: Process, verb: str, about: Any, answer: Any, late: bool) -> None:
        super().after(process, verb, about, answer, late)
        if verb in ("settle", "operate", "enqueue_workflow", "expire"):
            self._look_at_all()

    def _enqueue_workflow(self, process: Process, about: Any, answer: Any, late: bool) -> None:
        """All of it or nothing, and once, however often it is asked for."""
        new, jobs = about
        spec: WorkflowSpec = self.world.spec_of(new.id)
        if answer.existed is not (new.id in self.workflows):
            self.wrong(f"workflow: {new.id} existed: {answer.existed}, and {new.id in self.workflows}")
        self.workflows.setdefault(new.id, Stored(spec))
        if answer.existed:
            return
        for index, (job, member) in enumerate(zip(jobs, spec.members, strict=True)):
            record = self.look(job.id)
            if record is None or job.id != member_id(new.id, index) or job.id != member.id:
                self.wrong(f"workflow: {new.id} is stored without {member.label}")
            elif msgspec.json.decode(record.payload)["label"] != member.label:
                self.wrong(f"workflow: {job.id} is not {member.label}")

    # -- what members are given --

    def took(self, execution: Execution, taken: Any) -> None:
        """A step gets the result of the one before it, a finalizer its group's results in the group's order."""
        member = self.members.get(execution.claimed.id)
        if member is None:
            return
        if member.takes is None:
            expected = None
        else:
            expected = self._filled(member.takes)
            self.told["results taken"] += 1
        if taken != expected:
            self.wrong(f"results: {member.label} is given {taken}, not {expected}")

    def _filled(self, takes: Any) -> Any:
        return self.results.get(takes) if isinstance(takes, str) else [self._filled(each) for each in takes]

    # -- endings --

    def _has_ended(self, transition: Transition) -> bool:
        held = self.held[transition.job_id, transition.number]
        return transition.to is not State.READY or held.cancel_requested

    def _settled(self, transition: Transition, answer: SettleResult) -> None:
        super()._settled(transition, answer)
        job_id = transition.job_id
        member = self.members.get(job_id)
        if member is None:
            return
        for released in answer.released:
            self.told["released"] += 1
            if self.released[released] > 1:
                self.wrong(f"fan-in: {released} was made ready a second time")
        if transition.status is AttemptStatus.SUCCEEDED:
            if job_id in self.results:
                self.wrong(f"{member.label} has succeeded twice")
            self.results[job_id] = msgspec.json.decode(transition.result or "null")
            return
        if answer.state is State.DEAD:
            self._died(member, transition)

    def _died(self, member: MemberSpec, transition: Transition) -> None:
        """The task on failure is stored with the first death, and with that of a member that was retried."""
        self.told["deaths"] += 1
        first = self.held[member.id, transition.number].first_number
        workflow = self.workflows[member.workflow]
        workflow.deaths.add("first" if first == 1 else f"{member.id}/{first}")
        if workflow.spec.has_failure_task and len(self._mourning()) < self._deaths_mourned():
            self.wrong(f"failure task: {member.label} is dead, and there is none")

    def _mourning(self) -> list[JobRecord]:
        page = self.world.ask("list", JobFilter(task="mourn"), limit=1000, now=self.now)
        return list(page.jobs)

    def _deaths_mourned(self) -> int:
        return sum(len(each.deaths) for each in self.workflows.values() if each.spec.has_failure_task)

    # -- operators --

    def _operate(self, process: Process, about: Any, answers: list[OperationResult], late: bool) -> None:
        operation, ids = about
        for answer in answers:
            if answer.verdict not in (OperationVerdict.DONE, OperationVerdict.REQUESTED):
                continue
            self.note("operated", type(operation).__name__, answer.job_id, answer.verdict)
            self.told[type(operation).__name__] += 1
            match operation:
                case Cancel() if answer.verdict is OperationVerdict.REQUESTED:
                    self._holder(answer.job_id).cancel_requested = True
                case Requeue():
                    self._requeued(answer.job_id)
                case Delete() if answer.job_id in self.members:
                    self._deleted(self.members[answer.job_id])
        if isinstance(operation, Cancel):
            for workflow in self.workflows.values():
                if {member.id for member in workflow.spec.members} <= set(ids):
                    self._cancelled(workflow)

    def _requeued(self, job_id: str) -> None:
        self.requeued[job_id] += 1
        self.not_before[job_id] = self.now
        member = self.members.get(job_id)
        if member is not None and any(self._state(each) in WITHOUT_SUCCESS for each in member.depends_on):
            self.resurrected.add(job_id)

    def _deleted(self, member: MemberSpec) -> None:
        """Members of an unfinished workflow cannot be deleted."""
        self.deleted.add(member.id)
        others = [self._state(each.id) for each in self.workflows[member.workflow].spec.members]
        if any(state is not None and state not in TERMINAL for state in others):
            self.wrong(f"delete: {member.label} is deleted, and its workflow is unfinished: {others}")

    def _cancelled(self, workflow: Stored) -> None:
        """`cancel` ends all that has not begun."""
        left = [
            member.label
            for member in workflow.spec.members
            if self._state(member.id) in (State.WAITING, State.SCHEDULED, State.READY)
        ]
        if left:
            self.wrong(f"cancel: {workflow.spec.id} was cancelled, and {left} are to run yet")

    # -- at every moment --

    def _state(self, job_id: str) -> State | None:
        record = self.look(job_id)
        return None if record is None else record.state

    def _look_at_all(self) -> None:
        for workflow in self.workflows.values():
            ids = [member.id for member in workflow.spec.members]
            found = dict(zip(ids, self.world.ask("get", ids, now=self.now), strict=True))
            for member in workflow.spec.members:
                record = found[member.id]
                if record is not None:
                    self._judge_member(workflow, member, record, found)
            self._judge_state(workflow, found)

    def _judge_member(
        self, workflow: Stored, member: MemberSpec, record: JobRecord, found: dict[str, JobRecord | None]
    ) -> None:
        before = [each for each in map(found.get, member.depends_on) if each is not None]
        open_ones = [each for each in before if each.state is not State.SUCCEEDED]
        failed = [each for each in before if each.state in WITHOUT_SUCCESS]
        if record.state in TERMINAL:
            self.resurrected.discard(record.id)
        if (member.id in self.results) is not (record.state is State.SUCCEEDED):
            self.wrong(f"outcome: {member.label} is {record.state}, succeeded: {member.id in self.results}")
        if record.state is State.WAITING and not open_ones:
            self.wrong(f"fan-in: {member.label} waits for nobody")
        if record.state in (State.READY, State.SCHEDULED, State.RUNNING) and open_ones:
            self.wrong(f"fan-in: {member.label} is {record.state} before {[each.id for each in open_ones]}")
        ends = workflow.spec.on_failure == "cancel"
        if ends and record.state is State.WAITING and failed and record.id not in self.resurrected:
            self.wrong(f"on_failure: {member.label} waits, and {[each.id for each in failed]} have failed")
        if record.reason is Reason.DEPENDENCY and (
            not ends or (not failed and len(before) == len(member.depends_on))
        ):
            self.wrong(f"on_failure: {member.label} is cancelled for those before it, and none has failed")

    def _judge_state(self, workflow: Stored, found: dict[str, JobRecord | None]) -> None:
        """A workflow tells how many of its jobs stand where, and is stuck if that is so."""
        [record] = self.world.ask("get_workflows", [workflow.spec.id])
        if record is None:
            self.wrong(f"workflow: {workflow.spec.id} is gone")
            return
        states = [None if each is None else each.state for each in found.values()]
        counted = (record.succeeded, record.dead, record.cancelled, record.waiting)
        recount = tuple(states.count(each) for each in (State.SUCCEEDED, *WITHOUT_SUCCESS, State.WAITING))
        active = len([each for each in states if each is not None]) - sum(recount)
        if counted != recount or record.active != active or record.total != len(states):
            self.wrong(f"workflow: {record} and its jobs are {states}")
        state = state_of(record, workflow.spec.on_failure)
        if (state is WorkflowState.SUCCEEDED) is not all(each is State.SUCCEEDED for each in states):
            self.wrong(f"workflow: {workflow.spec.id} is {state}, and its jobs are {states}")
        is_stuck = State.DEAD in states and State.WAITING in states and not active
        if is_stuck and state is not WorkflowState.STUCK:
            self.wrong(f"stuck: {workflow.spec.id} is {state}, and its jobs are {states}")

    # -- the end --

    def all_waiting_are_stuck(self) -> bool:
        stopped = (*WITHOUT_SUCCESS, State.WAITING)
        return all(
            any(self._state(each) in stopped for each in member.depends_on)
            for member in self.members.values()
            if self._state(member.id) is State.WAITING
        )

    def judge(self) -> None:
        super().judge()
        self._look_at_all()
        if leases := self.world.ask("leases", now=self.now):
            self.wrong(f"leases are left: {leases}")
        for spec_id, workflow in self.workflows.items():
            for member in workflow.spec.members:
                record = self.look(member.id)
                if record is None:
                    if member.id not in self.deleted:
                        self.wrong(f"{member.label} was accepted and is gone")
                    continue
                failures = self.judge_rows(member.id, record.number, member.timeout, member.most_attempts)
                begun = self.held.get((member.id, record.number))
                if begun is not None and not self.requeued[member.id] and record.attempts != failures:
                    self.wrong(f"{member.label}: attempts is {record.attempts}, and {failures} have failed")
            [told] = self.world.ask("get_workflows", [spec_id])
            if told is not None and state_of(told, workflow.spec.on_failure) is WorkflowState.RUNNING:
                self.wrong(f"workflow: {spec_id} is running, and nothing goes on")
        mourning, deaths = len(self._mourning()), self._deaths_mourned()
        if mourning != deaths:
            self.wrong(f"failure task: there are {mourning}, and {deaths} deaths to be told of")
