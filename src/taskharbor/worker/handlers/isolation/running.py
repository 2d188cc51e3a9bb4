"""Run handlers in processes: take a process, call the handler there, and end it when asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from taskharbor.clock import Clock
from taskharbor.drivers.base import Claimed
from taskharbor.errors import LeaseLost
from taskharbor.own_tasks import OwnTask, own_task
from taskharbor.records import StopReason
from taskharbor.rules.outcome import HandedBack
from taskharbor.worker.handlers.isolation.messages import (
    Call,
    ReadSteps,
    StepsRead,
    StepWritten,
    WriteStep,
)
from taskharbor.worker.handlers.isolation.pool import ProcessPool
from taskharbor.worker.handlers.isolation.process import ActiveCall, Ended, IsolatedProcess
from taskharbor.worker.handlers.steps import LeasedSteps
from taskharbor.worker.pipeline.execution import Execution

CANCEL_PATIENCE_SECONDS = 5.0  # for a cancelled handler to end, before its process is killed


class ProcessRunner:
    """Runs the handlers of tasks with `isolation="process"` for the executor."""

    def __init__(self, pool: ProcessPool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._serial = 0
        self._answering: set[OwnTask[None]] = set()

    def take_idle(self, execution: Execution) -> bool:
        """Give the execution an idle process; return whether there was one."""
        execution.process = self._pool.take_idle()
        return execution.process is not None

    async def take(self, execution: Execution) -> bool:
        """Wait for a process. Return False if the worker begins no more; raise `CannotBegin` if none starts."""
        execution.process = await self._pool.take()
        return execution.process is not None

    def give_back(self, execution: Execution) -> None:
        """Return the execution's process to the pool."""
        process, execution.process = execution.process, None
        execution.end = None
        if process is not None:
            self._pool.give_back(process)

    def call(self, execution: Execution, done: Callable[[Ended], None]) -> None:
        """Call the handler in the execution's process; `done` receives how it ended."""
        process, task = execution.process, execution.task
        assert process is not None, "take() gave it one"
        assert task is not None, "only known tasks are executed"
        assert task.address is not None, "isolated tasks have an address"
        assert execution.started_at is not None, "it has begun"
        self._serial += 1

        def ended(outcome: Ended) -> None:
            if isinstance(outcome, HandedBack) and execution.interrupted is None:
                execution.started_at = None  # its process died before it took the call
            self.give_back(execution)
            done(outcome)

        call = Call(
            self._serial,
            task.address,
            None if task.parameter_aliases is None else dict(task.parameter_aliases),
            _job_for_handler(execution),
            execution.lease.expires_at,
            execution.started_at,
            execution.deadline,
            None if execution.harbor.tracing is None else execution.harbor.tracing.current(),
            execution.is_row_missing,
        )
        execution.end = lambda why: self._end_handler(process, why)

        def ask_steps(question: ReadSteps | WriteStep) -> None:
            answering = own_task(_answer(execution, process, question))
            self._answering.add(answering)
            answering.add_done_callback(lambda _: self._answering.discard(answering))

        process.call(call, ActiveCall(self._serial, execution, ask_steps, ended))
        for reason in execution.asked_to_stop:  # requested before a middleware called the handler
            process.ask_to_stop(reason)

    def _end_handler(self, process: IsolatedProcess, why: StopReason) -> None:
        if why != "cancel":
            process.kill()
            return
        process.cancel()
        serial = process.serial
        self._clock.call_later(CANCEL_PATIENCE_SECONDS, lambda: process.kill_call(serial))

    def begin_no_more(self) -> None:
        self._pool.begin_no_more()

    async def close(self) -> None:
        for answering in list(self._answering):
            answering.end()
        await self._pool.close()


def _job_for_handler(execution: Execution) -> Claimed:
    """Return the job with the results of its dependencies filled in, and with the task's declared delivery."""
    claimed = execution.claimed
    if execution.payload is not None:
        claimed = replace(claimed, payload=execution.payload)
    return replace(claimed, delivery=execution.delivery) if execution.needs_mark else claimed


async def _answer(execution: Execution, process: IsolatedProcess, question: ReadSteps | WriteStep) -> None:
    """Ask the store in the worker, which holds the lease. A handler that lost its lease is killed, not answered."""
    steps = LeasedSteps(execution)
    if isinstance(question, ReadSteps):
        process.answer(StepsRead(question.serial, await steps.read()))
        return
    with suppress(LeaseLost):
        await steps.write(question.name, question.result)
        process.answer(StepWritten(question.serial, question.name))
