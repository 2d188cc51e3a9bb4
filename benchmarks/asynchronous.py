"""A queue with an asynchronous interface: a contestant by a handful of coroutines, all on one loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.contestant import Contestant, Started, check_all_ran

T = TypeVar("T")

DRAIN_SECONDS_MAX = 540.0
TELL_SECONDS = 0.01


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed: it makes all of them faster."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class AsyncContestant(Contestant):
    """Its loop turns in a thread of its own for as long as the contestant lives, as it does in an application.

    A subclass calls `count_one` in its no-op handler and `started` as the first act of the latency one.
    """

    put_many_exists = True

    def setup(self, directory: Path) -> None:
        self.ran = 0
        self.expected = 0
        self.drained = asyncio.Event()
        self.loop = new_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self.open(directory))

    def close(self) -> None:
        self.run(self.shut())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    # -- what a subclass gives --

    @abstractmethod
    async def open(self, directory: Path) -> None: ...

    @abstractmethod
    async def shut(self) -> None: ...

    @abstractmethod
    async def put(self) -> None:
        """Enqueue one no-op job."""

    async def put_many(self, count: int) -> None:
        """Enqueue many of them by the call there is for it; `put_many_exists` says whether there is one."""
        raise NotImplementedError

    @abstractmethod
    async def put_probe(self, number: int) -> None: ...

    @abstractmethod
    def working(self) -> AbstractAsyncContextManager[None]:
        """The library's own worker, running until the block ends."""

    # -- what comes of it --

    def count_one(self) -> None:
        self.ran += 1
        if self.ran == self.expected:
            self.drained.set()

    def enqueue(self) -> None:
        self.run(self.put())

    def enqueue_one(self, count: int) -> float | None:
        return self.enqueue_concurrent(count, 1)

    def enqueue_concurrent(self, count: int, callers: int) -> float:
        return self.run(self.put_by_callers(count, callers))

    async def put_by_callers(self, count: int, callers: int) -> float:
        async def caller(share: int) -> None:
            for _ in range(share):
                await self.put()

        shares = [count // callers + (index < count % callers) for index in range(callers)]
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for share in shares:
                group.create_task(caller(share))
        return time.perf_counter() - begun

    def enqueue_bulk(self, count: int) -> float | None:
        return self.run(self.timed_put_many(count)) if self.put_many_exists else None

    async def timed_put_many(self, count: int) -> float:
        begun = time.perf_counter()
        await self.put_many(count)
        return time.perf_counter() - begun

    def drain_share(self, told: Callable[[int], None]) -> None:
        self.run(self.work_until_input_ends(told))

    async def work_until_input_ends(self, told: Callable[[int], None]) -> None:
        async with self.working():
            input_ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
            seen = -1
            while not input_ended.done():
                if self.ran != seen:
                    told(seen := self.ran)
                await asyncio.sleep(TELL_SECONDS)
        told(self.ran)

    def drain(self, count: int) -> float:
        return self.run(self.timed_drain(count))

    async def timed_drain(self, count: int) -> float:
        self.expected = count
        begun = time.perf_counter()
        async with self.working(), asyncio.timeout(DRAIN_SECONDS_MAX):
            await self.drained.wait()
            seconds = time.perf_counter() - begun
        check_all_ran(self.ran, count)  # after the worker has stopped: none ran twice either
        return seconds

    def probe(self, number: int) -> None:
        self.run(self.put_probe(number))

    def serve(self, started: Started) -> None:
        self.started = started
        self.run(self.work_without_end())

    async def work_without_end(self) -> None:
        async with self.working():
            await asyncio.Event().wait()
