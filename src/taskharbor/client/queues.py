"""`harbor.queues`: list, pause and resume queues."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from taskharbor.client.actions import new_action
from taskharbor.client.operating import Operator
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.clock import from_micros
from taskharbor.codec import checked_name
from taskharbor.drivers.base import PauseRecord, Verb
from taskharbor.drivers.capabilities import Audit


class Queue(Struct, frozen=True):
    """A queue as it was when it was read."""

    name: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    oldest_ready_at: datetime | None
    oldest_ready_age: timedelta | None
    paused_by: str | None = None  # who paused it, if that is known
    paused_since: datetime | None = None

    @property
    def depth(self) -> int:
        """Jobs that are ready to run."""
        return self.ready


class Queues(Operator):
    """`harbor.queues`"""

    async def alist(self) -> list[Queue]:
        """List every queue that has runnable or running jobs, or is paused."""
        now = await self._driver.now()
        found = await self._driver.queues()
        pauses = await self._pauses() if any(q.paused for q in found) else {}
        return [
            Queue(
                q.name,
                q.paused,
                q.ready,
                q.scheduled,
                q.running,
                None if q.oldest_ready_at is None else from_micros(q.oldest_ready_at),
                None if q.oldest_ready_at is None else timedelta(microseconds=now - q.oldest_ready_at),
                pauses[q.name].by if q.name in pauses else None,
                from_micros(pauses[q.name].since) if q.name in pauses else None,
            )
            for q in found
        ]

    list = sync_method(alist)

    async def apause(self, name: str) -> None:
        """Pause a queue: workers claim no more of its jobs, and release those that have not begun."""
        await self._set_paused(name, True)

    pause = sync_method(apause)

    async def aresume(self, name: str) -> None:
        """Let workers claim this queue's jobs again."""
        await self._set_paused(name, False)

    resume = sync_method(aresume)

    async def _pauses(self) -> dict[str, PauseRecord]:
        """Who paused which queue, where the store knows."""
        audit = Audit.offered_by(self._driver)
        return {} if audit is None else {pause.queue: pause for pause in await audit.pauses()}

    async def _set_paused(self, name: str, paused: bool) -> None:
        queue = checked_name("queue", name)
        refuse_inside_transaction(self._harbor, "queues.pause()" if paused else "queues.resume()")
        if Audit.offered_by(self._driver) is None:
            await self._driver.pause(queue, paused)
            return
        action = new_action(Verb.PAUSE_QUEUE if paused else Verb.RESUME_QUEUE, subject=queue)
        await self._driver.pause(queue, paused, action=action)
