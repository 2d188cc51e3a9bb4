"""Executions in processes: getting one ready, calling its handler there, and making it end."""

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
    AskSteps,
    Call,
    ChildEnqueued,
    KeepStep,
    ProgressReported,
    StepKept,
    StepsFound,
)
from taskharbor.worker.handlers.isolation.pool import ProcessPool
from taskharbor.worker.handlers.isolation.process import CallUnderWay, Ended, IsolatedProcess
from taskharbor.worker.handlers.steps import LeasedSteps
from taskharbor.worker.pipeline.execution import Execution

CANCEL_PATIENCE_SECONDS = 5.0  # how long a handler that was asked to end may take, before it is killed


class ProcessRunner:
    """What the executor asks for a task with `isolation="process"`, as it asks threads for a sync one."""

    def __init__(self, pool: ProcessPool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._serial = 0
        self._answering: set[OwnTask[None]] = set()

    def take_idle(self, execution: Execution) -> bool:
        """Give the execution a process that is waiting for work; whether there was one."""
        execution.process = self._pool.take_idle()
        return execution.process is not None

    async def take(self, execution: Execution) -> bool:
        """Wait for a process; False when none is to begin any more, `CannotBegin` when none can."""
        execution.process = await self._pool.take()
        return execution.process is not None

    def give_back(self, execution: Execution) -> None:
        """It did not use its process, or no longer does."""
        process, execution.process = execution.process, None
        execution.end = None
        if process is not None:
            self._pool.give_back(process)

    def call(self, execution: Execution, done: Callable[[Ended], None]) -> None:
        """Call the handler in the process that the execution has; `done` is told how it ended."""
        process, task = execution.process, execution.task
        assert process is not None, "it was given one"
        assert task is not None, "only known tasks are executed"
        assert task.address is not None, "its task is an isolated one"
        assert execution.started_at is not None, "it has begun"
        self._serial += 1

        def ended(outcome: Ended) -> None:
            if isinstance(outcome, HandedBack) and execution.interrupted is None:
                execution.started_at = None  # its process died before it heard of it
            self.give_back(execution)
            done(outcome)

        call = Call(
            self._serial,
            task.address,
            None if task.parameter_aliases is None else dict(task.parameter_aliases),
            _as_it_is_called(execution),
            execution.lease.expires_at,
            execution.started_at,
            execution.deadline,
        )
        execution.end = lambda why: self._make_end(process, why)

        def asked(question: AskSteps | KeepStep) -> None:
            answering = own_task(_answer(execution, process, question))
            self._answering.add(answering)
            answering.add_done_callback(lambda _: self._answering.discard(answering))

        process.call(call, CallUnderWay(self._serial, _noted(execution), _begot(execution), asked, ended))
        for reason in execution.asked_to_stop:  # while a middleware had not called it yet
            process.ask_to_stop(reason)

    def _make_end(self, process: IsolatedProcess, why: StopReason) -> None:
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


def _as_it_is_called(execution: Execution) -> Claimed:
    """With what it takes of other jobs, and with what perhaps only the worker's declaration knows."""
    claimed = execution.claimed
    if execution.payload is not None:
        claimed = replace(claimed, payload=execution.payload)
    return replace(claimed, delivery=execution.delivery) if execution.needs_mark else claimed


async def _answer(execution: Execution, process: IsolatedProcess, question: AskSteps | KeepStep) -> None:
    """The store is asked here, where the lease is; a handler whose lease was lost is killed without an answer."""
    steps = LeasedSteps(execution)
    if isinstance(question, AskSteps):
        process.answer(StepsFound(question.serial, await steps.read()))
        return
    with suppress(LeaseLost):
        await steps.write(question.name, question.result)
        process.answer(StepKept(question.serial, question.name))


def _noted(execution: Execution) -> Callable[[ProgressReported], None]:
    return lambda noted: execution.report(noted.progress)


def _begot(execution: Execution) -> Callable[[ChildEnqueued], None]:
    return lambda begot: execution.children.append(begot.job)
