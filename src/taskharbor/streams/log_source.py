"""What the sources of jobs on top of a log have in common: answers that need no store, and the end of the consumer."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from taskharbor.drivers.base import (
    CancelRequests,
    Driver,
    ExpiredLease,
    Extended,
    Extension,
    Heartbeat,
    JobSource,
    PlainSuccesses,
    SettleAnswer,
    SettleResult,
    Transition,
)
from taskharbor.records import State
from taskharbor.streams.operators import Operators
from taskharbor.streams.taken import Changes
from taskharbor.worker.supervisor.channel import LostMessage

BUFFER_BYTES = 16 * 1_048_576  # of messages that no handler has begun

H = TypeVar("H")  # a message that was taken from the log


class LogSource(JobSource, Generic[H]):
    """What a worker needs of a source of jobs, where a message under a lease is in the memory of this process alone."""

    def __init__(self, store: Driver, queue: str, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self.clock = store.clock
        self._loop = loop
        self._changes = Changes(self.clock)
        self.operators = Operators(store, queue, self._changes.announce)
        self.losses: dict[str, LostMessage] = {}  # by the ids of their jobs; the worker sets it
        self._settling: set[asyncio.Future[Any]] = set()
        self.is_closing = False  # nothing more is taken from the log
        self._failure: asyncio.Future[None] = loop.create_future()

    @abstractmethod
    def _pop(self, job_id: str) -> H | None:
        """Let go of a message; return it if it was here."""

    @abstractmethod
    def _end(self, ended: Iterable[H]) -> None:
        """Note that messages have ended."""

    @abstractmethod
    def workers_ended(self) -> None:
        """Wait for no handler any more: what is not finished comes again."""

    @abstractmethod
    async def _settle_each(self, transitions: Sequence[Transition], now: int) -> list[SettleResult]:
        """Settle a batch that may hold any ending."""

    # -- what the worker asks --

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        """Extend by itself: no other worker has these messages while their partitions are this consumer's."""
        instant = self.clock.now() if now is None else now
        extended = [Extended(each.token, SettleAnswer.DONE, instant + each.lease) for each in extensions]
        return Heartbeat(instant, extended, self.operators.paused, self.operators.holds)

    async def cancel_requests(self, tokens: Sequence[str], since: int | None = None) -> CancelRequests:
        return CancelRequests(0)  # of a message that is no job of the store yet, no caller asks it

    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> ExpiredLease | None:
        return None

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        instant = self.clock.now() if now is None else now
        if not isinstance(transitions, PlainSuccesses):
            return await self._settle_each(transitions, instant)
        popped = [self._pop(job_id) for job_id in transitions.ids]
        self._end([each for each in popped if each is not None])
        done = SettleResult(SettleAnswer.DONE, State.SUCCEEDED, at=instant)  # reports tell how long it took
        if None not in popped:
            return [done] * len(popped)
        return [done if each is not None else SettleResult(SettleAnswer.NOT_RUNNING) for each in popped]

    def change_token(self) -> int:
        return self._changes.token

    async def wait_for_change(self, token: int, seconds: float) -> None:
        await self._changes.wait(token, seconds)

    # -- the consumer's thread --

    def failed(self, error: Exception) -> None:
        """Let `until_failure` raise this. The consumer's thread calls it when it ends."""

        def tell() -> None:
            if not self._failure.done():
                self._failure.set_exception(error)

        self._loop.call_soon_threadsafe(tell)

    async def until_failure(self) -> None:
        await asyncio.shield(self._failure)
