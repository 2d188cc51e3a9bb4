"""Simulated time, and an event loop for each simulated process; which of them goes on next is drawn from a seed.

Within a process callbacks run in the order asyncio promises. Between processes there is no order: between any two
callbacks of one, any other may run, be killed, or stand still.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from taskharbor.clock import MICROS_PER_SECOND, Timer

STEP_MICROS = 20  # what running one callback takes
BURST = 6  # callbacks that a process may run before another one has its turn


class Stuck(AssertionError):
    """The simulation went round without time passing, or nothing is left that could ever happen."""


class SimulatedTask(asyncio.Task):
    """Its hash is a serial number: a set of tasks has the same order in every process of the test."""

    def __init__(self, coroutine: Any, *, loop: SimulatedLoop, **more: Any) -> None:
        self._serial = loop.universe.next_serial()
        super().__init__(coroutine, loop=loop, **more)

    def __hash__(self) -> int:
        return self._serial


class SimulatedFuture(asyncio.Future):
    def __init__(self, *, loop: SimulatedLoop) -> None:
        self._serial = loop.universe.next_serial()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class Universe:
    """All processes, one time, one source of chance."""

    def __init__(self, chance: random.Random, start: int) -> None:
        self.chance = chance
        self.now = start  # microseconds: the store's clock
        self.loops: list[SimulatedLoop] = []
        self.steps = 0
        self._timers: list[tuple[int, int, Any, SimulatedLoop | None]] = []
        self._serial = 0

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def at(self, micros: int, what: Callable[[], object]) -> None:
        """Something that happens to the processes, not in one of them."""
        heapq.heappush(self._timers, (micros, self.next_serial(), what, None))

    def timer(self, micros: int, handle: asyncio.TimerHandle, loop: SimulatedLoop) -> None:
        heapq.heappush(self._timers, (micros, self.next_serial(), handle, loop))

    def run(self, over: Callable[[], bool], until: int, steps_max: int) -> bool:
        """Go on until `over()` says so, at the latest at `until`; whether it was over."""
        chance, set_running = self.chance, asyncio._set_running_loop
        stop_at = self.steps + steps_max
        while not over():
            if self._timers and self._timers[0][0] <= self.now:
                self._fire()
                continue
            ready = [loop for loop in self.loops if loop.ready and loop.goes_on]
            if not ready:
                if not self._timers:
                    raise Stuck("nothing is left that could ever happen")
                if self._timers[0][0] > until:
                    return False
                self.now = self._timers[0][0]
                continue
            if self.now > until:
                return False
            loop = ready[0] if len(ready) == 1 else ready[int(chance.random() * len(ready))]
            set_running(loop)
            try:
                for _ in range(1 + int(chance.random() * BURST)):
                    if not (loop.ready and loop.goes_on):
                        break
                    handle = loop.ready.popleft()
                    if not handle._cancelled:
                        self.steps += 1
                        self.now += STEP_MICROS
                        handle._run()
            finally:
                set_running(None)
            if self.steps > stop_at:
                raise Stuck(f"more than {steps_max} steps, and it is not over")
        return True

    def _fire(self) -> None:
        _, _, what, loop = heapq.heappop(self._timers)
        if loop is None:
            what()
        elif not what._cancelled and not loop.is_closed():
            loop.ready.append(what)


_Loop: Any = asyncio.AbstractEventLoop  # whose other methods nothing here calls


class SimulatedLoop(_Loop):  # type: ignore[misc]
    """The event loop of one process. Killed, it never runs anything again, not even a `finally`."""

    def __init__(self, universe: Universe, process: Any) -> None:
        self.universe = universe
        self.process = process
        self.ready: deque[asyncio.Handle] = deque()
        self.goes_on = True
        self.errors: list[dict[str, Any]] = []
        self.signals: dict[int, Callable[[], object]] = {}
        self._closed = False
        universe.loops.append(self)

    def kill(self) -> None:
        self._closed = True
        self.goes_on = False
        self.ready.clear()
        self.universe.loops.remove(self)

    def time(self) -> float:
        return self.universe.now / MICROS_PER_SECOND

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self.ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.universe.timer(math.ceil(when * MICROS_PER_SECOND), handle, self)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left where it is, and passed over when its time has come."""

    def create_future(self) -> Any:
        return SimulatedFuture(loop=self)

    def create_task(self, coroutine: Any, **more: Any) -> Any:
        return SimulatedTask(coroutine, loop=self, **more)

    def add_signal_handler(self, number: int, callback: Callable[[], object]) -> None:
        self.signals[number] = callback

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.errors.append(context)


class ProcessClock:
    """The clock of one process: it may be wrong, and may be set, while real time goes on."""

    def __init__(self, universe: Universe, skew: int = 0) -> None:
        self.universe = universe
        self.skew = skew  # microseconds

    def now(self) -> int:
        return self.universe.now + self.skew

    def monotonic(self) -> float:
        return self.universe.now / MICROS_PER_SECOND

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
