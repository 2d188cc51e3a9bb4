"""The process's signals, and the loop that hears them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from taskharbor.sync import fastest_loop
from taskharbor.worker.upkeep.unresponsive import UNWIND_SECONDS

logger = logging.getLogger("taskharbor.worker")


class Stoppable(Protocol):
    """A worker, as the signals of a process see it."""

    _takes_interrupts: bool

    def stop(self) -> None: ...
    def _report_loop_stopped(self) -> None: ...


def run_with_signals(main: Callable[[], Coroutine[Any, Any, None]], worker: Stoppable) -> None:
    """A loop of its own for a worker; SIGTERM and SIGINT stop it."""

    async def with_signals() -> None:
        loop = asyncio.get_running_loop()
        installed = []
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, worker.stop)
                installed.append(number)
            except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
                logger.debug("signals are left alone: not the main thread")
        worker._takes_interrupts = signal.SIGINT in installed
        try:
            await main()
        finally:
            worker._takes_interrupts = False
            for number in installed:
                loop.remove_signal_handler(number)

    loop = fastest_loop()
    try:
        asyncio.set_event_loop(loop)
        _run_to_the_end(loop, with_signals(), worker)
    finally:
        # Not asyncio.Runner: it would wait without end for a handler that does not let itself be cancelled.
        leftover = asyncio.all_tasks(loop)
        for task in leftover:
            task.cancel()
        if leftover:
            _run_to_the_end(loop, asyncio.wait(leftover, timeout=UNWIND_SECONDS), worker)
        _run_to_the_end(loop, loop.shutdown_asyncgens(), worker)
        asyncio.set_event_loop(None)
        loop.close()


def _run_to_the_end(
    loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, Any], worker: Stoppable
) -> None:
    """Run `main` in this loop, also when a handler stops the loop: it is the worker's, and the worker goes on."""
    task = loop.create_task(main)
    while True:
        try:
            loop.run_until_complete(task)
            return
        except RuntimeError:
            if task.done() or inspect.getcoroutinestate(main) == inspect.CORO_CREATED:
                raise  # what `main` raises, or that no loop can run here
            worker._report_loop_stopped()
