"""The failure task of a workflow: enqueued when a member dies, in the same transaction."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskharbor.codec import to_json
from taskharbor.drivers.base import Claimed, Transition
from taskharbor.errors import PayloadError
from taskharbor.records import Delivery, NewJob, Options, State, WorkflowRecord
from taskharbor.rules.meta import with_inherited

if TYPE_CHECKING:
    from taskharbor.workflow.parts import WorkflowOptions

REMEMBERED_MAX = 256


class Template(Struct, frozen=True, omit_defaults=True):
    """The failure task as it is stored; its job still lacks an id and the argument that says what died."""

    task: str
    payload: str
    queue: str
    parameter: str | None = None  # takes the description of what died; None for none
    priority: int = 0
    delay: int | None = None
    delivery: Delivery | None = None
    options: Options = Options()
    meta: str | None = None


def failure_template(options: WorkflowOptions) -> Template | None:
    signature = options.failure_task
    if signature is None:
        return None
    plan, given = signature.task.plan, signature.arguments
    parameter = None
    if signature.takes_result:
        parameter = next((name for name in plan.parameters if name not in given), None)
    missing = [name for name in plan.required if name not in given and name != parameter]
    if missing:
        raise PayloadError(
            f"the failure task {signature!r} needs {', '.join(map(repr, missing))}; "
            "only the first parameter that is not given is filled, with what died"
        )
    job = signature.task.new_job_of(signature.payload, signature.options)
    own = replace(job.options, correlation_id=job.options.correlation_id or options.correlation_id)
    return Template(
        job.task, job.payload, job.queue, parameter, job.priority, job.delay, job.delivery, own, job.meta
    )


class WorkflowReader(Protocol):
    """A driver, or a worker's patient store."""

    async def get_workflows(self, ids: Sequence[str]) -> list[WorkflowRecord | None]: ...


class FailureTasks:
    """Adds the failure task's job to the transition by which a member dies."""

    def __init__(self, store: WorkflowReader) -> None:
        self._store = store
        self._templates: OrderedDict[str, Template | None] = OrderedDict()

    async def added(self, transition: Transition, job: Claimed, options: Options) -> Transition:
        if transition.to is not State.DEAD or not options.failure_task or options.workflow is None:
            return transition
        template = await self._template(options.workflow)
        if template is None:
            return transition
        return replace(
            transition, inserts=(*transition.inserts, _job(template, transition, job, options.workflow))
        )

    async def _template(self, workflow_id: str) -> Template | None:
        if workflow_id not in self._templates:
            from taskharbor.workflow.handle import About

            [record] = await self._store.get_workflows([workflow_id])
            self._templates[workflow_id] = None if record is None else About.decode(record.about).failure_task
            while len(self._templates) > REMEMBERED_MAX:
                self._templates.popitem(last=False)
        return self._templates[workflow_id]


def _job(template: Template, transition: Transition, job: Claimed, workflow_id: str) -> NewJob:
    # One for the workflow, however many of its members die: the same id means the same job. A member that
    # dies again after a retry enqueues it again.
    about = "first" if job.first_number == 1 else f"{job.id}/{job.first_number}"
    payload = template.payload
    if template.parameter is not None:
        died: dict[str, Any] = {
            "workflow": workflow_id,
            "job": job.id,
            "task": job.task,
            "reason": None if transition.reason is None else str(transition.reason),
            "error": transition.error,
        }
        payload = with_argument(payload, template.parameter, to_json(died, "what died", 1 << 20).decode())
    return NewJob(
        str(uuid.uuid5(uuid.UUID(workflow_id), f"failure/{about}")),
        template.task,
        payload,
        template.queue,
        template.priority,
        delay=template.delay,
        delivery=template.delivery,
        options=template.options,
        meta=with_inherited(template.meta, job.meta),
    )


def with_argument(payload: str, parameter: str, value: str) -> str:
    """Return the JSON payload with one more argument."""
    name = msgspec.json.encode(parameter).decode()
    return f"{{{name}:{value}}}" if payload == "{}" else f"{payload[:-1]},{name}:{value}}}"
