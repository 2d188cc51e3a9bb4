"""What the worker's tests share: waiting for signals, and a store that can be made to fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from taskharbor import Harbor, Worker
from taskharbor.client.handle import Attempt, Job
from taskharbor.clock import Clock
from taskharbor.drivers.base import (
    CancelRequests,
    Claim,
    ClaimRequest,
    ExpiredLease,
    Extension,
    Heartbeat,
    Note,
    SettleResult,
    Transition,
)
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.records import AttemptRecord, State
from taskharbor.telemetry.logs import Line

PATIENCE_SECONDS = 60.0  # real ones: how long a test waits for something that should come at once


def said(record: logging.LogRecord) -> str:
    """What a log line says in words, before its fields."""
    return record.msg.sentence if isinstance(record.msg, Line) else record.getMessage()


async def until(condition: Callable[[], Any]) -> None:
    """Let the loop go round until something is so; it may be a thread that makes it so."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come about"
        await asyncio.sleep(0.0005)


async def until_state(job: Job[Any], *states: State) -> Job[Any]:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while (found := await job.arefresh()).state not in states:
        assert time.monotonic() < give_up_at, f"{found} did not become {states}"
        await asyncio.sleep(0.0005)
    return found


async def soon(awaitable: Any) -> Any:
    """What should come without any time having to pass."""
    return await asyncio.wait_for(awaitable, PATIENCE_SECONDS)


async def attempts_of(job: Job[Any]) -> list[Attempt]:
    """Oldest first."""
    return (await job.ahistory(limit=100))[::-1]


async def statuses(job: Job[Any]) -> list[str]:
    return [str(attempt.status) for attempt in await attempts_of(job)]


async def the_job(harbor: Harbor, job: Job[Any]) -> Job[Any]:
    return await harbor.jobs.aget(job.id)


@asynccontextmanager
async def working(harbor: Harbor, *, pace: float = 0.0, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs meanwhile. A test that fails does not wait for its handlers."""
    worker = Worker(harbor, **options)
    worker._expected_pace = pace  # begins a second: with many it claims ahead from the start
    async with worker:
        try:
            yield worker
        except BaseException:
            worker.stop()
            worker.stop()
            raise


class FaultyDriver(MemoryDriver):
    """A store that can be away, slow, or picky: `fail[verb] = lambda *args: error or None`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.fail: dict[str, Callable[..., BaseException | None]] = {}
        self.before: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self.after: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self.calls: Counter[str] = Counter()

    async def _gate(self, verb: str, *args: Any) -> None:
        self.calls[verb] += 1
        if verb in self.before:
            await self.before[verb]()
        if verb in self.fail and (error := self.fail[verb](*args)) is not None:
            raise error

    async def _answer(self, verb: str) -> None:
        if verb in self.after:
            await self.after[verb]()

    async def open_for_work(self) -> None:
        await self._gate("open_for_work")
        await super().open_for_work()

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Claim:
        await self._gate("claim", request)
        answer = await super().claim(request, now=now)
        await self._answer("claim")
        return answer

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        await self._gate("extend", extensions)
        answer = await super().extend(extensions, now=now)
        await self._answer("extend")
        return answer

    async def cancel_requests(self, tokens: Sequence[str], since: int | None = None) -> CancelRequests:
        await self._gate("cancel_requests", tokens)
        return await super().cancel_requests(tokens, since)

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        await self._gate("settle", transitions)
        answer = await super().settle(transitions, now=now)
        await self._answer("settle")
        return answer

    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> Any:
        await self._gate("note", notes)
        return await super().note(notes, now=now)

    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        await self._gate("history", job_id)
        return await super().history(job_id, limit)

    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> ExpiredLease | None:
        await self._gate("take_expired", token)
        return await super().take_expired(token, lease, now=now)
