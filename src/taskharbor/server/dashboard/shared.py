"""Documents that many tabs look at: read once, then shared for a moment."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

KEPT_MAX = 256
STALE_SECONDS = 15.0  # how old the answer for an open page may become while the store was asked enough
ASKED_EACH_SECOND = 0.1  # by open pages, in the long run; one question is up to six statements
ASKED_AT_ONCE = 3.0
SLOW_SECONDS = 0.05  # an answer that takes longer is renewed beside its readers
SHARE_OF_TIME = 0.05  # that reading one answer again and again may take: a slow one is read less often


class _Kept:
    """One answer, and the question for a newer one that is under way."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.asked_at: float | None = None  # when the answer was asked for; None: there is none yet
        self.took = 0.0  # how long the store needed for it
        self.task: asyncio.Task[Any] | None = None


class SharedDocuments:
    """Answers of the store by what was asked. Tabs that ask the same meanwhile wait for the same answer.

    Open pages ask again and again. Together they ask no more than a fixed number of questions in a second, however many
    they are: beyond it, they get an answer that is a little older. An answer that takes long, such as the depths of
    queues with a million jobs, is renewed while pages still get the one before.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._allowance = ASKED_AT_ONCE
        self._counted_at = time.monotonic()

    async def read(
        self,
        key: Hashable,
        seconds: float,
        ask: Callable[[], Awaitable[Any]],
        *,
        patient: bool = False,
        stale: float = STALE_SECONDS,
    ) -> Any:
        """Return the answer to `ask`, which may be up to `seconds` old. It is shared: do not change it.

        A `patient` reader takes an older one if the store was asked enough. One that was slow to read may be up to
        `stale` seconds old while it is renewed.
        """
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        age = None if kept.asked_at is None else time.monotonic() - kept.asked_at
        if age is not None and age < max(seconds, kept.took / SHARE_OF_TIME):
            return kept.answer
        is_usable = age is not None and age < stale
        if kept.task is None and (self._may_ask() or not (patient and is_usable)):
            kept.task = asyncio.ensure_future(self._ask(kept, ask))
            kept.task.add_done_callback(_looked_at)
        if is_usable and (kept.task is None or kept.took >= SLOW_SECONDS):
            return kept.answer
        assert kept.task is not None
        # One reader that leaves must not take the answer away from the others.
        return await asyncio.shield(kept.task)

    def forget(self) -> None:
        """An operator changed something, and wants to see it."""
        self._kept.clear()

    async def _ask(self, kept: _Kept, ask: Callable[[], Awaitable[Any]]) -> Any:
        begun = time.monotonic()
        try:
            kept.answer = await ask()
            kept.asked_at, kept.took = begun, time.monotonic() - begun
            return kept.answer
        finally:
            kept.task = None

    def _may_ask(self) -> bool:
        """Count one question, and return whether it is within the allowance of the open pages."""
        now = time.monotonic()
        grown = (now - self._counted_at) * ASKED_EACH_SECOND
        self._allowance, self._counted_at = min(ASKED_AT_ONCE, self._allowance + grown), now
        is_within = self._allowance >= 1
        self._allowance -= is_within
        return is_within


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Look at the exception, which else is reported as unseen if every tab has left."""
    if not task.cancelled():
        task.exception()
