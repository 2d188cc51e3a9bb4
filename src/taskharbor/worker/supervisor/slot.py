"""A seat: where one child works after the other, and beside it at most one that retires."""

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

    DONE = "done"  # by itself, leaving nothing behind
    REPLACE = "replace"  # by itself, to be replaced; perhaps it still has jobs, and no longer counts
    IDLE = "idle"  # the same, before it had done anything
    DIED = "died"
    FAILED_TO_START = "stillborn"  # died before it could begin


class WorkerSlot:
    """A child that retires is replaced at once, and stays until its handlers have ended by themselves.

    Its successor may not retire before it is gone, and goes on beyond its limits: so there are never more than two,
    however long handlers take.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        start: Callable[[WorkerConfig], Awaitable[ChildProcess | None]],
        live: Callable[[ChildProcess], Coroutine[Any, Any, ExitKind]],
    ) -> None:
        self._group = group
        self._start = start
        self._live = live
        self._predecessor: asyncio.Task[ExitKind] | None = None  # the life of one that retires

    @property
    def is_shared(self) -> bool:
        return self._predecessor is not None and not self._predecessor.done()

    async def predecessor_gone(self) -> None:
        if self._predecessor is not None:
            await asyncio.wait([self._predecessor])

    async def one_life(self, orders: WorkerConfig) -> ExitKind:
        """Start the next child; until it has ended, or retires."""
        child = await self._start(replace(orders, may_retire=not self.is_shared))
        if child is None:
            return ExitKind.IDLE
        if self._predecessor is not None:
            self._predecessor.add_done_callback(lambda life: _make_room(life, child))
        life = self._group.create_task(self._live(child))
        retiring = asyncio.ensure_future(self._leaves_its_place(child))
        try:
            await asyncio.wait([life, retiring], return_when=asyncio.FIRST_COMPLETED)
        finally:
            retiring.cancel()
        if life.done():
            return life.result()
        self._predecessor = life
        return ExitKind.REPLACE

    async def _leaves_its_place(self, child: ChildProcess) -> None:
        await child.retiring.wait()
        if child.left_idle:  # it ends in a moment, and the next one may do the same: not without a pause
            await asyncio.get_running_loop().create_future()
        await self.predecessor_gone()  # whatever the child has been told: two are enough


def _make_room(life: asyncio.Task[ExitKind], successor: ChildProcess) -> None:
    if not life.cancelled():  # by a supervisor that ends: then it may still be there
        successor.may_retire()
