"""The executor: runs handlers in a bounded number of slots and hands each outcome to the pipeline.

It does not use the driver. Executions come from `Pipeline.claimed`, the results that they take from `Results`, and
outcomes go to `Pipeline.end`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from taskharbor.clock import MICROS_PER_SECOND, Clock
from taskharbor.context import current_execution
from taskharbor.errors import PayloadError, StopRequested, Unrecoverable
from taskharbor.records import Reason
from taskharbor.rules.outcome import (
    HandedBack,
    Outcome,
    Slept,
    Succeeded,
)
from taskharbor.rules.recurrence import is_missed
from taskharbor.sealing import CannotOpen
from taskharbor.telemetry.attempts import Reporter
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.handlers import outcomes
from taskharbor.worker.handlers.isolation.messages import Stopped
from taskharbor.worker.handlers.isolation.pool import CannotBegin
from taskharbor.worker.handlers.isolation.process import Ended
from taskharbor.worker.handlers.isolation.running import ProcessRunner
from taskharbor.worker.handlers.slot import Slot
from taskharbor.worker.handlers.stepping import Stepped, raised_by_the_handler
from taskharbor.worker.handlers.steps import FallAsleep
from taskharbor.worker.handlers.threads import Call, HandlerThreads, ThreadsMaker
from taskharbor.worker.pipeline.dependency_results import Results
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.lease_keeper import LeaseKeeper
from taskharbor.worker.pipeline.pipeline import Pipeline
from taskharbor.worker.pipeline.preflight import (
    NotOurs,
    Objection,
    is_routine,
    payload_does_not_fit,
    preflight,
)
from taskharbor.worker.pipeline.recurring import Recurring

if TYPE_CHECKING:
    from taskharbor.telemetry.tracing import Tracing

logger = logging.getLogger("taskharbor.worker")

CLOSE_SECONDS = 1.0  # how long `close` waits for cancelled slots to end
YIELD_EVERY = 32  # executions in a row that never suspend, before a slot yields to the loop

Middleware = Callable[[Any, Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]


class Executor:
    def __init__(
        self,
        pipeline: Pipeline,
        *,
        clock: Clock,
        middlewares: Iterable[Middleware],
        tracing: Tracing | None = None,
        processes: ProcessRunner,
        reporter: Reporter,
        lease_keeper: LeaseKeeper,
        recurring: Recurring,
        results: Results,
        cells: memoryview[int] | None = None,
        takes_interrupts: bool = False,
        make_threads: ThreadsMaker = HandlerThreads,
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._time = pipeline.time
        self._middlewares = self._wrappers = tuple(middlewares)
        self._tracing = tracing
        self._report_begin = reporter.began if reporter.wants_begins else None
        self._lease_keeper = lease_keeper
        self._recurring = recurring
        self._results = results
        self._cells = cells  # a supervisor reads begins and ends here, even after this process dies
        self._takes_interrupts = (
            takes_interrupts  # Ctrl-C raises nothing here, so a KeyboardInterrupt is the handler's own
        )
        self._threads = make_threads(pipeline.concurrency, delivered=self.wake_a_slot)
        self._processes = processes
        self._slots: list[Slot] = []
        self._idle: list[asyncio.Future[None]] = []
        self._torn_down = False
        self._context = contextvars.copy_context()

    def offer(self, executions: Iterable[Execution]) -> None:
        """Take jobs that were claimed."""
        if self._tracing is not None and self._tracing.is_on:  # once a claim: a provider may be set later
            self._wrappers = (self._tracing.attempt, *self._middlewares)
        self._pipeline.claimed.extend(executions)
        self.wake_a_slot()

    def begin_no_more(self, *, is_retiring: bool = False) -> None:
        """Hand back what has not begun, and begin nothing more. Handlers of a retiring worker run on."""
        self._pipeline.is_closing = True
        if not is_retiring:  # a middleware of a retiring worker may still call its handler
            self._processes.begin_no_more()
        self._pipeline.hand_back()

    async def close(self) -> None:
        self._torn_down = True
        for slot in self._slots:
            slot.end()
        if self._slots:  # but not for a handler that does not end
            await asyncio.wait(self._slots, timeout=CLOSE_SECONDS)
        self._threads.close()
        await self._processes.close()
        await self._results.close()

    # -- slots --

    def wake_a_slot(self) -> None:
        """Wake one slot. It wakes the next one when its handler suspends and more jobs wait."""
        pipeline = self._pipeline
        if (
            not pipeline.claimed
            or pipeline.is_full
            or len(pipeline.running) + pipeline.starting >= pipeline.concurrency
        ):
            return
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        if len(self._slots) < pipeline.concurrency:
            self._slots.append(Slot(self._serve_slot(), loop=asyncio.get_running_loop()))

    async def _serve_slot(self) -> None:
        loop, pipeline = asyncio.get_running_loop(), self._pipeline
        slot = asyncio.current_task()
        assert isinstance(slot, Slot), "only slots are served here"
        without_yield = 0
        while True:
            try:
                if (
                    not pipeline.claimed
                    or pipeline.is_full
                    or len(pipeline.running) + pipeline.starting >= pipeline.concurrency
                ):
                    sleeper = loop.create_future()
                    self._idle.append(sleeper)
                    await sleeper
                    continue
                execution = pipeline.claimed.popleft()
                if len(pipeline.claimed) == pipeline.low_water:
                    pipeline.room.set()
                try:
                    if (rest := self._execute(execution, slot)) is not None:
                        await rest
                except BaseException as error:
                    if self._is_to_end_slot(execution, error):
                        raise
                without_yield += 1
                if without_yield == YIELD_EVERY:
                    without_yield = 0
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._torn_down:
                    raise
                while slot.cancelling():  # other code cancelled the slot: it goes on
                    slot.uncancel()

    def _execute(self, execution: Execution, slot: Slot) -> Coroutine[Any, Any, None] | None:
        """Check the job, begin it, run it, as far as nothing has to be awaited; return the rest, if there is one.

        A plain function, because nearly every job needs no preparation, and nearly every handler ends in its first step
        or runs in a thread. A coroutine for each job would cost more than the rest of this.
        """
        now = self._time.now()
        if not is_routine(execution, now):
            return self._prepare_and_execute(execution, slot, now)
        if (objection := payload_does_not_fit(execution, now)) is not None:
            self._refuse(execution, objection)
            return None
        return self._begin(execution, slot, now)

    async def _prepare_and_execute(self, execution: Execution, slot: Slot, now: int) -> None:
        if (objection := await self._clear(execution, now)) is not None:
            self._refuse(execution, objection)
            return
        # The checks took time, which does not count as the handler's.
        if (rest := self._begin(execution, slot, self._time.now())) is not None:
            await rest

    def _is_to_end_slot(self, execution: Execution, error: BaseException) -> bool:
        """Settle a job whose execution raised. It must not end the slot, since other jobs need it."""
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
            if execution.started_at is None:
                self._processes.give_back(execution)
                self._pipeline.end(execution, HandedBack())
            return True
        self._fail(execution, error)
        return False

    def _fail(self, execution: Execution, error: BaseException) -> None:
        """Settle an attempt as failed by an error around its handler, which may have run or not."""
        sentence = "Job {job} failed by an error that its handler did not raise"
        log_line(logger, logging.ERROR, sentence, execution.fields(), error=error)
        self._pipeline.running.pop(execution, None)
        if (slot := execution.slot) is not None:
            execution.slot = slot.execution = None
        self._let_go(execution)
        self._pipeline.end(execution, outcomes.of_failure(error))

    def _begin(self, execution: Execution, slot: Slot, now: int) -> Coroutine[Any, Any, None] | None:
        """Begin the handler; return what is left to await, if it is async and has suspended."""
        task, arguments = execution.task, execution.arguments
        assert task is not None, "an unknown task is refused"
        assert arguments is not None, "a payload that does not fit is refused"
        self._pipeline.begun += 1
        execution.begin(now)
        if self._cells is not None:
            self._cells[execution.cell] = now
        self._pipeline.running[execution] = None
        if self._report_begin is not None:
            self._report_begin(execution)
        if self._wrappers:
            return self._run_async(execution, slot, self._wrapped(execution, arguments))
        if task.is_isolated:
            self._processes.call(execution, lambda ended: self._process_ended(execution, ended))
            self._arm_timer(execution)
            return None
        context = execution.context if task.plan.takes_context else None
        if task.is_async:
            return self._run_async(execution, slot, task.plan.call(arguments, context))
        self._run_in_thread(execution, (task.plan.call, arguments, context))
        return None

    async def _clear(self, execution: Execution, now: int) -> Objection | None:
        """Check a job that is not routine, and prepare it; check it again after each step that takes time."""
        objection = preflight(execution, now)
        if objection is None and _lacks_facts(execution, now):
            objection = await self._read_facts(execution) or preflight(execution, self._time.now())
        if objection is None and _needs_a_place(execution):
            objection = await self._make_ready(execution) or preflight(execution, self._time.now())
        return objection

    def _refuse(self, execution: Execution, objection: Objection) -> None:
        self._processes.give_back(execution)
        if isinstance(objection, NotOurs):
            self._pipeline.drop(execution)
        else:
            self._pipeline.end(execution, objection)

    async def _read_facts(self, execution: Execution) -> Outcome | None:
        """Read the results that the job takes, and whether its run has begun."""
        takes = execution.options.takes
        self._pipeline.starting += 1
        try:
            if takes is not None:
                self.wake_a_slot()  # other jobs do not wait for this read
                execution.payload = await self._results.payload(execution, takes)
            if execution.options.recurrence is not None:
                execution.run_has_begun = await self._recurring.has_begun(execution)
        except CannotOpen as error:
            return outcomes.outcome_of_unrunnable(Reason.INVALID_PAYLOAD, str(error))
        except (Unrecoverable, PayloadError) as error:
            # Not unrunnable: another version of the task would miss the same result.
            return outcomes.of_failure(Unrecoverable(str(error)))
        finally:
            self._pipeline.starting -= 1
        return None

    async def _make_ready(self, execution: Execution) -> Outcome | None:
        """Get a process for an isolated handler, and write into the lease that a job is at_most_once."""
        assert execution.task is not None, "only known tasks are executed"
        self._pipeline.starting += 1
        try:
            if execution.task.is_isolated and not self._processes.take_idle(execution):
                self.wake_a_slot()  # other jobs do not wait for this process
                if not await self._processes.take(execution):
                    return HandedBack()
            if execution.needs_mark and not await self._lease_keeper.mark_at_most_once(execution):
                return HandedBack()  # the lease is lost
        except CannotBegin as error:
            return outcomes.outcome_of_unrunnable(Reason.UNKNOWN_TASK, str(error))
        finally:
            self._pipeline.starting -= 1
        return None

    def _ended(self, execution: Execution, outcome: Outcome) -> None:
        pipeline = self._pipeline
        del pipeline.running[execution]
        self._let_go(execution)
        if execution.harbor.sealing.codec is not None and isinstance(outcome, Succeeded):
            outcome = outcomes.sealed(outcome, execution.harbor.sealing)
        if execution.asked_to_stop and execution.is_lost:
            pipeline.drop(execution)  # under a lost lease nothing is settled
        else:
            pipeline.end(execution, outcome)
        if not pipeline.claimed:
            pipeline.room.set()

    def _let_go(self, execution: Execution) -> None:
        """Free what an execution holds: its cell, its timer, its process."""
        if self._cells is not None and execution.started_at is not None:
            self._cells[execution.cell] = -execution.started_at
        if execution.timer is not None:
            execution.timer.cancel()
        if execution.process is not None:  # a middleware did not call the handler
            self._processes.give_back(execution)
        execution.release()

    # -- async handlers --

    def _run_async(
        self, execution: Execution, slot: Slot, coroutine: Coroutine[Any, Any, Any]
    ) -> Coroutine[Any, Any, None] | None:
        """Take the handler's first step, in its own context; return what is left to await if it suspends there."""
        execution.slot, slot.execution = slot, execution
        context = self._context.copy()
        context.run(current_execution.set, execution)
        try:
            awaited = context.run(coroutine.send, None)
        except StopIteration as stop:
            outcome = self._outcome_of_value(execution, stop.value)
        except GeneratorExit as error:
            outcome = outcomes.outcome_of_error(execution, raised_by_the_handler(error))
        except BaseException as error:
            if self._is_meant_for_slot(execution, error):
                raise
            outcome = outcomes.outcome_of_error(execution, error)
        else:
            self._arm_timer(execution)
            self.wake_a_slot()
            return self._await_handler(execution, slot, Stepped(coroutine, context, awaited))
        return self._leave_slot(execution, slot, outcome)

    async def _await_handler(self, execution: Execution, slot: Slot, stepped: Stepped) -> None:
        try:
            value = await stepped
        except BaseException as error:
            if isinstance(error, GeneratorExit) or self._is_meant_for_slot(execution, error):
                raise
            outcome = outcomes.outcome_of_error(execution, error)
        else:
            outcome = self._outcome_of_value(execution, value)
        rest = self._leave_slot(execution, slot, outcome)
        if rest is not None:
            await rest

    def _is_meant_for_slot(self, execution: Execution, error: BaseException) -> bool:
        """Whether what came out of the handler ends the slot, or the whole process, and is no end of the job."""
        if isinstance(error, asyncio.CancelledError):
            if execution.interrupted is None and self._torn_down:
                return True
            if execution.disturbed and execution.interrupted is None and self._is_torn_down_from_outside:
                execution.interrupted = "shutdown"  # the application cancelled every task
            return False
        return isinstance(error, KeyboardInterrupt) and not self._takes_interrupts

    def _leave_slot(
        self, execution: Execution, slot: Slot, outcome: Outcome
    ) -> Coroutine[Any, Any, None] | None:
        execution.slot = slot.execution = None
        if slot.cancelling():  # the worker or the handler cancelled the handler, not the slot
            return self._absorb_cancellation(execution, slot, outcome)
        self._ended(execution, outcome)
        return None

    @property
    def _is_torn_down_from_outside(self) -> bool:
        """Whether the application cancels the whole worker."""
        return self._pipeline.owner is not None and self._pipeline.owner.is_to_end

    async def _absorb_cancellation(self, execution: Execution, slot: Slot, outcome: Outcome) -> None:
        """Clear a cancellation that was meant for the handler, so that it does not hit the next job of the slot."""
        while slot.cancelling():
            slot.uncancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._torn_down:
                raise
            while slot.cancelling():
                slot.uncancel()
        self._ended(execution, outcome)

    def _arm_timer(self, execution: Execution) -> None:
        if execution.deadline is not None:
            remaining = (execution.deadline - self._time.now()) / MICROS_PER_SECOND
            execution.timer = self._clock.call_later(
                max(0.0, remaining), lambda: execution.interrupt("timeout")
            )

    async def _wrapped(self, execution: Execution, arguments: dict[str, Any]) -> Any:
        """Call the handler inside the middlewares; the first declared is the outermost."""
        threads: list[tuple[Call, asyncio.Future[Call]]] = []
        call: Callable[[], Coroutine[Any, Any, Any]] = lambda: self._innermost(execution, arguments, threads)  # noqa: E731
        for middleware in reversed(self._wrappers):
            call = _bound(middleware, execution, call)
        try:
            value = await call()
        except GeneratorExit:  # nothing runs this coroutine any more
            raise
        except BaseException:
            await self._until_threads_ended(threads)
            raise
        await self._until_threads_ended(threads)
        return value

    async def _until_threads_ended(self, threads: Iterable[tuple[Call, asyncio.Future[Call]]]) -> None:
        """Interrupt what a middleware has called and did not wait for; its attempt ends no sooner than it does."""
        for call, ended in threads:
            if not ended.done() and not self._torn_down:
                call.interrupt()
                await self._until_ended(ended)

    async def _innermost(
        self,
        execution: Execution,
        arguments: dict[str, Any],
        threads: list[tuple[Call, asyncio.Future[Call]]],
    ) -> Any:
        task = execution.task
        assert task is not None, "only known tasks are executed"
        if task.is_isolated:
            return await self._value_from_process(execution)
        if task.is_async:
            return await task.plan.call(arguments, execution.context)
        execution.loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        ended: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        call = self._threads.call(
            context.run,
            (task.plan.call, arguments, execution.context),
            lambda call: None if ended.done() else ended.set_result(call),
        )
        threads.append((call, ended))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            call.interrupt()
            await self._until_ended(ended)
            raise
        if call.error is not None:
            raise call.error
        return call.value

    async def _until_ended(self, ending: asyncio.Future[Any]) -> None:
        """Wait for a handler that was interrupted, however often this is cancelled: it occupies its slot until then."""
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError:
                if self._torn_down:
                    raise

    # -- sync handlers --

    def _run_in_thread(self, execution: Execution, call: tuple[Any, ...]) -> None:
        execution.loop = self._pipeline.loop
        context = self._context.copy()
        context.run(current_execution.set, execution)
        execution.end = self._threads.call(context.run, call, self._thread_ended, execution).interrupt
        self._arm_timer(execution)

    def _thread_ended(self, call: Call) -> None:
        execution = call.about
        try:
            if call.error is not None:
                outcome = outcomes.outcome_of_error(execution, call.error)
            else:
                outcome = self._outcome_of_value(execution, call.value)
            self._ended(execution, outcome)
        except Exception as error:  # noqa: BLE001 - a job that never ends would keep its slot and its lease
            self._fail(execution, error)

    # -- handlers in processes --

    def _process_ended(self, execution: Execution, ended: Ended) -> None:
        try:
            if isinstance(ended, Succeeded) and execution.is_late:
                self._ended(execution, outcomes.of_timeout(execution))
            else:
                self._ended(execution, outcomes.of_remote(execution, ended))
        except Exception as error:  # noqa: BLE001 - a job that never ends would keep its slot and its lease
            self._fail(execution, error)
        self.wake_a_slot()

    async def _value_from_process(self, execution: Execution) -> Any:
        """Return to a middleware the result, decoded from JSON, or raise an error that represents the handler's."""
        task = execution.task
        assert task is not None, "only known tasks are executed"
        if (
            execution.process is None  # the middleware calls the handler a second time
            and not self._processes.take_idle(execution)
            and not await self._processes.take(execution)
        ):
            raise asyncio.CancelledError
        ending: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._processes.call(execution, ending.set_result)
        try:
            ended = await asyncio.shield(ending)
        except asyncio.CancelledError:  # for example by a timeout in the middleware
            if execution.end is not None:
                execution.end("shutdown")
            await self._until_ended(ending)
            raise
        if isinstance(ended, Succeeded):
            return task.decode_result(ended.result)
        if isinstance(ended, Stopped):
            raise StopRequested(ended.reason, execution.claimed.id, execution.claimed.number)
        if execution.interrupted is not None:
            raise asyncio.CancelledError
        if isinstance(ended, Slept):
            raise FallAsleep(ended.name, ended.seconds)
        raise outcomes.remote_error(ended)

    # -- how it ended --

    def _outcome_of_value(self, execution: Execution, value: Any) -> Outcome:
        return outcomes.of_timeout(execution) if execution.is_late else outcomes.outcome_of_return(value)


def _lacks_facts(execution: Execution, now: int) -> bool:
    """Whether the checks need facts from the store."""
    options, claimed = execution.options, execution.claimed
    if options.takes is not None:
        return True
    is_late = options.recurrence is not None and is_missed(claimed, options.recurrence, now)
    return is_late and execution.run_may_have_begun


def _needs_a_place(execution: Execution) -> bool:
    return execution.needs_mark or (execution.task is not None and execution.task.is_isolated)


def _bound(
    middleware: Middleware, execution: Execution, call: Callable[[], Coroutine[Any, Any, Any]]
) -> Callable[[], Coroutine[Any, Any, Any]]:
    return lambda: middleware(execution.context, call)
