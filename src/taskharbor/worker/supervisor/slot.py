"""A worker slot: room for one working child, and beside it at most one that retires."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any

from msgspec.structs import replace

from taskharbor.worker.supervisor.channel import WorkerConfig
from taskharbor.worker.supervisor.child_process import ChildProcess


class ExitKind(Enum):
    """How a child ended."""

    DONE = "done"  # it exited by itself and left no jobs
    REPLACE = "replace"  # it exited by itself, or retires with jobs still running: start its successor
    IDLE = "idle"  # the same, before it had begun any job
    DIED = "died"
    FAILED_TO_START = "failed to start"


class WorkerSlot:
    """Replaces a retiring child at once, and lets it stay until its handlers have ended.

    The successor may not retire before its predecessor is gone, even beyond its own limits: so there are never more
    than two, however long handlers take.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        start: Callable[[WorkerConfig], Awaitable[ChildProcess | None]],
        supervise: Callable[[ChildProcess], Coroutine[Any, Any, ExitKind]],
    ) -> None:
        self._group = group
        self._start = start
        self._supervise = supervise
        self._predecessor: asyncio.Task[ExitKind] | None = None  # supervises a child that retires

    @property
    def is_shared(self) -> bool:
        return self._predecessor is not None and not self._predecessor.done()

    async def wait_for_predecessor(self) -> None:
        if self._predecessor is not None:
            await asyncio.wait([self._predecessor])

    async def run_next_child(self, config: WorkerConfig) -> ExitKind:
        """Start the next child and wait until it has exited or retires."""
        child = await self._start(replace(config, may_retire=not self.is_shared))
        if child is None:
            return ExitKind.IDLE
        if self._predecessor is not None:
            self._predecessor.add_done_callback(lambda done: _allow_retirement(done, child))
        supervising = self._group.create_task(self._supervise(child))
        retiring = asyncio.ensure_future(self._wait_for_retirement(child))
        try:
            await asyncio.wait([supervising, retiring], return_when=asyncio.FIRST_COMPLETED)
        finally:
            retiring.cancel()
        if supervising.done():
            return supervising.result()
        self._predecessor = supervising
        return ExitKind.REPLACE

    async def _wait_for_retirement(self, child: ChildProcess) -> None:
        """Wait until the child's successor may start."""
        await child.retiring.wait()
        if child.retired_idle:  # wait for its exit instead: a successor may retire idle as well, so back off
            await asyncio.get_running_loop().create_future()
        await self.wait_for_predecessor()  # never a third one, whatever the child does


def _allow_retirement(predecessor: asyncio.Task[ExitKind], successor: ChildProcess) -> None:
    if not predecessor.cancelled():  # cancelled when the supervisor ends: the process may still run
        successor.allow_retirement()
