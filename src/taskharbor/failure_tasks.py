"""The failure task of a job, or of a workflow for its members: enqueued with a death, in the same transaction."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace

from taskharbor.codec import checked_name, encode_payload, shorten, to_json
from taskharbor.drivers.base import Claimed, Transition
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.records import DeadCopy, FailureTask, NewJob, Options, State, WorkflowRecord
from taskharbor.rules.meta import with_inherited
from taskharbor.rules.retry import RetryPolicy

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

REMEMBERED_MAX = 256
DEAD_LETTER_TASK = "taskharbor.stream:dead-letter"  # sends a dead message's copy


def dead_letter_queue(source: str) -> str:
    """The queue of the jobs that send copies: only a worker of the stream serves it."""
    return f"stream:{source}:dead"


def failure_task_of(signature: Any, correlation_id: str | None = None) -> FailureTask:
    """Return a signature as the failure task that is stored with a job or a workflow."""
    if isinstance(signature, FailureTask):  # given by name, and checked
        return signature
    if not hasattr(signature, "takes_result") or not hasattr(signature, "arguments"):
        raise ConfigurationError(
            f"failure_task takes a signature such as alert.s(), not {shorten(signature)}"
        )
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
    for option in _NEVER_KEPT:
        if signature.options.get(option) is not None:
            raise _refused(option)
    payload = signature.task.harbor.sealing.seal(signature.payload)
    return _stored(signature.task.new_job_of(payload, signature.options), parameter, correlation_id)


# Options of a single job that a failure task does not keep: its job is made anew with each death.
_NEVER_KEPT = ("run_at", "expires_at", "expires_in", "idempotency_key", "id")
NAMED_FIELDS = ("task", "payload", "parameter")  # of a failure task by name, beside the options of its job
NAMED_OPTIONS = frozenset(
    {
        "queue", "delay", "priority", "max_attempts", "max_retries", "timeout", "retry", "delivery",
        "correlation_id", "tags", "meta",
    }
)  # fmt: skip


def named_failure_task(harbor: Harbor, sent: str | Mapping[str, Any]) -> FailureTask:
    """Return the failure task that a caller names without having its code, as REST and the command line do.

    `sent` is the name of a task, or `{"task": …, "payload": {…}, "parameter": …}` with options of its job.
    `parameter` takes the description of what died; None means that the task takes nothing of it. If it is left out, it
    is the first one that the payload lacks: that needs the code of the task.
    """
    from taskharbor.client.options import checked_options, merged, new_job, refuse_unknown

    fields: Mapping[str, Any] = {"task": sent} if isinstance(sent, str) else sent
    if not isinstance(fields, Mapping) or "task" not in fields:
        raise ConfigurationError(
            f'failure_task needs the name of a task, or an object such as {{"task": "alert"}}, not {shorten(sent)}'
        )
    options = {name: value for name, value in fields.items() if name not in NAMED_FIELDS}
    for option in _NEVER_KEPT:
        if option in options:
            raise _refused(option)
    refuse_unknown(options, NAMED_OPTIONS, "field of failure_task")
    if isinstance(options.get("retry"), Mapping):
        options["retry"] = RetryPolicy.from_dict(options["retry"])
    name = checked_name("task", fields["task"])
    payload = fields.get("payload")
    text = encode_payload({} if payload is None else payload)
    task = harbor._known(name)
    parameter = fields.get("parameter")
    if parameter is not None:
        checked_name("parameter", parameter)
    elif "parameter" not in fields:
        if task is None:
            raise ConfigurationError(
                f"the code of the failure task {name!r} is not known here: say by parameter which of its parameters "
                f'takes what died, such as {{"task": {name!r}, "parameter": "died"}}, or null for none'
            )
        parameter = next((each for each in task.plan.parameters if each not in (payload or {})), None)
    if parameter in (payload or {}):
        raise PayloadError(
            f"the parameter {parameter!r} of the failure task {name!r} takes what died, and its payload has a value "
            "for it; leave that out, or name another parameter"
        )
    checked = checked_options(options)
    if task is not None:
        task.validate(text if parameter is None else with_argument(text, parameter, _SAMPLE))
        name, checked = task.name, merged(task._options, checked)
    return _stored(new_job(name, harbor.sealing.seal(text), checked), parameter)


def _refused(option: str) -> ConfigurationError:
    return ConfigurationError(
        f"a failure task takes no {option}: each death enqueues a new job of it; leave it out"
        + (", or give delay" if option == "run_at" else "")
    )


def _stored(job: NewJob, parameter: str | None, correlation_id: str | None = None) -> FailureTask:
    # Its own death enqueues nothing, whatever it declares: that could go on without end.
    own = replace(
        job.options, correlation_id=job.options.correlation_id or correlation_id, failure_task=False
    )
    return FailureTask(
        job.task, job.payload, job.queue, parameter, job.priority, job.delay, job.delivery, own, job.meta
    )


# What a failure task is called with: to check a payload against its code.
_SAMPLE = '{"workflow":null,"job":"0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10","task":"t","reason":"exhausted","error":"E"}'


class WorkflowReader(Protocol):
    """A driver, or a worker's patient store."""

    async def get_workflows(self, ids: Sequence[str]) -> list[WorkflowRecord | None]: ...


