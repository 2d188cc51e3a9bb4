"""Threads for synchronous handlers: long-lived, and only as many as are needed at once.

A thread switch for each job would cost more than most handlers do. The threads take calls from one queue, and deliver
finished calls to the loop in batches.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

logger = logging.getLogger("taskharbor.worker")

GROW_AFTER_SECONDS = 0.002  # calls that wait longer than this get another thread
GROW_AGAIN_SECONDS = 1.0  # after a thread could not be started


class Interruption(BaseException):
    """Raised inside a handler's thread to make it end; not an Exception, so that few handlers swallow it."""


class Call:
    """One call of a handler, and its result or error."""

    __slots__ = (
        "_arguments",
        "_finished",
        "_function",
        "_interrupted",
        "_lock",
        "_thread_id",
        "about",
        "done",
        "error",
        "value",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Call], None],
        about: Any = None,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self.done = done
        self.about = about  # whatever `done` needs to know, so that it need not be a function of its own
        self.value: Any = None
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._interrupted = False
        self._finished = False

    def run(self) -> None:
        """Call the handler; runs in the thread."""
        try:
            self._call()
            self._finish()
        except Interruption as error:  # it arrived after the handler's end, before `_finish` recorded it
            self.value, self.error = None, error
            self._finish()

    def _call(self) -> None:
        try:
            with self._lock:
                self._thread_id = threading.get_ident()
                if self._interrupted:  # while it waited for a thread
                    raise Interruption
            self.value = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - the executor decides what it means
            self.error = error

    def _finish(self) -> None:
        while True:
            try:
                with self._lock:
                    if not self._finished:
                        self._finished = True
                        # A requested interruption that has not arrived must not hit the next call. Clear it only if
                        # there is one: Python 3.11 keeps a request to raise nothing, and hangs under a tracer.
                        if self._interrupted:
                            _raise_in_thread(threading.get_ident(), None)
                return
            except Interruption as error:  # it arrived just now
                self.value, self.error = None, error

    def interrupt(self, _why: object = None) -> None:
        """Raise `Interruption` inside the handler, once, unless it has ended; runs on the loop."""
        with self._lock:
            was_interrupted, self._interrupted = self._interrupted, True
            if not was_interrupted and not self._finished and self._thread_id is not None:
                _raise_in_thread(self._thread_id, Interruption)


class HandlerThreads:
    def __init__(self, limit: int, delivered: Callable[[], None] = lambda: None) -> None:
        self._limit = limit
        self._delivered = delivered  # called on the loop after each batch of finished calls
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._finished: deque[Call] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._delivery_is_due = False  # the loop will call `_deliver`
        self._growing: asyncio.TimerHandle | None = None

    def call(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Call], None],
        about: Any = None,
    ) -> Call:
        """Run `function(*arguments)` in a thread; `done` is called on the loop when it has ended."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        call = Call(function, arguments, done, about)
        is_first = not self._threads
        if is_first:
            self._add_thread()  # before the call is there to be taken: perhaps the system has no thread left
        self._calls.put(call)
        if is_first or self._growing is not None:
            return call
        if len(self._threads) < self._limit and not self._calls.empty():
            self._growing = self._loop.call_later(GROW_AFTER_SECONDS, self._grow)
        return call

    def _grow(self) -> None:
        self._growing = None
        try:
            for _ in range(min(self._calls.qsize(), self._limit - len(self._threads))):
                self._add_thread()
        except RuntimeError as error:  # the system has no thread left; those that there are serve meanwhile
            logger.warning("a further thread for handlers could not be started yet: %s", error)
            assert self._loop is not None, "it has called this"
            self._growing = self._loop.call_later(GROW_AGAIN_SECONDS, self._grow)

    def _add_thread(self) -> None:
        thread = threading.Thread(
            target=self._serve, name=f"taskharbor-handler-{len(self._threads) + 1}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            self._finished.append(call)
            del call  # an idle thread keeps no job in memory
            if not self._delivery_is_due:
                self._delivery_is_due = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)  # type: ignore[union-attr]
                except RuntimeError:  # the loop is closed: no caller waits for this call
                    return

    def _deliver(self) -> None:
        # Reset first: a call that finishes from here on schedules another delivery.
        self._delivery_is_due = False
        while self._finished:
            call = self._finished.popleft()
            call.done(call)
        self._delivered()

    def close(self) -> None:
        """Let the threads end; a busy thread ends after its call."""
        if self._growing is not None:
            self._growing.cancel()
        for _ in self._threads:
            self._calls.put(None)


class ThreadsMaker(Protocol):
    """Makes the threads of one run of a worker."""

    def __call__(self, limit: int, delivered: Callable[[], None]) -> HandlerThreads: ...


def _raise_in_thread(thread_id: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if exception is None else ctypes.py_object(exception)
    )
