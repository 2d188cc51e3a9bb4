"""Bugs that are planted in recurring jobs, workflows and durable steps: each breaks one rule that is watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from msgspec import Struct
from msgspec.structs import replace

from taskharbor import collecting, recurring
from taskharbor.drivers.base import Answer, StepNote
from taskharbor.drivers.memory import driver as driving
from taskharbor.drivers.memory import enqueue, operate, reads, settle
from taskharbor.drivers.memory import store as storing
from taskharbor.drivers.memory.store import Store
from taskharbor.job import Misfire, State, StepRecord
from taskharbor.schedule import parse
from taskharbor.worker import executor
from taskharbor.worker import recurring as rearming
from taskharbor.worker.steps import LeasedSteps, Steps
from taskharbor.workflow import failure
from tests.simulation.planted import Planted, _both, released_early
from tests.simulation.recurring_world import HecticWorld, RecurringWorld
from tests.simulation.workflow_world import StepsWorld, WorkflowWorld
from tests.simulation.world import World


class Bug(Struct, frozen=True):
    plant: Planted
    kind: type[World]
    rule: str  # the finding begins so


PLANTED_IN_STORIES: dict[str, Bug] = {}


def plant(what: str, kind: type[World], rule: str) -> Callable[[Planted], Planted]:
    def keep(planted: Planted) -> Planted:
        PLANTED_IN_STORIES[what] = Bug(planted, kind, rule)
        return planted

    return keep


# -- recurring jobs ------------------------------------------------------------------------------


def _armed(change: Callable[[Any, Any, Any], Any]) -> Any:
    """Whoever arms a worker's transition is followed by a change to what came out."""
    armed = recurring.armed

    def changed(transition: Any, job: Any, options: Any, version: int, **more: Any) -> Any:
        return change(armed(transition, job, options, version, **more), transition, options)

    return mock.patch.object(rearming, "armed", changed)


def _rearmed(change: Callable[[Any, Any, Any], None]) -> Any:
    """The store's re-arming, and a change to the job afterwards, which sees it as it was before."""
    rearm = settle.rearm

    def changed(store: Any, job: Any, occurrence: Any) -> None:
        before = {"steps": dict(job.steps), "attempts": job.attempts}
        rearm(store, job, occurrence)
        change(job, before, occurrence)

    return mock.patch.object(settle, "rearm", changed)


@plant("an occurrence that failed for good ends the schedule", RecurringWorld, "re-arming")
def failure_ends_it() -> Any:
    def bare(armed: Any, transition: Any, options: Any) -> Any:
        return transition if transition.to is State.DEAD else armed

    return _armed(bare)


@plant("the next run has the steps of the last one", RecurringWorld, "steps")
def steps_stay() -> Any:
    return _rearmed(lambda job, before, _: job.steps.update(before["steps"]))


@plant("the next run has the failures of the last one", RecurringWorld, "re-arming")
def failures_stay() -> Any:
    return _rearmed(lambda job, before, _: setattr(job, "attempts", before["attempts"]))


@plant("an interval is counted from the end of a run", RecurringWorld, "next due")
def drifts() -> Any:
    def late(recurrence: Any, run: Any, now: int) -> int:
        return parse(recurrence.schedule).next_micros(now)

    return mock.patch.object(recurring, "next_due", late)


@plant("a missed occurrence is not made up for", RecurringWorld, "next due")
def not_made_up() -> Any:
    due = recurring.next_due

    def skipping(recurrence: Any, run: Any, now: int) -> int:
        return due(replace(recurrence, misfire=Misfire.SKIP), run, now)

    return mock.patch.object(recurring, "next_due", skipping)


@plant("every missed occurrence is made up for", RecurringWorld, "next due")
def all_made_up() -> Any:
    def one_by_one(recurrence: Any, run: Any, now: int) -> int:
        return parse(recurrence.schedule).next_micros(run.due_at, run.due_at)

    return mock.patch.object(recurring, "next_due", one_by_one)


@plant("an occurrence that is too late is run all the same", HecticWorld, "misfire")
def late_ones_run() -> Any:
    return mock.patch.object(executor, "is_missed", lambda *_: False)


@plant("a run that has begun is dropped as missed", HecticWorld, "misfire")
def begun_ones_dropped() -> Any:
    return mock.patch.object(rearming, "has_begun", lambda *_: False)


@plant("a settle does not heed that the schedule was changed", RecurringWorld, "")
def version_unheeded() -> Any:
    settle_one = settle._settle

    def heedless(store: Any, transition: Any, now: int) -> Any:
        job = store.jobs.get(transition.job_id)
        if job is not None and transition.occurrence is not None:
            occurrence = replace(transition.occurrence, version=job.version)
            transition = replace(transition, occurrence=occurrence)
        return settle_one(store, transition, now)

    return mock.patch.object(settle, "_settle", heedless)


