"""The process's signals, and the loop that hears them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from taskharbor.calling import fastest_loop
from taskharbor.worker.stubborn import UNWIND_SECONDS

if TYPE_CHECKING:
    from taskharbor.worker.worker import Worker

logger = logging.getLogger("taskharbor.worker")


def run_with_signals(main: Callable[[], Coroutine[Any, Any, None]], worker: Worker) -> None:
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
        loop.run_until_complete(with_signals())
    finally:
        # Not asyncio.Runner: it would wait for ever for a handler that does not let itself be cancelled.
        leftover = asyncio.all_tasks(loop)
        for task in leftover:
            task.cancel()
        if leftover:
            loop.run_until_complete(asyncio.wait(leftover, timeout=UNWIND_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
