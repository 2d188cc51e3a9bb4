"""What a simulated supervisor and its child say to each other: the real channel, over a simulated pair of sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.worker.supervisor.channel import LINE_MAX, Channel

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

DELAY_SECONDS = 0.004  # at most, if nobody stands still


class Wire:
    """One way of it. What was written arrives in order, also after the writer has died; then comes the end."""

    def __init__(self, world: World, to: Process) -> None:
        self._world = world
        self._arrives = 0
        self._is_closed = False
        self.reader = asyncio.StreamReader(limit=LINE_MAX, loop=to.loop)

    # -- as the channel uses its writer --

    @property
    def transport(self) -> Wire:
        return self

    def get_write_buffer_size(self) -> int:
        return len(self.reader._buffer)  # type: ignore[attr-defined]

    def is_closing(self) -> bool:
        return self._is_closed

    def write(self, data: bytes) -> None:
        self._at_its_time(lambda: self.reader.feed_data(data))

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._at_its_time(self.reader.feed_eof)

    def _at_its_time(self, what: Any) -> None:
        universe = self._world.universe
        delay = int(self._world.chance.random() * DELAY_SECONDS * MICROS_PER_SECOND)
        self._arrives = max(self._arrives + 1, universe.now + delay)
        universe.at(self._arrives, what)


class Pair:
    """Both ends; when one side has died, the other reads the end."""

    def __init__(self, world: World, parent: Process, child: Process) -> None:
        self._down, self._up = Wire(world, child), Wire(world, parent)
        self.parents = Channel(self._up.reader, self._down)  # type: ignore[arg-type]
        self.childs = Channel(self._down.reader, self._up)  # type: ignore[arg-type]

    def close(self) -> None:
        self._down.close()
        self._up.close()