@plant("an extra run consumes an occurrence", RecurringWorld, "next due")
def extra_consumes() -> Any:
    of = recurring.Run.of.__func__  # type: ignore[attr-defined]

    def ordinary(cls: Any, *args: Any) -> Any:
        return replace(of(cls, *args), is_extra=False)

    return mock.patch.object(recurring.Run, "of", classmethod(ordinary))


@plant("what was asked for while it ran is forgotten", RecurringWorld, "run now")
def again_forgotten() -> Any:
    def once(armed: Any, transition: Any, options: Any) -> Any:
        asked = options.recurrence is not None and armed.occurrence is not None
        if asked and not options.recurrence.paused:
            return replace(armed, occurrence=replace(armed.occurrence, run_at=None))
        return armed

    return _armed(once)


@plant("the retry of a paused schedule is not parked", HecticWorld, "pause")
def retry_not_parked() -> Any:
    def delayed(armed: Any, transition: Any, options: Any) -> Any:
        return replace(armed, delay=transition.delay) if armed.to is State.READY else armed

    return _armed(delayed)


@plant("an occurrence that was to be cancelled is retried", HecticWorld, "")
def cancel_unheeded() -> Any:
    return mock.patch.object(settle, "turned_into_cancellation", lambda *_: False)


@plant("an operator's view of an earlier run is good enough", HecticWorld, "")
def stale_view() -> Any:
    return mock.patch.object(operate, "_has_moved_on", lambda *_: False)


@plant("a failed occurrence leaves no dead letter", RecurringWorld, "dead letter")
def no_dead_letter() -> Any:
    return mock.patch.object(settle, "insert_dead", lambda *_: None)


@plant("a cancelled occurrence leaves a dead letter", RecurringWorld, "dead letter")
def too_many_dead_letters() -> Any:
    insert = settle.insert_dead

    def twice(store: Any, new: Any, *more: Any) -> None:
        insert(store, new, *more)
        insert(store, replace(new, id=f"{new.id[:-1]}f"), *more)

    return mock.patch.object(settle, "insert_dead", twice)


@plant("a schedule that was deleted while it ran goes on", HecticWorld, "delete")
def deleted_goes_on() -> Any:
    changed = rearming.Recurring.settle_changed

    async def by_its_own(self: Any, execution: Any, bare: Any, settled: Any) -> Any:
        record = await self._get(execution.claimed.id)
        if record is None or record.options.recurrence is not None:
            return await changed(self, execution, bare, settled)
        transition = await self._armed(execution, bare, execution.options, record.version)
        [settled] = await self._settle([transition])
        return transition, settled

    return mock.patch.object(rearming.Recurring, "settle_changed", by_its_own)


# -- durable steps -------------------------------------------------------------------------------


@plant("a step is executed again by every attempt", StepsWorld, "step")
def steps_forgotten() -> Any:
    async def nothing(self: Any) -> dict[str, Any]:
        return {}

    return mock.patch.object(LeasedSteps, "read", nothing)


@plant("a step gives what was executed, whatever is stored", StepsWorld, "step")
def step_not_the_stored() -> Any:
    async def keep(self: Any, name: str, result: str) -> None:
        self._known[name] = StepRecord(result, self._execution.claimed.number)

    return mock.patch.object(Steps, "_keep", keep)


@plant("a lease that is over can store a step", StepsWorld, "step")
def stale_step() -> Any:
    note = settle._note

    def lenient(store: Any, one: Any, now: int) -> Answer:
        job = store.jobs.get(one.job_id)
        if isinstance(one, StepNote) and job is not None:
            job.steps.setdefault(one.name, StepRecord(one.result, one.number))
            return Answer.DONE
        return note(store, one, now)

    return mock.patch.object(settle, "_note", lenient)


@plant("a requeue forgets the steps", StepsWorld, "steps")
def requeue_forgets() -> Any:
    begin = storing.begin_new_run

    def forgetful(job: Any, *args: Any, **more: Any) -> None:
        job.steps.clear()
        begin(job, *args, **more)

    return mock.patch.object(operate, "begin_new_run", forgetful)


@plant("a sleep is over for whoever comes back", StepsWorld, "sleep")
def sleeps_short() -> Any:
    sleep = Steps._sleep

    async def short(self: Any, name: str, micros: int) -> None:
        if await self._recall(name) is None:
            await sleep(self, name, micros)

    return mock.patch.object(Steps, "_sleep", short)


