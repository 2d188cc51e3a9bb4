"""How a synchronous test drains: handlers with `def` run in the test's own thread, and waiting takes no time.

The worker's event loop runs in a thread beside the test. While every handler waits and nothing else is under way, the
loop moves the test's clock to the next timer. So a handler that awaits `asyncio.sleep(60)` under a timeout of 30
seconds times out at once.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.testing.clock import TestingClock
from taskharbor.worker.handlers.threads import Call, HandlerThreads

REAL_SECONDS = 0.01  # shorter waits, such as the committer's for a full batch, do not move the clock
_CLOSE = 1e-6  # seconds that floats may differ by
_OWN_THREADS = ("taskharbor-", "asyncio_")  # the loop knows what they do


class TestThread(HandlerThreads):
    """Gives the calls of synchronous handlers to the thread that serves `inbox`: the test's."""

    __test__ = False

    def __init__(self, inbox: SimpleQueue[Callable[[], None] | None], delivered: Callable[[], None]) -> None:
        super().__init__(1, delivered)
        self._inbox = inbox
        self.under_way = 0
        self.raised: BaseException | None = None  # what must end the test, and not only the handler

    def call(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Call], None],
        about: Any = None,
    ) -> Call:
        def ended(call: Call) -> None:
            self.under_way -= 1
            if self.raised is None and _is_for_test(call.error):
                self.raised = call.error
            done(call)

        self.under_way += 1
        return super().call(function, arguments, ended, about)

    def _add_thread(self) -> None:
        self._threads.append(threading.current_thread())  # stands for the test's
        self._inbox.put(self._serve)


def _is_for_test(error: BaseException | None) -> bool:
    """Whether the test must see it: Ctrl-C, or pytest's own `fail`, `skip` and timeout."""
    if isinstance(error, KeyboardInterrupt):
        return True
    pytest = sys.modules.get("_pytest.outcomes")
    return pytest is not None and isinstance(error, pytest.OutcomeException)


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that moves the clock instead of waiting, up to `limit_seconds` in all; then it calls `on_limit`."""

    def __init__(self, clock: TestingClock, limit_seconds: float, on_limit: Callable[[], None]) -> None:
        self.skipped = 0.0
        self.waited = 0.0  # really, for sockets, threads and short pauses
        self._clock = clock
        self._limit_seconds = limit_seconds
        self._on_limit: Callable[[], None] | None = on_limit
        self._short: set[float] = set()  # when short pauses end
        self._in_threads = 0  # calls of `run_in_executor` that have not ended
        self._others = set(threading.enumerate())
        self.is_busy: Callable[[], bool] = lambda: False
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        return self.skipped + self.waited

    def call_later(  # type: ignore[override]  # the arguments' types add nothing here
        self, delay: float, callback: Callable[..., Any], *args: Any, **more: Any
    ) -> asyncio.TimerHandle:
        handle = super().call_later(delay, callback, *args, **more)
        if 0 < delay <= REAL_SECONDS:
            self._short.add(handle.when())
        return handle

    def is_short(self, timeout: float) -> bool:
        """Whether the next timer, due in `timeout` seconds, was set for a short pause."""
        now = self.time()
        self._short = {when for when in self._short if when > now}
        return timeout <= REAL_SECONDS and any(when <= now + timeout + _CLOSE for when in self._short)

    def run_in_executor(  # type: ignore[override]  # the arguments' types add nothing here
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._left_thread)
        return future

    def _left_thread(self, _: object) -> None:
        self._in_threads -= 1

    def waits_in_vain(self) -> bool:
        """Whether nothing but time can wake the loop: no handler computes, no thread and no socket is awaited."""
        if self._in_threads or self.is_busy():
            return False
        known = self._others
        return not any(
            thread not in known and not thread.name.startswith(_OWN_THREADS)
            for thread in threading.enumerate()
        )

    def skip(self, seconds: float | None) -> bool:
        """Move the clock by `seconds`, or to its next timer if that is sooner; return whether it moved."""
        due = self._clock.next_timer()
        if due is not None:
            until = (due - self._clock.now()) / MICROS_PER_SECOND
            seconds = until if seconds is None else min(seconds, until)
        if seconds is None or self._on_limit is None:
            return False
        self.skipped += seconds
        self._clock.advance(seconds)
        if self.skipped > self._limit_seconds:
            on_limit, self._on_limit = self._on_limit, None
            on_limit()
        return True


class _SkippingSelector(selectors.BaseSelector):
    """The selector of a `SkippingLoop`: where it would wait, the loop skips."""

    def __init__(self, loop: SkippingLoop) -> None:
        self._real = selectors.DefaultSelector()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._real.select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if timeout is not None and self._loop.is_short(timeout):
            found = self._real.select(timeout)
            self._loop.waited += timeout
            return found
        # One file is the loop's own, by which threads wake it.
        if len(self._real.get_map()) == 1 and self._loop.waits_in_vain() and self._loop.skip(timeout):
            return []
        began = time.monotonic()
        found = self._real.select(REAL_SECONDS)
        self._loop.waited += time.monotonic() - began
        return found

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()
