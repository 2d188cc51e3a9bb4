"""The store as verbs use it: the first use of its connections checks its schema."""

from __future__ import annotations

from typing import TypeVar

from taskharbor.clock import Clock
from taskharbor.drivers.postgres import schema
from taskharbor.drivers.postgres.connections import Connections, Lane, Work

T = TypeVar("T")


class OpenedStore:
    def __init__(self, connections: Connections, dsn: str, schema: str, clock: Clock | None) -> None:
        self.is_checked = False
        self._connections = connections
        self._dsn = dsn
        self._schema = schema
        self._clock = clock  # None: the server's decides

    async def open(self) -> None:
        if not self.is_checked:
            await self._connections.run(Lane.REST, lambda s: schema.ensure(s, self._dsn, self._schema))
            self.is_checked = True

    def time(self, now: int | None) -> int | None:
        """The time that was given, or None for the server's."""
        return now if now is not None or self._clock is None else self._clock.now()

    async def run(self, lane: Lane, work: Work[T], now: int | None = None, *, prompt: bool = False) -> T:
        if not self.is_checked:
            await self.open()
        return await self._connections.run(lane, work, self.time(now), prompt=prompt)

    async def transact(self, lane: Lane, work: Work[T], now: int | None = None, *, prompt: bool = False) -> T:
        if not self.is_checked:
            await self.open()
        return await self._connections.transact(lane, work, self.time(now), prompt=prompt)
