"""What a worker holds: its live leases, and its idea of the store's time."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from taskharbor.clock import MICROS_PER_SECOND, Clock

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from taskharbor.worker.supervisor_link import SupervisorLink


class StoreTime:
    """The store's time, estimated from what it last said: a worker's own clock may be wrong.

    Between two answers it goes on by the monotonic clock. The wall clock may be set at any moment, and a handler
    must not time out, nor a lease seem to be over, because of that.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - self.asking()

    def now(self) -> int:
        return self.asking() + self._ahead

    def asking(self) -> int:
        """By our own clock: when the store is being asked. For `learn`."""
        return round(self._clock.monotonic() * MICROS_PER_SECOND)

    def learn(self, store_now: int, asked_at: int) -> None:
        """The store read its clock at some moment between our asking and its answer.

        An estimate that agrees with this is kept: an answer that took long must not make us late.
        """
        least, most = store_now - self.asking(), store_now - asked_at
        self._ahead = min(max(self._ahead, least), most)


class HeldLease:
    """A lease this worker holds, and the jobs under it that are not settled yet."""

    __slots__ = ("alone", "blocks", "executions", "expires_at", "lost", "supervisor", "token")

    def __init__(
        self, token: str, expires_at: int, alone: bool = False, supervisor: SupervisorLink | None = None
    ) -> None:
        self.token = token
        self.expires_at = expires_at
        self.supervisor = supervisor  # extends it from another process
        self.alone = alone  # it holds a suspect
        self.lost = False  # the store said that it is no longer ours
        self.executions: dict[str, Execution] = {}
        self.blocks: tuple[int, ...] = ()  # where it is published to a supervisor

    def is_over(self, now: int) -> bool:
        """Whether its time has run out, as far as this worker and its supervisor know."""
        if now < self.expires_at:
            return False
        self.refresh()
        return now >= self.expires_at

    def refresh(self) -> None:
        """Take note of how far the supervisor has extended the lease."""
        if self.supervisor is not None:
            self.expires_at = max(self.expires_at, self.supervisor.extended_to(self))


class HeldLeases:
    def __init__(self, worker: str, oversight: SupervisorLink | None = None) -> None:
        # A worker may be given a name, and restarted under it: its tokens must never be those of its predecessor,
        # or it would be handed that one's jobs as if its own claim had been repeated.
        self._prefix = f"{worker}/{os.urandom(8).hex()}" if oversight is None else oversight.prefix
        self._oversight = oversight
        self._serial = itertools.count(1)
        self._leases: dict[str, HeldLease] = {}

    def new_token(self) -> str:
        return f"{self._prefix}-{next(self._serial)}"

    def add(self, token: str, expires_at: int, *, alone: bool = False) -> HeldLease:
        lease = self._leases[token] = HeldLease(token, expires_at, alone, self._oversight)
        return lease

    def settled(self, execution: Execution) -> None:
        """The job is off its lease; with the last one, the lease is over."""
        lease = execution.lease
        lease.executions.pop(execution.claimed.id, None)
        execution.cell = 0
        if not lease.executions:
            self._leases.pop(lease.token, None)
            if self._oversight is not None:
                self._oversight.over(lease)

    def forget(self, lease: HeldLease) -> None:
        lease.lost = True
        self._leases.pop(lease.token, None)
        if self._oversight is not None:
            self._oversight.lost(lease)

    def all(self) -> list[HeldLease]:
        return list(self._leases.values())
