"""A handler process; its argument is the descriptor of the socket to its worker.

It imports the program's tasks, calls the start hooks, and then handles one call after another in its main thread. A
second thread receives the worker's messages, and ends the process when the worker is gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from taskharbor.client.harbor import Harbor
from taskharbor.client.task import Task
from taskharbor.clock import SystemClock
from taskharbor.context import current_execution
from taskharbor.errors import PayloadError
from taskharbor.function_refs import MAIN_NAMES, FunctionRef, find, import_module, load_main
from taskharbor.records import NewJob, Progress
from taskharbor.rules.outcome import Failed, Slept
from taskharbor.sync import fastest_loop
from taskharbor.worker.handlers.isolation.link import Link, LogsToWorker, kill_own_group
from taskharbor.worker.handlers.isolation.messages import (
    AskToStop,
    Begun,
    Call,
    Cancel,
    CannotStart,
    ChildEnqueued,
    FellAsleep,
    Init,
    NotFound,
    ProgressReported,
    Raised,
    Ready,
    Returned,
    StepsRead,
    StepWritten,
    Stop,
    Stopped,
    ToProcess,
)
from taskharbor.worker.handlers.isolation.process_setup import (
    configure_like_worker,
    ignore_stop_signals,
    line_buffer_output,
    use_only_our_log_handler,
)
from taskharbor.worker.handlers.isolation.steps import IsolatedSteps, LinkedSteps
from taskharbor.worker.handlers.outcomes import error_text, of_failure, of_sleep, outcome_of_return, stop_in
from taskharbor.worker.handlers.steps import Steps
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.leases import HeldLease, StoreTime

logger = logging.getLogger("taskharbor.worker")


class IsolatedExecution(Execution, eq=False, kw_only=True):
    """An attempt as its handler sees it: progress, children and steps go to the worker."""

    serial: int
    link: Link
    linked_steps: LinkedSteps
    row_missing: bool = False

    @classmethod
    def for_call(cls, call: Call, task: Task[Any, Any, Any, Any], link: Link) -> IsolatedExecution:
        lease, time = HeldLease("", call.lease_expires_at), StoreTime(SystemClock())
        time.learn(call.started_at, time.asking())
        execution = cls(
            call.claimed,
            lease,
            task.harbor,
            time,
            None,  # type: ignore[arg-type]  # only a worker has a pipeline
            task,
            started_at=call.started_at,
            deadline=call.deadline,
            serial=call.serial,
            link=link,
            linked_steps=LinkedSteps(link, call.serial),
            row_missing=call.is_row_missing,
        )
        if call.claimed.options is not None:
            execution.read_options(call.claimed.options)
        return execution

    @property
    def steps(self) -> Steps:
        if self.kept_steps is None:
            self.kept_steps = IsolatedSteps(
                self, self.linked_steps, self.time, is_row_missing=self.row_missing
            )
        return self.kept_steps

    def keep_child(self, child: NewJob) -> None:
        self.link.send(ChildEnqueued(self.serial, child))

    def report(self, progress: Progress) -> None:
        self.link.send(ProgressReported(self.serial, progress))


class HandlerProcess:
    def __init__(self, link: Link, init: Init) -> None:
        self._link = link
        self._init = init
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._loop = fastest_loop()
        self._tasks: dict[tuple[FunctionRef, str], Task[Any, Any, Any, Any]] = {}
        self._harbor: Harbor | None = None  # for functions that no import has declared as a task
        self._import_errors: list[str] = []
        self._lock = threading.Lock()
        self._early_stops: list[AskToStop | Cancel] = []  # received before their call began
        self._execution: IsolatedExecution | None = None
        self._awaiting: asyncio.Task[Any] | None = None
        self._cancel = False  # cancel the call as soon as it can be cancelled

    def run(self, messages: Iterator[ToProcess]) -> None:
        threading.Thread(target=self._listen, args=(messages,), name="taskharbor-link", daemon=True).start()
        asyncio.set_event_loop(self._loop)
        try:
            self._start()
        except BaseException as error:  # noqa: BLE001 - imports may raise anything; the worker reports it
            self._link.send(CannotStart(error_text(error)))
            return
        self._link.send(Ready())
        while (call := self._calls.get()) is not None:
            self._handle(call)
        self._stop()

    # -- start and stop --

    def _start(self) -> None:
        for name in self._init.modules:
            try:
                if name in MAIN_NAMES:
                    if self._init.main is not None and "__mp_main__" not in sys.modules:
                        load_main(self._init.main)
                else:
                    import_module(name)
            except BaseException as error:
                self._import_errors.append(f"{name} cannot be imported: {error_text(error)}")
                logger.exception("a handler process cannot import %s", name)
        use_only_our_log_handler(self._link)
        for address in self._init.start_hooks:
            self._call_hook(find(address))

    def _stop(self) -> None:
        for address in reversed(self._init.stop_hooks):
            try:
                self._call_hook(find(address))
            except BaseException:
                logger.exception("a stop hook failed in a handler process")
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    def _call_hook(self, hook: Callable[[], Any]) -> None:
        answer = hook()
        if hasattr(answer, "__await__"):
            self._loop.run_until_complete(_awaited(answer))

    # -- messages from the worker --

    def _listen(self, messages: Iterator[ToProcess]) -> None:
        for message in messages:
            match message:
                case Call():
                    self._calls.put(message)
                case AskToStop() | Cancel():
                    self._receive_stop(message)
                case StepsRead() | StepWritten():
                    execution = self._execution
                    if execution is not None and execution.serial == message.serial:
                        execution.linked_steps.receive(message)
                case Stop():
                    self._calls.put(None)
        kill_own_group()

    def _receive_stop(self, message: AskToStop | Cancel) -> None:
        with self._lock:
            execution = self._execution
            if execution is None or execution.serial != message.serial:
                self._early_stops.append(message)  # the call has not begun, or has ended
            elif isinstance(message, AskToStop):
                execution.ask_to_stop(message.reason)
            else:
                self._cancel = True
                if self._awaiting is not None:
                    self._loop.call_soon_threadsafe(self._awaiting.cancel)

    # -- one call --

    def _handle(self, call: Call) -> None:
        self._link.send(Begun(call.serial))
        try:
            task = self._task(call)
        except BaseException as error:  # noqa: BLE001 - imports may raise anything
            errors = "; ".join([error_text(error), *self._import_errors])
            self._link.send(NotFound(call.serial, errors))
            return
        try:
            arguments = task.plan.decode(task.harbor.sealing.open(call.claimed.payload))
        except PayloadError as error:
            self._link.send(NotFound(call.serial, f"its process takes other arguments: {error}"))
            return
        context = contextvars.copy_context()
        if call.trace is not None:
            from taskharbor.telemetry import tracing

            context.run(tracing.enter, call.trace)
        execution = IsolatedExecution.for_call(call, task, self._link)
        ended = self._call_handler(execution, task, arguments, context)
        _flush()
        if isinstance(ended, Failed):
            self._link.send(Raised(call.serial, ended))
        elif isinstance(ended, Slept):
            self._link.send(FellAsleep(call.serial, ended.name, ended.seconds))
        elif isinstance(ended, Stopped):
            self._link.send(ended)
        else:
            self._link.send(Returned(call.serial, ended.result))

    def _call_handler(
        self,
        execution: IsolatedExecution,
        task: Task[Any, Any, Any, Any],
        arguments: dict[str, Any],
        context: contextvars.Context,
    ) -> Any:
        context.run(current_execution.set, execution)
        with self._lock:
            self._execution = execution
            self._cancel = False
            early_stops, self._early_stops = self._early_stops, []
        for message in early_stops:
            if message.serial == execution.serial:
                self._receive_stop(message)
        try:
            if task.is_async:
                value = self._await(execution, task, arguments, context)
            else:
                value = context.run(task.plan.call, arguments, execution.context)
            return outcome_of_return(value)
        except BaseException as error:  # noqa: BLE001 - anything a handler raises is its outcome
            if (reason := stop_in(execution, error)) is not None:
                return Stopped(execution.serial, reason)
            return of_sleep(error) or of_failure(error)
        finally:
            with self._lock:
                self._execution = self._awaiting = None

    def _await(
        self,
        execution: IsolatedExecution,
        task: Task[Any, Any, Any, Any],
        arguments: dict[str, Any],
        context: contextvars.Context,
    ) -> Any:
        coroutine = context.run(task.plan.call, arguments, execution.context)
        awaiting = self._loop.create_task(_awaited(coroutine), context=context)
        with self._lock:
            self._awaiting = awaiting
            if self._cancel:
                awaiting.cancel()
        return self._loop.run_until_complete(awaiting)

    # -- finding the handler --

    def _task(self, call: Call) -> Task[Any, Any, Any, Any]:
        key = (call.address, call.claimed.task)
        if key not in self._tasks:
            self._tasks[key] = self._find_task(call)
        return self._tasks[key]

    def _find_task(self, call: Call) -> Task[Any, Any, Any, Any]:
        """Return the task that the module declares, or make one of the function at that address."""
        found = function = find(call.address)
        while not isinstance(found, Task) and hasattr(found, "__wrapped__"):
            found = found.__wrapped__  # another decorator around the task
        harbor = None
        if isinstance(found, Task):
            if call.claimed.task in (found.name, *found.aliases):
                return found
            harbor, function = found.harbor, found.function  # the same function, declared under another name
        return Task(
            harbor or self._own_harbor(),
            function,
            name=call.claimed.task,
            parameter_aliases=call.parameter_aliases,
            options={},
        )

    def _own_harbor(self) -> Harbor:
        if self._harbor is None:
            self._harbor = Harbor(self._init.url)
        return self._harbor


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed by the handler or by the reader
            pass


def main() -> None:
    ignore_stop_signals()
    line_buffer_output()
    link = Link(int(sys.argv[1]))
    del sys.argv[1:]
    logging.getLogger().addHandler(LogsToWorker(link))
    messages = link.receive()
    init = next(messages, None)
    if not isinstance(init, Init):
        kill_own_group()
    configure_like_worker(init)
    HandlerProcess(link, init).run(messages)
