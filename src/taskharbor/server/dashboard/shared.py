"""Documents that many tabs look at: read once, then shared for a moment."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from enum import Enum
from typing import Any

from taskharbor.server.allowance import Allowance

KEPT_MAX = 256
STALE_SECONDS = 15.0  # how old an answer that takes long may become while it is renewed
QUERIES_EACH_SECOND = 1.0  # by open pages, in the long run; who is signed in takes some more
QUERIES_AT_ONCE = 12.0
QUERIES_OF_ONE = 3  # of a question that does not say how many statements it is
SLOW_SECONDS = 0.05  # an answer that takes longer is renewed beside its readers
SHARE_OF_TIME = 0.05  # that reading one answer again and again may take: a slow one is read less often


class NotNow(Exception):
    """Open pages have asked the store enough for the moment. This one stays as it is, and asks again later."""


class Reader(Enum):
    """Who reads an answer, and whether the store may be asked for it."""

    PERSON = "opens a page, and the store is asked"
    OPEN_PAGE = "follows the store, and what it asks is counted"
    LATE_PAGE = "follows the store as well, and gets only what is there: open pages have asked enough"


class _Kept:
    """One answer, and the question for a newer one that is under way."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.asked_at: float | None = None  # when the answer was asked for; None: there is none yet
        self.took = 0.0  # how long the store needed for it
        self.task: asyncio.Task[Any] | None = None


class SharedDocuments:
    """Answers of the store by what was asked. Tabs that ask the same meanwhile wait for the same answer.

    An answer that takes long, such as the depths of queues with a million jobs, is renewed while pages still get the
    one before.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        # Of the open pages of this process, all of them together. A page that is let in asks all that it needs, and
        # may leave a debt: a page that is shown in half would help no one.
        self.allowance = Allowance(QUERIES_AT_ONCE, QUERIES_EACH_SECOND)

    async def read(
        self,
        key: Hashable,
        seconds: float,
        ask: Callable[[], Awaitable[Any]],
        *,
        reader: Reader = Reader.PERSON,
        queries: int = QUERIES_OF_ONE,
        stale: float = STALE_SECONDS,
        wait: float | None = None,
    ) -> Any:
        """Return the answer to `ask`, which may be up to `seconds` old. It is shared: do not change it.

        One that was slow to read may be up to `stale` seconds old while it is renewed. A reader that waits no longer
        than `wait` seconds gets None if there is no answer by then; the question goes on. `queries` is how many
        statements the question is, for the allowance of the open pages.
        """
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        age = None if kept.asked_at is None else time.monotonic() - kept.asked_at
        if age is not None and age < max(seconds, kept.took / SHARE_OF_TIME):
            return kept.answer
        if kept.task is None:
            if reader is Reader.LATE_PAGE:
                raise NotNow
            if reader is Reader.OPEN_PAGE:
                self.allowance.spend(queries)
            kept.task = asyncio.ensure_future(self._ask(kept, ask))
            kept.task.add_done_callback(_looked_at)
        if age is not None and age < stale and kept.took >= SLOW_SECONDS:
            return kept.answer
        # One reader that leaves must not take the answer away from the others.
        task = kept.task
        if wait is None:
            return await asyncio.shield(task)
        done, _ = await asyncio.wait({task}, timeout=wait)
        return task.result() if done else None

    def forget(self) -> None:
        """An operator changed something, and wants to see it."""
        self._kept.clear()
        self.allowance.refill()

    async def _ask(self, kept: _Kept, ask: Callable[[], Awaitable[Any]]) -> Any:
        begun = time.monotonic()
        try:
            kept.answer = await ask()
            kept.asked_at, kept.took = begun, time.monotonic() - begun
            return kept.answer
        finally:
            kept.task = None


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Look at the exception, which else is reported as unseen if every tab has left."""
    if not task.cancelled():
        task.exception()
