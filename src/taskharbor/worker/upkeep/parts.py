"""`Parts`: the long-lived tasks of a worker. Each runs until it is ended, and the failure of one ends all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from taskharbor.own_tasks import OwnTask, own_task

logger = logging.getLogger("taskharbor.worker")

RESUME_SECONDS = 0.01  # before a part that other code cancelled starts again


class Parts:
    """A task group of tasks that handlers cannot cancel, and that start again when other code cancels one of them."""

    def __init__(self) -> None:
        owner = asyncio.current_task()
        assert isinstance(owner, OwnTask), "a worker's parts belong to a task of its own"
        self._owner = owner
        self._all: list[OwnTask[None]] = []
        self._failures: list[BaseException] = []
        self._leaving = False
        self._has_ended_owner = False

    def start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> OwnTask[None]:
        part = own_task(self._kept(run))
        part.add_done_callback(self._ended)
        self._all.append(part)
        return part

    def _ended(self, part: asyncio.Task[None]) -> None:
        if part.cancelled() or (error := part.exception()) is None:
            return
        self._failures.append(error)
        if not self._leaving and not self._has_ended_owner:
            self._has_ended_owner = True
            self._owner.end()

    async def __aenter__(self) -> Parts:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        self._leaving = True
        if self._has_ended_owner:
            self._owner.uncancel()
        cancelled: asyncio.CancelledError | None = None
        while left := [part for part in self._all if not part.done()]:
            for part in left:
                part.end()
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as error:
                cancelled = error
        if self._failures:
            raise BaseExceptionGroup("parts of the worker failed", self._failures)
        if cancelled is not None:
            raise cancelled
        return False

    async def _kept(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        part = asyncio.current_task()
        assert isinstance(part, OwnTask), "`start` runs it as an OwnTask"
        pause = 0.0
        while True:
            try:
                if pause:
                    await asyncio.sleep(pause)
                    logger.warning("a part of the worker was cancelled without a stop; it goes on")
                return await run()
            except asyncio.CancelledError:
                if part.is_to_end or self._owner.is_to_end:
                    raise
                while part.cancelling():
                    part.uncancel()
                pause = RESUME_SECONDS