class FailureTasks:
    """Adds the failure task's job to the transition by which a job dies."""

    def __init__(self, store: WorkflowReader) -> None:
        self._store = store
        self._templates: OrderedDict[str, FailureTask | None] = OrderedDict()

    async def added(
        self, transition: Transition, job: Claimed, options: Options, declared: FailureTask | None = None
    ) -> Transition:
        """Return the transition with the failure task's job, if the job dies by it and has a failure task.

        `declared` is that of the task, for a job that was enqueued without its declaration.
        """
        if transition.to is not State.DEAD:
            return transition
        if options.dead_copy is not None:
            copy = _copy_of(job, options.dead_copy, _begun_at(job, transition))
            transition = replace(transition, inserts=(*transition.inserts, copy))
        template: FailureTask | None | bool = options.failure_task
        if template is None:
            template = declared
        elif template is True:
            template = None if options.workflow is None else await self._template(options.workflow)
        if not isinstance(template, FailureTask):
            return transition
        new = _job(template, transition, job, options)
        return replace(transition, inserts=(*transition.inserts, new))

    async def _template(self, workflow_id: str) -> FailureTask | None:
        if workflow_id not in self._templates:
            from taskharbor.workflow.handle import About

            [record] = await self._store.get_workflows([workflow_id])
            self._templates[workflow_id] = None if record is None else About.decode(record.about).failure_task
            while len(self._templates) > REMEMBERED_MAX:
                self._templates.popitem(last=False)
        return self._templates[workflow_id]


def _job(template: FailureTask, transition: Transition, job: Claimed, options: Options) -> NewJob:
    payload = template.payload
    if template.parameter is not None:
        died: dict[str, Any] = {
            "workflow": options.workflow,
            "job": job.id,
            "task": job.task,
            "reason": None if transition.reason is None else str(transition.reason),
            "error": transition.error,
        }
        payload = with_argument(payload, template.parameter, to_json(died, "what died", 1 << 20).decode())
    own = template.options
    if own.correlation_id is None and options.correlation_id is not None:
        own = replace(own, correlation_id=options.correlation_id)
    return NewJob(
        _id_of(job, options, _begun_at(job, transition)),
        template.task,
        payload,
        template.queue,
        template.priority,
        delay=template.delay,
        delivery=template.delivery,
        options=own,
        meta=with_inherited(template.meta, job.meta),
    )


def _copy_of(job: Claimed, copy: DeadCopy, begun_at: int) -> NewJob:
    """The job that sends the copy of a dead message to a topic; see `taskharbor.streams.dead_letters`."""
    payload = {"job": job.id, "source": copy.source, "topic": copy.topic, "group": copy.group}
    return NewJob(
        _timed_id(job.id, f"copy/{job.first_number}", begun_at),
        DEAD_LETTER_TASK,
        msgspec.json.encode(payload).decode(),
        dead_letter_queue(copy.source),
    )


def _id_of(job: Claimed, options: Options, begun_at: int) -> str:
    """Return the same id for the same death, however often it is settled: the same id means the same job."""
    if options.failure_task is True and options.workflow is not None:
        # One for the workflow, however many of its members die; another for a member that dies after a retry.
        about = "first" if job.first_number == 1 else f"{job.id}/{job.first_number}"
        return _timed_id(options.workflow, f"failure/{about}")
    return _timed_id(job.id, f"failure/{job.first_number}", begun_at)


def _begun_at(job: Claimed, transition: Transition) -> int:
    """When the attempt began by which it dies, or was due: the same whenever this death is settled."""
    return job.run_at if transition.started_at is None else transition.started_at


def _timed_id(of: str, name: str, at: int = 0) -> str:
    """Return always the same id, of the kind that new jobs have (UUIDv7): lists show it where its time is.

    It comes after the id that it is derived from, whatever the clocks of producers and stores say.
    """
    origin = uuid.UUID(of)
    digest = uuid.uuid5(origin, name).int
    after = (origin.int >> 80) + 1 if origin.version == 7 else 0
    millis = min(max(at // 1_000, after), (1 << 48) - 1)
    low = (0b10 << 62) | (digest & ((1 << 62) - 1))
    return str(uuid.UUID(int=(millis << 80) | (7 << 76) | (((digest >> 64) & 0xFFF) << 64) | low))


def with_argument(payload: str, parameter: str, value: str) -> str:
    """Return the JSON payload with one more argument."""
    name = msgspec.json.encode(parameter).decode()
    return f"{{{name}:{value}}}" if payload == "{}" else f"{payload[:-1]},{name}:{value}}}"