@plant("losses from before a new step count", StepsWorld, "history")
def losses_stay() -> Any:
    past = collecting.past_of

    async def harsh(driver: Any, job: Any) -> Any:
        rows, _ = await past(driver, job)
        return rows, 0

    return mock.patch.object(collecting, "past_of", harsh)


# -- workflows -----------------------------------------------------------------------------------

plant("a finalizer is released by the first of its group", WorkflowWorld, "")(released_early)


@plant("the last two of a group that settle together release nobody", WorkflowWorld, "fan-in")
def nobody_released() -> Any:
    release = settle._release_dependants
    settle_all = settle.settle
    together: list[int] = []

    def batch(store: Any, transitions: Any, now: int) -> Any:
        together.append(len(transitions))
        return settle_all(store, transitions, now)

    def forgetful(store: Any, job: Any) -> tuple[str, ...]:
        if together and together[-1] > 1:
            for job_id in store.dependants.get(job.id, ()):
                store.jobs[job_id].unmet -= {job.id}
            return ()
        return release(store, job)

    return _both(
        mock.patch.object(driving.settle, "settle", batch),
        mock.patch.object(settle, "_release_dependants", forgetful),
    )


@plant("results come in the order in which members ended", WorkflowWorld, "results")
def results_out_of_order() -> Any:
    results = reads.results

    def by_ending(store: Any, job_id: str) -> Any:
        return sorted(results(store, job_id), key=lambda each: store.jobs[each.job_id].finished_at)

    return mock.patch.object(reads, "results", by_ending)


@plant("a workflow whose answer was lost is stored anew", WorkflowWorld, "process producer")
def stored_anew() -> Any:
    store_it = enqueue.enqueue_workflow

    def forgetful(store: Any, new: Any, jobs: Any, now: int) -> Any:
        store.workflows.pop(new.id, None)
        return store_it(store, new, jobs, now)

    return mock.patch.object(enqueue, "enqueue_workflow", forgetful)


@plant("a part of a workflow is stored", WorkflowWorld, "")
def stored_in_part() -> Any:
    store_it = enqueue.enqueue_workflow

    def partly(store: Any, new: Any, jobs: Any, now: int) -> Any:
        answer = store_it(store, new, jobs, now)
        if not answer.existed:
            store.delete(store.jobs[jobs[-1].id])
        return answer

    return mock.patch.object(enqueue, "enqueue_workflow", partly)


@plant("those that end with a member wait for ever", WorkflowWorld, "on_failure")
def not_cancelled() -> Any:
    return mock.patch.object(Store, "cancel_dependants", lambda *_: None)


@plant("a retried member does not restore those that its failure cancelled", WorkflowWorld, "on_failure")
def not_restored() -> Any:
    return mock.patch.object(Store, "restore_dependants", lambda *_: None)


@plant("a retried job does not wait for those before it", WorkflowWorld, "")
def does_not_wait() -> Any:
    return mock.patch.object(operate, "_change", _change_and_run)


def _change_and_run(store: Any, job: Any, change: Callable[[], None]) -> None:
    store.leave(job)
    change()
    store.enter(job, State.READY)


@plant("nobody is told of a member's death", WorkflowWorld, "failure task")
def no_failure_task() -> Any:
    async def untold(self: Any, transition: Any, job: Any, options: Any) -> Any:
        return transition

    return mock.patch.object(failure.FailureTasks, "added", untold)


@plant("every death is told of", WorkflowWorld, "failure task")
def told_too_often() -> Any:
    make = failure._job

    def each(template: Any, transition: Any, job: Any, workflow_id: str) -> Any:
        return replace(make(template, transition, job, workflow_id), id=f"{job.id[:-2]}{0xF0 + job.number % 16:x}")

    return mock.patch.object(failure, "_job", each)


@plant("to cancel a workflow leaves those that wait", WorkflowWorld, "cancel")
def waiting_not_cancelled() -> Any:
    cancel = operate._cancel

    def lenient(store: Any, job: Any, operation: Any, now: int) -> Any:
        if job.state is State.WAITING:
            return operate.Verdict.DONE
        return cancel(store, job, operation, now)

    return mock.patch.object(operate, "_cancel", lenient)


@plant("members of an unfinished workflow can be deleted", WorkflowWorld, "delete")
def members_deleted() -> Any:
    return mock.patch.object(operate, "_is_of_unfinished_workflow", lambda *_: False)


@plant("a workflow counts the dead among those that go on", WorkflowWorld, "workflow")
def dead_go_on() -> Any:
    record = reads.workflow_record

    def hopeful(store: Any, workflow: Any) -> Any:
        told = record(store, workflow)
        return replace(told, dead=0, active=told.active + told.dead)

    return mock.patch.object(reads, "workflow_record", hopeful)
