"""Enqueues that come while another one is being stored share the next statement, and so one commit.

Fifty callers need no more round trips, and no more flushes of the server's disk, than one. No caller waits for
others to come: a call that finds nothing under way is stored at once.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from taskharbor.drivers.base import Enqueued, have_keys, jobs_size
from taskharbor.drivers.postgres.connections import ALONE_BYTES
from taskharbor.errors import StoreError
from taskharbor.own_tasks import own_task
from taskharbor.records import NewJob

BATCH_MAX = 1000  # jobs in one statement
ALONE_FROM = 200  # jobs; that many of one caller are a batch already, and no other caller waits for it

Store = Callable[[Sequence[NewJob], int | None], Awaitable[list[Enqueued]]]


class _Call(Struct):
    jobs: Sequence[NewJob]
    size: int
    now: int | None
    stored: asyncio.Future[list[Enqueued]]


class EnqueueBatcher:
    """`store` is called with the jobs of one caller or of several; one caller's invalid job never fails another's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = (
            weakref.WeakKeyDictionary()
        )

    async def store(self, jobs: Sequence[NewJob], now: int | None) -> list[Enqueued]:
        # Storing a key may have to wait for another client's transaction; no other caller has to.
        if len(jobs) >= ALONE_FROM or have_keys(jobs):
            return await self._store(jobs, now)
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            mine = self._loops[loop] = _OfLoop(self._store)
        return await mine.store(jobs, now)


class _OfLoop:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._busy = False
        self._waiting: list[_Call] = []
        self._task: asyncio.Task[None] | None = None  # held, or it might be collected in the middle

    async def store(self, jobs: Sequence[NewJob], now: int | None) -> list[Enqueued]:
        if self._busy:
            size = jobs_size(jobs)
            call = _Call(jobs, size, now, asyncio.get_running_loop().create_future())
            self._waiting.append(call)
            return await call.stored
        self._busy = True
        try:
            return await self._store(jobs, now)
        finally:
            self._next()

    def _next(self) -> None:
        if self._waiting:
            self._task = own_task(self._store_waiting())
        else:
            self._busy = False

    async def _store_waiting(self) -> None:
        batch = self._take()
        try:
            await self._store_batch(batch)
        finally:
            for call in batch:
                if not call.stored.done():  # this task was cancelled: the loop ends
                    call.stored.cancel()
            self._next()

    def _take(self) -> list[_Call]:
        """Those that came first, as many as make a batch, with one and the same time."""
        now, count, size = self._waiting[0].now, 0, 0
        batch: list[_Call] = []
        while self._waiting and self._waiting[0].now == now and count < BATCH_MAX:
            size += self._waiting[0].size
            if batch and size > ALONE_BYTES:
                break
            batch.append(self._waiting.pop(0))
            count += len(batch[-1].jobs)
        return [call for call in batch if not call.stored.cancelled()]

    async def _store_batch(self, batch: list[_Call]) -> None:
        if len(batch) > 1:
            try:
                answers = iter(await self._store([job for call in batch for job in call.jobs], batch[0].now))
            except StoreError as error:  # it may have happened anyway: only the caller may repeat it
                for call in batch:
                    _fail(call, error)
                return
            except Exception:  # noqa: BLE001 - one of them got something wrong: each by itself finds out who
                pass
            else:
                for call in batch:
                    _resolve(call, [next(answers) for _ in call.jobs])
                return
        for call in batch:
            try:
                _resolve(call, await self._store(call.jobs, call.now))
            except Exception as error:  # noqa: BLE001 - it belongs to the caller, who waits for it
                _fail(call, error)


def _fail(call: _Call, error: Exception) -> None:
    if not call.stored.done():
        call.stored.set_exception(error)


def _resolve(call: _Call, answers: list[Enqueued]) -> None:
    if not call.stored.done():  # its caller may have given up: the jobs are stored anyway
        call.stored.set_result(answers)
