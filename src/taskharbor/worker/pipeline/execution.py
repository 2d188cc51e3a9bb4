"""`Execution`: one claimed job on its way through the worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

import msgspec

from taskharbor import builtin_tasks
from taskharbor.client.handle import Job
from taskharbor.client.options import with_expiry
from taskharbor.clock import MICROS_PER_SECOND, Timer
from taskharbor.codec import shorten
from taskharbor.context import Context
from taskharbor.drivers.base import Claimed
from taskharbor.errors import ConfigurationError, StopRequested
from taskharbor.records import (
    NO_OPTIONS,
    STOP_REASONS,
    Delivery,
    JobRecord,
    NewJob,
    Options,
    Progress,
    State,
    StopReason,
)
from taskharbor.rules.meta import with_inherited
from taskharbor.rules.policy import Rules
from taskharbor.rules.retry import UNSET, RetryPolicy
from taskharbor.schedule import parse
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.handlers.steps import LeasedSteps, Steps
from taskharbor.worker.pipeline.leases import HeldLease, StoreTime

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.task import Signature, Task
    from taskharbor.worker.handlers.isolation.process import IsolatedProcess
    from taskharbor.worker.handlers.slot import Slot
    from taskharbor.worker.pipeline.pipeline import Pipeline

logger = logging.getLogger("taskharbor.worker")

_decode_options = msgspec.json.Decoder(Options).decode


@lru_cache(1024)
def _read_options(text: str) -> tuple[Options, Any]:
    """Decode stored options and their retry policy, or UNSET. Cached: most jobs of a task have the same text."""
    options = _decode_options(text)
    policy = options.retry
    return options, RetryPolicy.from_dict(policy) if isinstance(policy, dict) else policy


_UNASKED: frozenset[StopReason] = frozenset()


_KEEPING_A_CHILD = Lock()


class Execution(msgspec.Struct, eq=False):
    """One attempt of a claimed job, from the claim to its settle. `Execution.of` makes it.

    A struct, because a worker makes one for each job: it fills in the defaults faster than an `__init__` would.
    """

    claimed: Claimed
    lease: HeldLease
    harbor: Harbor
    time: StoreTime
    pipeline: Pipeline
    task: Task[Any, Any, Any, Any] | None
    options: Options = NO_OPTIONS
    policy: Any = UNSET
    # Why the stored options cannot be read: a newer version of TaskHarbor may have written them.
    unreadable: str | None = None
    started_at: int | None = None
    has_ended: bool = False  # its outcome is known, and is to be settled
    deadline: int | None = None  # when it times out; known once it has begun
    cell: int = 0  # where its begin and end are published; 0 without a supervisor
    asked_to_stop: frozenset[StopReason] = _UNASKED  # the reasons; replaced as a whole, since threads read it
    interrupted: StopReason | None = None  # why the worker interrupted the handler, beyond asking it to stop
    disturbed: bool = False  # other code than the handler and the worker cancelled the handler
    has_meddled: bool = False  # its handler cancelled tasks that are not its own
    children: Sequence[NewJob] = ()
    slot: Slot | None = None  # the slot that runs an async handler
    end: Callable[[StopReason], None] | None = None  # ends a handler in a thread or a process
    process: IsolatedProcess | None = None  # the process that an isolated handler runs in
    payload: str | None = None  # with the results of other jobs that it takes, if any
    arguments: dict[str, Any] | None = None  # the decoded payload
    run_has_begun: bool | None = None  # whether an earlier attempt of this run has begun; None if unknown
    loop: asyncio.AbstractEventLoop | None = None  # of the worker, for a handler in a thread
    timer: Timer | None = None
    kept_steps: Steps | None = None
    kept_context: Context | None = None
    kept_job: Job[Any] | None = None

    @classmethod
    def of(
        cls, claimed: Claimed, lease: HeldLease, harbor: Harbor, time: StoreTime, pipeline: Pipeline
    ) -> Self:
        task = harbor.tasks.get(claimed.task) or builtin_tasks.runnable_task_of(harbor, claimed.task)
        execution = cls(claimed, lease, harbor, time, pipeline, task)
        if claimed.options is not None:
            execution.read_options(claimed.options)
        return execution

    def read_options(self, text: str) -> None:
        try:
            self.options, self.policy = _read_options(text)
            if self.options.recurrence is not None:
                parse(self.options.recurrence.schedule, self.options.recurrence.timezone)
        except (msgspec.DecodeError, ConfigurationError) as error:
            self.unreadable = f"its stored options cannot be read: {error}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of job {self.claimed.id}, attempt {self.claimed.number}>"

    # -- properties --

    @property
    def context(self) -> Context:
        if self.kept_context is None:
            self.kept_context = Context(self)
        return self.kept_context

    @property
    def steps(self) -> Steps:
        if self.kept_steps is None:
            self.kept_steps = Steps(self, LeasedSteps(self), self.time, is_row_missing=self.is_row_missing)
        return self.kept_steps

    @property
    def is_row_missing(self) -> bool:
        """Whether the job came from a log and becomes a job of the store when it meets its first step."""
        return self.pipeline.store.driver.ROWS_COME_LATER

    @property
    def job(self) -> Job[Any]:
        if self.kept_job is None:
            c = self.claimed
            record = JobRecord(
                c.id,
                c.task,
                c.payload,
                c.queue,
                c.priority,
                State.RUNNING,
                c.enqueued_at,
                c.run_at,
                c.attempts,
                c.number,
                due_at=c.due_at,
                expires_at=c.expires_at,
                delivery=self.delivery,
                options=self.options,
                version=c.version,
                lease_expires_at=self.lease.expires_at,
                meta=c.meta,
            )
            self.kept_job = Job(record, self.harbor)
        return self.kept_job

    @property
    def timeout(self) -> float | None:
        if self.options.timeout is not None:
            return self.options.timeout
        return self.task.declared_timeout if self.task else None

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed. A handler that blocks the loop also keeps the timer from firing."""
        if "timeout" in self.asked_to_stop:
            return True
        return self.deadline is not None and self.time.now() >= self.deadline

    @property
    def is_lost(self) -> bool:
        """Whether the worker settles nothing for it: another worker has the job, or it is settled already."""
        return "lease_lost" in self.asked_to_stop

    @property
    def stop_requested(self) -> StopReason | None:
        """The first reason for which its handler must stop, or None."""
        return next((reason for reason in STOP_REASONS if self.is_to_stop(reason)), None)

    def is_to_stop(self, reason: StopReason) -> bool:
        return self.is_late if reason == "timeout" else reason in self.asked_to_stop

    def has_raised(self, stop: StopRequested) -> bool:
        """Whether this attempt raised it, for a reason that holds. A handler cannot forge one."""
        if (stop.job_id, stop.number) != (self.claimed.id, self.claimed.number):
            return False
        # The estimated time may go back a little, so this does not ask again whether the attempt is late.
        return self.deadline is not None if stop.reason == "timeout" else stop.reason in self.asked_to_stop

    @property
    def delivery(self) -> Delivery:
        """The delivery that the job was enqueued with, or else the one that its task declares."""
        declared = self.task.declared_delivery if self.task else None
        return self.claimed.delivery or declared or Delivery.AT_LEAST_ONCE

    @property
    def needs_mark(self) -> bool:
        """Whether only the task's declaration says at_most_once: the store must know it before the handler begins."""
        return self.claimed.delivery is None and self.task is not None and self.task.is_at_most_once

    @property
    def run_may_have_begun(self) -> bool:
        """Whether an earlier attempt of this run has begun, or may have."""
        return self.claimed.number > self.claimed.first_number and self.run_has_begun is not False

    def rules(self, worker_policy: RetryPolicy | None) -> Rules:
        return Rules(
            worker_policy=worker_policy,
            job_max_attempts=self.options.max_attempts,
            job_policy=self.policy,
            task_max_attempts=self.task.declared_max_attempts if self.task else None,
            task_policy=self.task.declared_policy if self.task else UNSET,
            delivery=self.delivery,
            job=lambda: self.job,
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields that every log line about this attempt has."""
        fields: dict[str, Any] = {
            "job": self.claimed.id,
            "task": self.claimed.task,
            "queue": self.claimed.queue,
            "attempt": self.claimed.number,
        }
        if self.options.workflow is not None:
            fields["workflow"] = self.options.workflow
        if self.options.correlation_id is not None:
            fields["correlation_id"] = self.options.correlation_id
        return fields

    # -- what happens to it --

    def begin(self, now: int) -> None:
        """Its handler begins: from now on its time runs."""
        self.started_at = now
        timeout = self.timeout
        if timeout is not None:
            self.deadline = now + round(timeout * MICROS_PER_SECOND)

    def release(self) -> None:
        """Let go of what refers back to it. Its memory is then free at once, without the garbage collector."""
        self.end = self.kept_context = self.kept_steps = None

    def ask_to_stop(self, reason: StopReason) -> None:
        """Let the context report this reason to the handler from here on."""
        self.asked_to_stop |= {reason}
        if self.process is not None:
            self.process.ask_to_stop(reason)

    def raise_if_stopped(self) -> None:
        reason = self.stop_requested
        if reason is None:
            return
        if reason == "shutdown" and self.delivery is Delivery.AT_MOST_ONCE and self.interrupted is None:
            return  # the job is not executed again, so the handler may use the whole grace period
        raise StopRequested(reason, self.claimed.id, self.claimed.number)

    def interrupt(self, why: StopReason) -> None:
        """Make the handler end. The first reason is kept."""
        self.ask_to_stop(why)
        if self.interrupted is not None or self.started_at is None:
            return
        if why == "cancel" and self.task is not None and self.task.only_asked_to_end:
            return  # the handler reads the request from its context
        if self.end is not None:
            self.interrupted = why
            self.end(why)
        elif self.slot is not None:
            self.interrupted = why
            self.slot.interrupt()

    def meddled(self) -> None:
        """Log, once, that its handler cancels tasks of the worker or of another handler."""
        if not self.has_meddled:
            self.has_meddled = True
            sentence = "a handler cancels tasks that are not its own, and the worker goes on: job {job}"
            log_line(logger, logging.WARNING, sentence, self.fields())

    def lose_lease(self) -> None:
        """Interrupt the handler: the store refused a write under its lease, so nothing will be settled."""
        self.interrupt("lease_lost")

    def report(self, progress: Progress) -> None:
        pipeline = self.pipeline
        try:
            is_on_loop = asyncio.get_running_loop() is pipeline.loop
        except RuntimeError:
            is_on_loop = False
        if is_on_loop:  # at once: the attempt may end, and be settled, before the loop comes round
            pipeline.note(self, progress)
        else:
            pipeline.loop.call_soon_threadsafe(pipeline.note, self, progress)

    def add_child(self, signature: Signature[Any]) -> str:
        if not hasattr(signature, "new_job") or not hasattr(signature, "arguments"):
            raise ConfigurationError(
                f"ctx.enqueue takes a signature such as task.s(1, x=2), not {shorten(signature)}; a workflow is stored "
                "at once, with its own enqueue() or aenqueue() and an idempotency key that a second attempt repeats"
            )
        [child] = self.harbor.sealing.sealed([signature.new_job()])
        # A child is found by its correlation id, so a parent without one passes its own id on.
        correlation = child.options.correlation_id or self.options.correlation_id or self.claimed.id
        options = msgspec.structs.replace(child.options, correlation_id=correlation, parent=self.claimed.id)
        child = msgspec.structs.replace(child, options=options)
        if self.claimed.meta is not None:
            child = msgspec.structs.replace(child, meta=with_inherited(child.meta, self.claimed.meta))
        if self.harbor.tracing is not None:
            child = self.harbor.tracing.create(child)
        self.keep_child(child)
        return child.id

    def keep_child(self, child: NewJob) -> None:
        """Store this job with the success of the attempt."""
        child = with_expiry(child, self.time.now())
        with _KEEPING_A_CHILD:  # a handler may enqueue children in threads of its own
            if isinstance(self.children, list):
                self.children.append(child)
            else:  # nearly no attempt has one, so they share an empty tuple
                self.children = [child]
