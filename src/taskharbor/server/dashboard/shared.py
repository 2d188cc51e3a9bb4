"""Documents that many tabs look at: read once, then shared for a moment."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

KEPT_MAX = 256
STALE_SECONDS = 15.0  # how old the answer for an open page may become while the store was asked enough
ASKED_EACH_SECOND = 0.3  # by open pages, in the long run; one question is up to six statements
ASKED_AT_ONCE = 4.0


class SharedDocuments:
    """Answers of the store by what was asked. Tabs that ask the same meanwhile wait for the same answer.

    Open pages ask again and again. Together they ask no more than a fixed number of questions in a second, however many
    they are: beyond it, they get an answer that is a little older.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()
        self._allowance = ASKED_AT_ONCE
        self._counted_at = time.monotonic()

    async def read(
        self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[Any]], *, patient: bool = False
    ) -> Any:
        """Return the answer to `ask`, which may be up to `seconds` old. It is shared: do not change it.

        A `patient` reader takes an older one if the store was asked enough.
        """
        now = time.monotonic()
        begun, task = self._kept.get(key, (0.0, None))
        if task is None or _failed(task) or (task.done() and self._is_due(now - begun, seconds, patient)):
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

    def _is_due(self, age: float, seconds: float, patient: bool) -> bool:
        """Whether an answer of this age is too old, and the store may be asked again."""
        if age < seconds:
            return False
        now = time.monotonic()
        grown = (now - self._counted_at) * ASKED_EACH_SECOND
        self._allowance, self._counted_at = min(ASKED_AT_ONCE, self._allowance + grown), now
        if patient and self._allowance < 1 and age < STALE_SECONDS:
            return False
        self._allowance -= 1
        return True


async def _run(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
