"""Documents that many tabs look at: read once, then shared for a moment."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

KEPT_MAX = 256


class SharedDocuments:
    """Answers of the store by what was asked. Tabs that ask the same meanwhile wait for the same answer."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def read(self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer to `ask`, which may be up to `seconds` old. It is shared: do not change it."""
        now = time.monotonic()
        begun, task = self._kept.get(key, (0.0, None))
        if task is None or (task.done() and now - begun >= seconds) or _failed(task):
            task = asyncio.ensure_future(_run(ask))
            task.add_done_callback(
                _failed
            )  # looks at the exception, which else is reported if every tab has left
            self._kept[key] = (now, task)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        # One reader that leaves must not take the answer away from the others.
        return await asyncio.shield(task)

    def forget(self) -> None:
        """An operator changed something, and wants to see it."""
        self._kept.clear()


async def _run(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
