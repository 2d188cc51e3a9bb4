"""Store a workflow's graph as jobs: one call, all or nothing."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import uuid_utils

from taskharbor.client.options import job_maker, with_expiries
from taskharbor.client.transaction import block_of
from taskharbor.drivers.base import Enqueued
from taskharbor.drivers.capabilities import Workflows
from taskharbor.errors import ConfigurationError
from taskharbor.failure_tasks import failure_task_of
from taskharbor.records import NewJob, NewWorkflow, State, Takes, WorkflowRecord
from taskharbor.rules.meta import with_inherited
from taskharbor.workflow.graph import MEMBERS_MAX, Graph, Part, graph_of
from taskharbor.workflow.handle import About, Workflow
from taskharbor.workflow.parts import WorkflowOptions

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.task import Signature

NODE_BITS = 48  # the last group of a UUID's digits
NODE_MAX = (1 << NODE_BITS) - 1
INDEX_BITS = 20  # at the end of a workflow's id, left for its jobs
assert MEMBERS_MAX < 1 << INDEX_BITS, "every job of a workflow has an id after its own"


async def store_workflow(harbor: Harbor, part: Part, options: WorkflowOptions) -> Workflow:
    """Store the workflow after checking every part of it."""
    graph = graph_of(part)
    _refuse_strangers(harbor, graph, options)
    workflow_id = options.id or new_workflow_id()
    jobs = harbor.sealing.sealed(await with_expiries(jobs_of(graph, workflow_id, options), harbor.driver))
    failure_task = options.failure_task and failure_task_of(options.failure_task, options.correlation_id)
    about = About(graph.shape, options.on_failure, failure_task)
    new = NewWorkflow(workflow_id, about.encode(), options.idempotency_key)
    block = block_of(harbor)
    if block is not None:
        block.refuse_when_over()
    workflows = Workflows.of(harbor.driver)
    if harbor.tracing is None:
        answer = await workflows.enqueue_workflow(new, jobs)
    else:
        _, answer = await harbor.tracing.send(jobs, partial(workflows.enqueue_workflow, new))
    if answer.existed:
        [known] = await workflows.get_workflows([answer.id])
        if known is not None:
            return Workflow._stored(known, harbor, existed=True)
    elif block is None and harbor.events.wanted("enqueued"):
        harbor._report_enqueued(jobs, [_answer(job, answer.enqueued_at) for job in jobs])
    waiting = sum(bool(job.depends_on) for job in jobs)
    record = WorkflowRecord(
        answer.id, new.about, answer.enqueued_at, len(jobs), new.idempotency_key,
        waiting=waiting, active=len(jobs) - waiting,
    )  # fmt: skip
    return Workflow._stored(record, harbor, existed=answer.existed)


def _answer(job: NewJob, now: int) -> Enqueued:
    return Enqueued(job.id, False, State.WAITING if job.depends_on else State.READY, now, now)


def new_workflow_id() -> str:
    """Make a UUIDv7 that ends with zeros: the ids of its jobs count on from there, and collide with no other's."""
    return str(uuid.UUID(int=uuid_utils.uuid7().int >> INDEX_BITS << INDEX_BITS))


def _refuse_strangers(harbor: Harbor, graph: Graph, options: WorkflowOptions) -> None:
    tasks = {id(member.signature.task): member.signature.task for member in graph.members}
    if options.failure_task is not None:
        tasks[id(options.failure_task.task)] = options.failure_task.task
    for task in tasks.values():
        if task.harbor is not harbor:
            raise ConfigurationError(
                f"task {task.name!r} belongs to another harbor; all the tasks of a workflow are declared on one"
            )
        if task.name not in harbor.tasks:
            raise ConfigurationError(
                f"task {task.name!r} is not known to its harbor; declare it with @harbor.task"
            )


# -- jobs --------------------------------------------------------------------------------------------


def jobs_of(graph: Graph, workflow_id: str, options: WorkflowOptions) -> list[NewJob]:
    """Build the jobs to store, with validated arguments; options that members share are prepared once."""
    ids = _ids_after(workflow_id, len(graph.members))
    makers: dict[tuple[int, int, str | None, str], Any] = {}
    jobs: list[NewJob] = []
    ends = options.on_failure == "cancel"
    for index, (signature, after, takes) in enumerate(
        (member.signature, member.after, member.takes) for member in graph.members
    ):
        # Signatures of one task, or of one `using`, share the very same options.
        shared = (id(signature.task), id(signature.options), *_key(takes))
        make = makers.get(shared)
        if make is None:
            make = makers[shared] = _maker(signature, takes, workflow_id, options)
        depends_on = tuple([ids[other] for other in after]) if after else ()
        jobs.append(make(ids[index], signature.payload, depends_on, ends))
    return jobs


def _key(takes: Takes | None) -> tuple[str | None, str]:
    return (None, "") if takes is None else (takes.parameter, repr(takes.results))


def _maker(signature: Signature[Any], takes: Takes | None, workflow_id: str, whole: WorkflowOptions) -> Any:
    sample = job_maker(signature.task.name, signature.options)("{}")
    own = sample.options
    options = msgspec.structs.replace(
        own,
        workflow=workflow_id,
        takes=takes,
        correlation_id=own.correlation_id or whole.correlation_id,
        failure_task=own.failure_task if whole.failure_task is None else True,
    )
    task, queue, priority, run_at, delay = (
        sample.task, sample.queue, sample.priority, sample.run_at, sample.delay,
    )  # fmt: skip
    expires_at, delivery, meta = sample.expires_at, sample.delivery, with_inherited(sample.meta, whole.meta)
    expires_in = sample.expires_in

    def make(job_id: str, payload: str, depends_on: tuple[str, ...], ends: bool) -> NewJob:
        return NewJob(
            job_id, task, payload, queue, priority, run_at, delay, expires_at, None, delivery, options, depends_on,
            ends_with_members=ends and bool(depends_on), meta=meta, expires_in=expires_in,
        )  # fmt: skip

    return make


def _ids_after(workflow_id: str, count: int) -> list[str]:
    """Return the ids that follow a workflow's own, as text."""
    first = uuid.UUID(workflow_id).int + 1
    if first + count > 1 << 128:
        raise ConfigurationError(f"{workflow_id} cannot be a workflow's id: no ids follow it for its jobs")
    high, low = first >> NODE_BITS, first & NODE_MAX
    if low + count > NODE_MAX:  # a carry into the digits before: rare, and slow
        return [str(uuid.UUID(int=first + index)) for index in range(count)]
    before = str(uuid.UUID(int=high << NODE_BITS))[: -(NODE_BITS // 4)]
    return [f"{before}{number:012x}" for number in range(low, low + count)]
