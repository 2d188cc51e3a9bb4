"""What a worker holds: its live leases, and its idea of the store's time."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from taskharbor.clock import Clock

if TYPE_CHECKING:
    from taskharbor.worker.execution import Execution


class StoreTime:
    """The store's time, estimated from what it last said: a worker's own clock may be wrong."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0

    def now(self) -> int:
        return self._clock.now() + self._ahead

    def asking(self) -> int:
        """By our own clock: when the store is being asked. For `learn`."""
        return self._clock.now()

    def learn(self, store_now: int, asked_at: int) -> None:
        """The store read its clock at some moment between our asking and its answer.

        An estimate that agrees with this is kept: an answer that took long must not make us late.
        """
        least, most = store_now - self._clock.now(), store_now - asked_at
        self._ahead = min(max(self._ahead, least), most)


class LiveLease:
    """A lease this worker holds, and the jobs under it that are not settled yet."""

    __slots__ = ("alone", "executions", "expires_at", "lost", "token")

    def __init__(self, token: str, expires_at: int, alone: bool = False) -> None:
        self.token = token
        self.expires_at = expires_at
        self.alone = alone  # it holds a suspect
        self.lost = False  # the store said that it is no longer ours
        self.executions: dict[str, Execution] = {}


class LiveLeases:
    def __init__(self, worker: str) -> None:
        # A worker may be given a name, and restarted under it: its tokens must never be those of its predecessor,
        # or it would be handed that one's jobs as if its own claim had been repeated.
        self._prefix = f"{worker}/{os.urandom(8).hex()}"
        self._serial = itertools.count(1)
        self._leases: dict[str, LiveLease] = {}

    def new_token(self) -> str:
        return f"{self._prefix}-{next(self._serial)}"

    def add(self, token: str, expires_at: int, *, alone: bool = False) -> LiveLease:
        lease = self._leases[token] = LiveLease(token, expires_at, alone)
        return lease

    def settled(self, execution: Execution) -> None:
        """The job is off its lease; with the last one, the lease is over."""
        executions = execution.lease.executions
        executions.pop(execution.claimed.id, None)
        if not executions:
            self._leases.pop(execution.lease.token, None)

    def forget(self, lease: LiveLease) -> None:
        lease.lost = True
        self._leases.pop(lease.token, None)

    def all(self) -> list[LiveLease]:
        return list(self._leases.values())
