"""Large bodies: few at a time, and decoded in a thread, so that the event loop serves others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from taskharbor.server.errors import ApiError
from taskharbor.server.shares import Shares

T = TypeVar("T")

LARGE_BYTES = 65_536  # more than this is large
LARGE_BODIES_MAX = 8  # in memory
CLIENT_LARGE_BODIES_MAX = 4  # of one token, or of one address
WAIT_SECONDS_MAX = 30.0  # for a place


class LargeBodies:
    """The places for large bodies. A request without a place waits, and its body waits in the network."""

    def __init__(self) -> None:
        self._shares = Shares(LARGE_BODIES_MAX, CLIENT_LARGE_BODIES_MAX)
        self._waiting: list[asyncio.Future[None]] = []
        # One thread, so that the event loop has its share of the GIL.
        self._thread = ThreadPoolExecutor(1, "taskharbor-json")

    @contextmanager
    def place(self, key: str) -> Iterator[Place]:
        """Give a request a place, which it takes once its body is large, and free it afterwards."""
        place = Place(self, key)
        try:
            yield place
        finally:
            if place.is_taken:
                self._shares.give_back(key)
                for waiter in self._waiting:
                    if not waiter.done():
                        waiter.set_result(None)

    async def take(self, key: str) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while not self._shares.has_room_for(key):
                    await self._change()
        except TimeoutError:
            raise ApiError(
                503,
                "busy",
                f"the server takes only a few bodies of more than {LARGE_BYTES:,} bytes at a time, and none ended; "
                "try again later",
                headers={"Retry-After": "5", "Connection": "close"},
            ) from None
        self._shares.take(key)

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            self._waiting.remove(waiter)

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


class Place:
    """One request's place among the large bodies."""

    def __init__(self, bodies: LargeBodies, key: str) -> None:
        self._bodies = bodies
        self._key = key
        self.is_taken = False

    async def grow(self, size: int) -> None:
        """Wait for a place if this size of the body is large."""
        if size > LARGE_BYTES and not self.is_taken:
            await self._bodies.take(self._key)
            self.is_taken = True

    async def beside(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function whose time grows with the body: in a thread if the body is large, otherwise directly."""
        return await self._bodies.run(function, *arguments) if self.is_taken else function(*arguments)
