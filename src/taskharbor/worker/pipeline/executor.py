"""The executor: runs handlers in a bounded number of slots and tells how each of them ended.

It knows no driver. Executions come from a buffer, what they take of other jobs from `results`; outcomes go to
`finish`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Set
from typing import Any

from taskharbor.builtin_tasks import why_unknown
from taskharbor.clock import MICROS_PER_SECOND, Clock
from taskharbor.context import current_execution
from taskharbor.errors import PayloadError, StopRequested, Unrecoverable
from taskharbor.records import Reason, Takes
from taskharbor.rules.outcome import (
    CancelledOnRequest,
    Expired,
    HandedBack,
    Missed,
    Outcome,
    Slept,
    Succeeded,
)
from taskharbor.rules.recurrence import is_missed
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.handlers import outcomes
from taskharbor.worker.handlers.isolation.messages import Stopped
from taskharbor.worker.handlers.isolation.pool import CannotBegin
from taskharbor.worker.handlers.isolation.process import Ended
from taskharbor.worker.handlers.isolation.running import ProcessRunner
from taskharbor.worker.handlers.slot import Slot
from taskharbor.worker.handlers.stepping import Stepped
from taskharbor.worker.handlers.steps import FallAsleep
from taskharbor.worker.handlers.threads import Call, HandlerThreads
from taskharbor.worker.pipeline.dependency_results import Results
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.leases import HeldLease, StoreTime

logger = logging.getLogger("taskharbor.worker")

CLOSE_SECONDS = 1.0  # how long cancelled slots may take to end, in the end
BREATH_EVERY = 32  # executions that never suspend before a slot lets the loop go round

Middleware = Callable[[Any, Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]


class Executor:
    def __init__(
        self,
        concurrency: int,
        *,
        clock: Clock,
        time: StoreTime,
        middlewares: Iterable[Middleware],
        processes: ProcessRunner,
        begin: Callable[[Execution], None] | None,
        mark_at_most_once: Callable[[Execution], Coroutine[Any, Any, bool]],
        has_begun: Callable[[Execution], Coroutine[Any, Any, bool]],
        results: Results,
        finish: Callable[[Execution, Outcome], None],
        drop: Callable[[Execution], None],
        low: Callable[[], None],
        is_over: Callable[[HeldLease, int], bool],
        is_ending: Callable[[], bool],
        cells: memoryview[int] | None = None,
        takes_interrupts: bool = False,
    ) -> None:
        self.concurrency = concurrency
        self.buffer: deque[Execution] = deque()  # claimed, not begun
        self.running: dict[Execution, None] = {}  # begun, not ended
        self.begun = 0  # ever; the fetcher takes the rate from it
        self.is_held = False  # what has ended has to be settled before anything else begins
        self.low_water = 0  # `low` is called when the buffer has fallen to this
        self._clock = clock
        self._time = time
        self._middlewares = tuple(middlewares)
        self._begin = begin
        self._mark_at_most_once = mark_at_most_once
        self._has_begun = has_begun
        self._results = results
        self._finish = finish
        self._drop = drop
        self._low = low
        self._is_over = is_over
        self._is_ending = is_ending  # whether the application ends the whole worker
        self._cells = cells  # where a supervisor sees begins and ends, whatever becomes of this process
        self._takes_interrupts = takes_interrupts  # Ctrl-C is no exception here, so one was the handler's
        self._threads = HandlerThreads(concurrency)
        self._processes = processes
        self._slots: list[Slot] = []
        self._idle: list[asyncio.Future[None]] = []
        self._torn_down = False
        self._starting = 0  # taken from the buffer, not begun yet
        self._closing = False
        self._context = contextvars.copy_context()

    @property
    def free(self) -> int:
        return max(0, self.concurrency - len(self.running) - self._starting)

    @property
    def is_idle(self) -> bool:
        return not self.buffer and not self.running and not self._starting

    def is_idle_but_for(self, abandoned: Set[Execution]) -> bool:
        """Whether nothing is under way but these."""
        return not self.buffer and not self._starting and self.running.keys() <= abandoned

    @property
    def unbegun(self) -> int:
        return len(self.buffer) + self._starting

    def offer(self, executions: Iterable[Execution]) -> None:
        self.buffer.extend(executions)
        self._wake_a_slot()

    def hold(self, is_held: bool) -> None:
        """Begin nothing until this is called with False. What runs goes on."""
        self.is_held = is_held
        self._wake_a_slot()

    def take_back(self, unwanted: Callable[[Execution], bool]) -> list[Execution]:
        """Remove executions that have not begun."""
        taken = [execution for execution in self.buffer if unwanted(execution)]
        if taken:
            kept = [execution for execution in self.buffer if not unwanted(execution)]
            self.buffer.clear()
            self.buffer.extend(kept)
        return taken

    def begin_no_more(self, *, is_retiring: bool = False) -> list[Execution]:
        """What has not begun; from here on nothing does. Who retires lets the rest go on as it would."""
        self._closing = True
        if not is_retiring:  # else a middleware may call its handler once more
            self._processes.begin_no_more()
        return self.take_back(lambda execution: True)

    async def close(self) -> None:
        self._torn_down = True
        for slot in self._slots:
            slot.end()
        if self._slots:  # a handler that will not end is left behind
            await asyncio.wait(self._slots, timeout=CLOSE_SECONDS)
        self._threads.close()
        await self._processes.close()
        await self._results.close()

    # -- slots --

    def _wake_a_slot(self) -> None:
        """One is enough: each wakes the next when its handler suspends and there is more to do."""
        if not self.buffer or self.is_held or len(self.running) + self._starting >= self.concurrency:
            return
        while self._idle:
            sleeper = self._idle.pop()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        if len(self._slots) < self.concurrency:
            self._slots.append(Slot(self._serve_slot(), loop=asyncio.get_running_loop()))

    async def _serve_slot(self) -> None:
        loop = asyncio.get_running_loop()
        slot = asyncio.current_task()
        assert isinstance(slot, Slot), "only slots are served here"
        without_breath = 0
        while True:
            try:
                if not self.buffer or self.is_held or len(self.running) + self._starting >= self.concurrency:
                    sleeper = loop.create_future()
                    self._idle.append(sleeper)
                    await sleeper
                    continue
                await self._execute_guarded(self._next(), slot)
                without_breath += 1
                if without_breath == BREATH_EVERY:
                    without_breath = 0
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._torn_down:
                    raise
                while slot.cancelling():  # without a stop: it goes on
                    slot.uncancel()

    def _next(self) -> Execution:
        execution = self.buffer.popleft()
        if len(self.buffer) == self.low_water:
            self._low()
        return execution

    async def _execute_guarded(self, execution: Execution, slot: Slot) -> None:
        """Nothing that one job brings about may cost a slot: the jobs behind it would wait for ever."""
        try:
            await self._execute(execution, slot)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            if execution.started_at is None:
                self._processes.give_back(execution)
                self._finish(execution, HandedBack())
            raise
        except BaseException as error:  # noqa: BLE001 - logged, and the job's own failure
            log_line(
                logger, logging.ERROR, "Job {job} could not be executed", execution.fields(), error=error
            )
            self.running.pop(execution, None)
            self._processes.give_back(execution)
            self._finish(execution, outcomes.of_failure(error))

    async def _execute(self, execution: Execution, slot: Slot) -> None:
        now = self._time.now()
        claimed = execution.claimed
        if execution.lease.lost:
            self._drop(execution)  # somebody else may have it by now: not begun
            return
        if self._closing:  # it came with a claim that was under way
            self._finish(execution, HandedBack())
            return
        if now >= execution.lease.expires_at and self._is_over(execution.lease, now):
            # As far as we know. The store decides; if it refuses, it hears that this worker is alive.
            self._finish(execution, HandedBack())
            return
        task = execution.task
        if task is None:
            self._finish(
                execution, outcomes.outcome_of_unrunnable(Reason.UNKNOWN_TASK, why_unknown(claimed.task))
            )
            return
        if claimed.expires_at is not None and now >= claimed.expires_at:
            self._finish(execution, Expired())
            return
        if execution.unreadable is not None:
            self._finish(
                execution, outcomes.outcome_of_unrunnable(Reason.INVALID_PAYLOAD, execution.unreadable)
            )
            return
        payload = claimed.payload
        if execution.options.takes is not None:
            taken = await self._payload_with_results(execution, execution.options.takes)
            if taken is None:
                return
            execution.payload = payload = taken
            now = self._time.now()  # reading took its time, which is not the handler's
        try:
            arguments = task.plan.decode(payload)
        except PayloadError as error:
            self._finish(execution, outcomes.outcome_of_unrunnable(Reason.INVALID_PAYLOAD, str(error)))
            return
        if execution.options.recurrence is not None and await self._is_missed(execution, now):
            return
        if execution.needs_mark or task.is_isolated:
            if not await self._is_ready(execution):
                return
            now = self._time.now()  # that took its time, which is not the handler's
        elif execution.is_to_stop("cancel"):  # asked for while it waited here for its turn
            self._finish(execution, CancelledOnRequest())
            return
        self.begun += 1
        execution.started_at = now
        if self._cells is not None:
            self._cells[execution.cell] = now
        self.running[execution] = None
        if self._begin is not None:
            self._begin(execution)
        if self._middlewares:
            await self._run_async(execution, slot, self._wrapped(execution, arguments))
        elif task.is_isolated:
            self._processes.call(execution, lambda ended: self._process_ended(execution, ended))
            self._arm_timer(execution)
        elif task.is_async:
            context = execution.context if task.plan.takes_context else None
            await self._run_async(execution, slot, task.plan.call(arguments, context))
        else:
            self._run_in_thread(execution, arguments)

    async def _is_missed(self, execution: Execution, now: int) -> bool:
        """Whether an occurrence came too late for its schedule, and was dropped for that."""
        claimed, recurrence = execution.claimed, execution.options.recurrence
        if recurrence is None or claimed.due_at is None or not is_missed(claimed, recurrence, now):
            return False
        self._starting += 1
        try:
            has_begun = await self._has_begun(execution)
        finally:
            self._starting -= 1
        if has_begun and not self._closing:
            return False  # a run that has begun is brought to its end, however late
        late = (now - claimed.due_at) / MICROS_PER_SECOND
        missed = Missed(late, recurrence.misfire_grace)
        self._finish(execution, HandedBack() if has_begun else missed)
        return True

    async def _is_ready(self, execution: Execution) -> bool:
        """Make it ready to begin; if it cannot, or may not any more, that is told."""
        expires_at = execution.claimed.expires_at
        unready = await self._make_ready(execution)
        if unready is None and expires_at is not None and self._time.now() >= expires_at:
            unready = Expired()
        if unready is None and execution.is_to_stop("cancel"):
            unready = CancelledOnRequest()
        if unready is None and not execution.lease.lost:
            return True
        self._processes.give_back(execution)
        if unready is None:
            self._drop(execution)
        else:
            self._finish(execution, unready)
        return False

    async def _make_ready(self, execution: Execution) -> Outcome | None:
        """What has to be there before some handlers may begin; otherwise what becomes of the job."""
        assert execution.task is not None, "only known tasks are executed"
        self._starting += 1
        try:
            if execution.task.is_isolated and not self._processes.take_idle(execution):
                self._wake_a_slot()  # the others need not wait for this one's process
                if not await self._processes.take(execution):
                    return HandedBack()
            marked = not execution.needs_mark or await self._mark_at_most_once(execution)
        except CannotBegin as error:
            return outcomes.outcome_of_unrunnable(Reason.UNKNOWN_TASK, str(error))
        finally:
            self._starting -= 1
        # Not begun, and it shall not be: it is not ours, or the worker is about to end.
        return None if marked and not self._closing else HandedBack()

    async def _payload_with_results(self, execution: Execution, takes: Takes) -> str | None:
        """With what it takes of those it depends on; None if it cannot begin, which is told."""
        self._starting += 1
        self._wake_a_slot()
        try:
            payload = await self._results.payload(execution, takes)
        except (Unrecoverable, PayloadError) as error:
            # Not unrunnable: no other version of the task could have what is missing.
            self._finish(execution, outcomes.of_failure(Unrecoverable(str(error))))
            return None
        finally:
            self._starting -= 1
        if self._closing:
            self._finish(execution, HandedBack())
            return None
        return payload

    def _ended(self, execution: Execution, outcome: Outcome) -> None:
        del self.running[execution]
        if self._cells is not None and execution.started_at is not None:
            self._cells[execution.cell] = -execution.started_at
        if execution.timer is not None:
            execution.timer.cancel()
        if execution.process is not None:  # a middleware did not call it
            self._processes.give_back(execution)
        if execution.is_lost:
            self._drop(execution)
        else:
            self._finish(execution, outcome)
        if self.buffer:
            self._wake_a_slot()
        else:
            self._low()

    # -- async handlers --

    async def _run_async(self, execution: Execution, slot: Slot, coroutine: Coroutine[Any, Any, Any]) -> None:
        execution.slot, slot.execution = slot, execution
        context = self._context.copy()
        context.run(current_execution.set, execution)
        try:
            value = await Stepped(coroutine, context, lambda: self._suspended(execution))
        except asyncio.CancelledError as error:
            if execution.interrupted is None and self._torn_down:
                raise
            if execution.disturbed and execution.interrupted is None and self._is_ending():
                execution.interrupted = "shutdown"  # it was cancelled with all the rest
            outcome = outcomes.outcome_of_error(execution, error)
        except GeneratorExit:
            raise  # the slot is being closed
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self._takes_interrupts:
                raise  # meant for the whole process
            outcome = outcomes.outcome_of_error(execution, error)
        else:
            outcome = self._outcome_of_value(execution, value)
        execution.slot = slot.execution = None
        if slot.cancelling():  # by us, or by the handler itself: its own affair either way
            await self._absorb_cancellation(slot)
        self._ended(execution, outcome)

    async def _absorb_cancellation(self, slot: Slot) -> None:
        """The cancellation was the handler's, not the slot's; one that it did not meet must not hit the next."""
        while slot.cancelling():
            slot.uncancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._torn_down:
                raise
            while slot.cancelling():
                slot.uncancel()

    def _suspended(self, execution: Execution) -> None:
        self._arm_timer(execution)
        self._wake_a_slot()

    def _arm_timer(self, execution: Execution) -> None:
        if execution.deadline is not None:
            remaining = (execution.deadline - self._time.now()) / MICROS_PER_SECOND
            execution.timer = self._clock.call_later(
                max(0.0, remaining), lambda: execution.interrupt("timeout")
            )

    async def _wrapped(self, execution: Execution, arguments: dict[str, Any]) -> Any:
        """The handler inside the middlewares, the first declared outermost."""
        call: Callable[[], Coroutine[Any, Any, Any]] = lambda: self._innermost(execution, arguments)  # noqa: E731
        for middleware in reversed(self._middlewares):
            call = _bound(middleware, execution, call)
        return await call()

    async def _innermost(self, execution: Execution, arguments: dict[str, Any]) -> Any:
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
            lambda: context.run(task.plan.call, arguments, execution.context),
            lambda call: None if ended.done() else ended.set_result(call),
        )
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            call.interrupt()
            await asyncio.wait([ended])  # the slot stays occupied until the handler really ends
            raise
        if call.error is not None:
            raise call.error
        return call.value

    # -- sync handlers --

    def _run_in_thread(self, execution: Execution, arguments: dict[str, Any]) -> None:
        task = execution.task
        assert task is not None, "only known tasks are executed"
        execution.loop = asyncio.get_running_loop()
        context = self._context.copy()
        context.run(current_execution.set, execution)
        plan, handler_context = task.plan, execution.context
        call = self._threads.call(
            lambda: context.run(plan.call, arguments, handler_context),
            lambda call: self._thread_ended(execution, call),
        )
        execution.end = lambda why: call.interrupt()
        self._arm_timer(execution)

    def _thread_ended(self, execution: Execution, call: Call) -> None:
        if call.error is not None:
            outcome = outcomes.outcome_of_error(execution, call.error)
        else:
            outcome = self._outcome_of_value(execution, call.value)
        self._ended(execution, outcome)

    # -- handlers in processes --

    def _process_ended(self, execution: Execution, ended: Ended) -> None:
        if isinstance(ended, Succeeded) and execution.is_late:
            self._ended(execution, outcomes.of_timeout(execution))
        else:
            self._ended(execution, outcomes.of_remote(execution, ended))

    async def _value_from_process(self, execution: Execution) -> Any:
        """What `call()` gives to a middleware: the result as JSON carries it, or an error that stands for its own."""
        task = execution.task
        assert task is not None, "only known tasks are executed"
        if (
            execution.process is None  # the middleware calls it a second time
            and not self._processes.take_idle(execution)
            and not await self._processes.take(execution)
        ):
            raise asyncio.CancelledError
        ending: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._processes.call(execution, ending.set_result)
        try:
            ended = await asyncio.shield(ending)
        except asyncio.CancelledError:  # by a timeout of the middleware's own, say
            if execution.end is not None:
                execution.end("shutdown")
            await asyncio.wait([ending])
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


def _bound(
    middleware: Middleware, execution: Execution, call: Callable[[], Coroutine[Any, Any, Any]]
) -> Callable[[], Coroutine[Any, Any, Any]]:
    return lambda: middleware(execution.context, call)
