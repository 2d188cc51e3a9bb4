"""Bugs that are planted in durable steps and in workflows."""

from __future__ import annotations

from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor import failure_tasks, rescue
from taskharbor.drivers.base import OperationVerdict, SettleAnswer, StepNote
from taskharbor.drivers.memory import enqueue, operate, reads, settle
from taskharbor.drivers.memory.store import Store
from taskharbor.records import State, StepRecord
from taskharbor.rules import operating
from taskharbor.worker.handlers.steps import LeasedSteps, Steps
from tests.simulation.planted import _both, released_early
from tests.simulation.planted_story import plant
from tests.simulation.workflow_world import StepsWorld, WorkflowWorld

# -- durable steps -------------------------------------------------------------------------------


@plant("a step is executed again by every attempt", StepsWorld, "step")
def steps_forgotten() -> Any:
    async def nothing(self: Any) -> dict[str, Any]:
        return {}

    return mock.patch.object(LeasedSteps, "read", nothing)


@plant("a step returns what it computed, even if the store holds another value", StepsWorld, "step")
def step_not_the_stored() -> Any:
    async def keep(self: Any, name: str, result: str) -> None:
        self._known[name] = StepRecord(result, self._execution.claimed.number)

    return mock.patch.object(Steps, "_keep", keep)


@plant("a lease that is over can store a step", StepsWorld, "step")
def stale_step() -> Any:
    note = settle._note

    def lenient(store: Any, one: Any, now: int) -> SettleAnswer:
        job = store.jobs.get(one.job_id)
        if isinstance(one, StepNote) and job is not None:
            job.steps.setdefault(one.name, StepRecord(one.result, one.number))
            return SettleAnswer.DONE
        return note(store, one, now)

    return mock.patch.object(settle, "_note", lenient)


@plant("a requeue forgets the steps", StepsWorld, "steps")
def requeue_forgets() -> Any:
    begin = Store.begin_new_run

    def forgetful(store: Any, job: Any, change: Any) -> None:
        job.steps.clear()
        begin(store, job, change)

    return mock.patch.object(Store, "begin_new_run", forgetful)


@plant("a sleep is over for the next attempt", StepsWorld, "sleep")
def sleeps_short() -> Any:
    sleep = Steps._sleep

    async def short(self: Any, name: str, micros: int) -> None:
        if await self._recall(name) is None:
            await sleep(self, name, micros)

    return mock.patch.object(Steps, "_sleep", short)


@plant("losses from before a new step count", StepsWorld, "history")
def losses_stay() -> Any:
    past = rescue.loss_history

    async def harsh(driver: Any, steps: Any, job: Any) -> Any:
        rows, _ = await past(driver, steps, job)
        return rows, 0

    return mock.patch.object(rescue, "loss_history", harsh)


# -- workflows -----------------------------------------------------------------------------------

plant("a finalizer is released by the first of its group", WorkflowWorld, "")(released_early)


@plant("the last two of a group that settle together release no dependant", WorkflowWorld, "fan-in")
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
        mock.patch.object(settle, "settle", batch),
        mock.patch.object(settle, "_release_dependants", forgetful),
    )


@plant("results come in the order in which members ended", WorkflowWorld, "results")
def results_out_of_order() -> Any:
    results = reads.results

    def by_ending(store: Any, ids: Any, bytes_limit: int | None) -> Any:
        answers = results(store, ids, bytes_limit)
        return [sorted(each, key=lambda one: store.jobs[one.job_id].at.finished_at) for each in answers]

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


@plant("dependants that should end with a member wait without end", WorkflowWorld, "on_failure")
def not_cancelled() -> Any:
    return mock.patch.object(Store, "cancel_dependants", return_value=None)


@plant(
    "a retried member does not restore the dependants that its failure cancelled", WorkflowWorld, "on_failure"
)
def not_restored() -> Any:
    return mock.patch.object(Store, "restore_dependants", return_value=None)


@plant("a retried job does not wait for the jobs that it depends on", WorkflowWorld, "")
def does_not_wait() -> Any:
    new_run = operating.new_run

    def ready(*args: Any, **more: Any) -> Any:
        return new_run(*args, **{**more, "waits": False})

    return mock.patch.object(operating, "new_run", ready)


@plant("no failure task is added when a member dies", WorkflowWorld, "failure task")
def no_failure_task() -> Any:
    async def untold(self: Any, transition: Any, job: Any, options: Any, declared: Any = None) -> Any:
        return transition

    return mock.patch.object(failure_tasks.FailureTasks, "added", untold)


@plant("every death of a member adds another failure task", WorkflowWorld, "failure task")
def told_too_often() -> Any:
    make = failure_tasks._job

    def each(template: Any, transition: Any, job: Any, options: Any) -> Any:
        return replace(
            make(template, transition, job, options), id=f"{job.id[:-2]}{0xF0 + job.number % 16:x}"
        )

    return mock.patch.object(failure_tasks, "_job", each)


@plant("cancelling a workflow leaves its waiting jobs", WorkflowWorld, "cancel")
def waiting_not_cancelled() -> Any:
    cancel = operating._cancelled

    def lenient(operation: Any, job: Any, at: Any, now: int) -> Any:
        return OperationVerdict.DONE if at.state is State.WAITING else cancel(operation, job, at, now)

    return mock.patch.object(operating, "_cancelled", lenient)


@plant("members of an unfinished workflow can be deleted", WorkflowWorld, "delete")
def members_deleted() -> Any:
    return mock.patch.object(operate, "_is_of_unfinished_workflow", return_value=False)


@plant("a workflow counts dead members among those that still run", WorkflowWorld, "workflow")
def dead_go_on() -> Any:
    record = reads.workflow_record

    def hopeful(store: Any, workflow: Any) -> Any:
        told = record(store, workflow)
        return replace(told, dead=0, active=told.active + told.dead)

    return mock.patch.object(reads, "workflow_record", hopeful)
