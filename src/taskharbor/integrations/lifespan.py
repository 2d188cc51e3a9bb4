"""`harbor.lifespan(…)`: a worker inside an ASGI application, started and stopped with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.worker import Worker

logger = logging.getLogger("taskharbor")

# How long an application's start waits for the worker. A worker waits for its store as long as that is away; a server
# cannot be interrupted while its application starts.
START_SECONDS = 5.0

State = Mapping[str, Any] | None
Inner = Callable[[Any], AbstractAsyncContextManager[Any]]


class Lifespan:
    """The lifespan of an application: called with it, as ASGI frameworks do, or entered by `async with`."""

    def __init__(self, harbor: Harbor, worker: bool | Worker, inner: Inner | None) -> None:
        self._harbor = harbor
        self._worker = _checked_worker(harbor, worker)
        if inner is not None and not callable(inner):
            raise ConfigurationError(
                "inner takes the lifespan of the application, a function of the application that returns an "
                f"asynchronous context manager, not {shorten(inner)}; decorate it with @asynccontextmanager"
            )
        self._inner = inner
        self._entered: AbstractAsyncContextManager[State] | None = None

    def __call__(self, app: Any) -> AbstractAsyncContextManager[Any]:
        return self._around(app)

    async def __aenter__(self) -> State:
        if self._entered is not None:
            raise ConfigurationError(
                "this lifespan() is entered already; call harbor.lifespan(…) for each block"
            )
        self._entered = self._around(None)
        try:
            return await self._entered.__aenter__()
        except BaseException:
            self._entered = None
            raise

    async def __aexit__(self, *error: Any) -> bool | None:
        assert self._entered is not None, "a block that was not entered is not left"
        entered, self._entered = self._entered, None
        return await entered.__aexit__(*error)

    @asynccontextmanager
    async def _around(self, app: Any) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._harbor.aclose)
            # Handlers may use what the application opens, so the worker starts after it and stops before it.
            state: State = None
            if self._inner is not None:
                state = await stack.enter_async_context(self._inner(app))
            worker = self._made_worker()
            if worker is not None:
                await stack.enter_async_context(_working(worker))
            yield state

    def _made_worker(self) -> Worker | None:
        if self._worker is not True:
            return self._worker or None
        from taskharbor.worker import Worker

        return Worker(self._harbor)


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    """Run a worker in this loop. The process is the application's: its signals and garbage collection stay."""
    started = asyncio.Event()
    running = asyncio.get_running_loop().create_task(worker._work(started=started))
    waiting = asyncio.ensure_future(started.wait())
    try:
        await asyncio.wait([waiting, running], timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # what keeps it from starting keeps the application from starting
        elif not started.is_set():
            logger.warning("the application starts while its worker %s waits for the store", worker.name)
        report = partial(_report_early_end, worker)
        running.add_done_callback(report)
        try:
            yield
        finally:
            running.remove_done_callback(report)
            worker.stop()
            await running
    finally:
        waiting.cancel()
        if not running.done():  # the start was cancelled, so nothing else ends the worker
            running.cancel()
            await asyncio.wait([running])


def _report_early_end(worker: Worker, running: asyncio.Task[None]) -> None:
    """Log that the worker has ended and the application goes on: its jobs wait for another worker."""
    error = None if running.cancelled() else running.exception()
    logger.error(
        "worker %s has ended while its application runs; it executes no more jobs until the application starts again",
        worker.name,
        exc_info=error,
    )


def _checked_worker(harbor: Harbor, worker: object) -> Worker | bool:
    if isinstance(worker, bool):
        return worker
    from taskharbor.worker import Worker

    if not isinstance(worker, Worker):
        raise ConfigurationError(
            f"worker is True, False or a Worker of the harbor, not {shorten(worker)}; "
            "for example harbor.lifespan(worker=Worker(harbor, concurrency=10))"
        )
    if worker.harbor is not harbor:
        raise ConfigurationError("worker belongs to another harbor; make it with Worker(harbor, …)")
    return worker
