"""TaskHarbor's own asyncio tasks, on a loop that handlers share.

A handler that cancels every task it finds (`for task in asyncio.all_tasks(): task.cancel()`) must end neither its
worker nor a call of the store. The context of the `cancel` call shows where it comes from: a handler, the tasks it has
started and its callbacks have `current_execution` set. Any other call comes from the application.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar

from taskharbor.context import current_execution
from taskharbor.sync import in_sync_call

T = TypeVar("T")

serials = itertools.count(1)


class OwnTask(asyncio.Task[T]):
    """A task that its owner ends with `end`, and the application with `cancel`. A handler cannot cancel it."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], *, loop: asyncio.AbstractEventLoop) -> None:
        self._serial = next(serials)  # a set of them has the same order in every run
        self.is_to_end = False
        super().__init__(coroutine, loop=loop, context=_outside())

    def __hash__(self) -> int:
        return self._serial

    def end(self) -> None:
        """Cancel it, even from a handler's context."""
        self.is_to_end = True
        super().cancel()

    def cancel(self, msg: Any = None) -> bool:
        meddler = current_execution.get()
        if meddler is None:
            return super().cancel(msg)
        meddler.meddled()
        return False


def own_task(coroutine: Coroutine[Any, Any, T]) -> OwnTask[T]:
    return OwnTask(coroutine, loop=asyncio.get_running_loop())


async def result_of(task: OwnTask[T]) -> T:
    """Return the task's result. If the application cancels this call, end the task first.

    The waiting task is the application's, so a handler finds it as well. A handler that cancels this one among others
    of ours is refused. One that cancels this one alone means the application, and so does a Ctrl-C, which Python may
    handle in the middle of any handler.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        waiting = _Waiting(task)
        try:
            await waiting
        except asyncio.CancelledError as error:
            cancelled = error
            task.end()
    if cancelled is None or (not task.cancelled() and task.exception() is not None):
        return task.result()
    raise cancelled


async def finished(coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the coroutine's result. If this call is cancelled, let the coroutine finish first, within these seconds.

    It is for a change of the store that has to be reported: once the store has committed, only its answer says what to
    report. A synchronous call has no loop, and nothing cancels it.
    """
    if in_sync_call():
        return await coroutine
    task = own_task(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=seconds)
        if task.done() and not task.cancelled():
            task.exception()  # the cancellation counts, so nothing else would fetch it
        raise
    finally:
        task.end()


class _Waiting(asyncio.Future[None]):
    """The future by which the current task waits for another to end."""

    def __init__(self, task: OwnTask[Any]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        waiter = asyncio.current_task()
        assert waiter is not None, "a coroutine is awaited in a task"
        self._waiter = waiter
        self._task = task
        self._within = current_execution.get()  # a worker may run inside a handler, which may cancel it
        task.add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[Any]) -> None:
        if not self.done():
            self.set_result(None)

    def cancel(self, msg: Any = None) -> bool:
        """Called by the waiting task's own `cancel`, before that returns."""
        meddler = current_execution.get()
        if meddler is None or meddler is self._within:
            self._task.is_to_end = True  # at once, because the same step may cancel others, which check this
            return super().cancel(msg)
        self._waiter.uncancel()
        # Only after the handler's current step is it known whether it cancels others of ours, too.
        self.get_loop().call_soon(self._decide, meddler, context=contextvars.Context())
        return True  # False would cancel the waiting task when it resumes

    def _decide(self, meddler: Any) -> None:
        if not meddler.has_meddled and not self.done():
            self._waiter.cancel()


def _outside() -> contextvars.Context:
    """Copy the current context without a handler's execution."""
    context = contextvars.copy_context()
    context.run(current_execution.set, None)
    return context
