"""Run a coroutine for a synchronous caller, so that both surfaces share one implementation.

A driver whose verbs never have to suspend (memory, SQLite) is stepped in the caller's own thread: no
loop, no second thread, no hop. `in_sync_call` tells such a driver that it must not suspend.

Any other driver needs a loop that keeps turning between two calls, because its connections belong to it:
one private loop in a thread of its own, one for each process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

T = TypeVar("T")


class _Calling(threading.local):
    depth = 0


_calling = _Calling()


def in_sync_call() -> bool:
    return _calling.depth > 0


def on_loop_thread() -> bool:
    """Whether this runs on the private loop, on behalf of a synchronous caller in another thread."""
    return _loop_thread.is_current()


def run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, in this thread."""
    _calling.depth += 1
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    else:
        coroutine.close()
        raise RuntimeError("a verb of an inline driver suspended inside a synchronous call")
    finally:
        _calling.depth -= 1


def run_on_loop_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that may suspend, on the private loop of this process, and wait for it here."""
    return _loop_thread.run(coroutine)


def fastest_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed."""
    return _loop_maker()()


@cache
def _loop_maker() -> Callable[[], asyncio.AbstractEventLoop]:
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    maker: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return maker


def import_ahead() -> None:
    """Import now what the first call on the private loop would.

    A program may fork while another thread makes that call. If that thread is importing, the child has the lock of the
    import and not the thread that releases it, and the child's own first call waits without end.
    """
    import concurrent.futures.thread  # noqa: F401 - looks up names of hosts
    import encodings.idna  # noqa: F401 - and reads them

    with suppress(ImportError):  # none on Windows
        import pwd  # noqa: F401 - who connects, if the URL does not say
    _loop_maker()


class _LoopThread:
    """A loop in a daemon thread, started on first use; it lives as long as the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._inner: _LoopThread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        from concurrent.futures import Future

        if self._thread is threading.current_thread():
            return self._second_loop().run(coroutine)
        loop = self._running()
        outcome: Future[T] = Future()

        def begin() -> None:
            task = loop.create_task(coroutine)
            task.add_done_callback(lambda task: hand_over(task, outcome))
            outcome.add_done_callback(
                lambda outcome: outcome.cancelled() and loop.call_soon_threadsafe(task.cancel)
            )

        # Ctrl-C may come at any point here, and ends the wait for the coroutine. (It is why this is not
        # `run_coroutine_threadsafe`: interrupted before it returns, that leaves nothing to cancel.)
        try:
            loop.call_soon_threadsafe(begin)  # in the caller's context, which the task takes over
            return outcome.result()
        except BaseException:
            outcome.cancel()  # nothing, if it is the coroutine's own error
            raise

    def is_current(self) -> bool:
        here = self._thread is threading.current_thread()
        return here or (self._inner is not None and self._inner.is_current())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = fastest_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="taskharbor-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def _second_loop(self) -> _LoopThread:
        """Return a second loop, for a synchronous call from a subscriber on this one, which cannot wait for itself."""
        if self._inner is None:
            self._inner = _LoopThread()
        return self._inner


def hand_over(task: asyncio.Task[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        if outcome.set_running_or_notify_cancel():
            outcome.set_exception(error)
    elif outcome.set_running_or_notify_cancel():
        outcome.set_result(task.result())


_loop_thread = _LoopThread()
_left_behind: list[_LoopThread] = []


def _start_anew_after_fork() -> None:
    """Start anew after a fork, which threads do not survive. Do not close the loop: the parent uses its selector."""
    global _loop_thread  # noqa: PLW0603 - one for each process
    _left_behind.append(_loop_thread)
    _loop_thread = _LoopThread()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_start_anew_after_fork)
