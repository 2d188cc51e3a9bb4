"""The live leases of a worker, and its estimate of the store's time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from taskharbor.clock import MICROS_PER_SECOND, Clock

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from taskharbor.worker.supervisor_link import SupervisorLink


class StoreTime:
    """The store's time, estimated from its answers, because a worker's own clock may be wrong.

    Between two answers the monotonic clock moves it on. A change of the wall clock must neither time out a handler nor
    make a lease look expired.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - self.asking()

    def now(self) -> int:
        return round(self._clock.monotonic() * MICROS_PER_SECOND) + self._ahead

    def asking(self) -> int:
        """Return the time of a question to the store, by our own clock, for `learn`."""
        return round(self._clock.monotonic() * MICROS_PER_SECOND)

    def learn(self, store_now: int, asked_at: int) -> None:
        """Correct the estimate: the store read its clock between our question and its answer.

        An estimate that agrees with this is kept, so a slow answer does not make it late.
        """
        least, most = store_now - self.asking(), store_now - asked_at
        self._ahead = min(max(self._ahead, least), most)


class HeldLease:
    """A lease this worker holds, and the jobs under it that are not settled yet."""

    __slots__ = ("alone", "blocks", "executions", "expires_at", "lost", "series", "supervisor", "token")

    def __init__(
        self, token: str, expires_at: int, alone: bool = False, supervisor: SupervisorLink | None = None
    ) -> None:
        self.token = token
        self.expires_at = expires_at
        self.supervisor = supervisor  # extends the lease from another process
        self.alone = alone  # it holds a suspect
        self.lost = False  # the store has refused it
        self.executions: dict[str, Execution] = {}
        # The queue and the task of all its jobs; None if they differ, or without metrics.
        self.series: tuple[str, str] | None = None
        self.blocks: tuple[int, ...] = ()  # of shared memory, where the supervisor reads it

    def is_over(self, now: int) -> bool:
        """Whether it has expired, as far as this worker and its supervisor know."""
        if now < self.expires_at:
            return False
        self.refresh()
        return now >= self.expires_at

    def refresh(self) -> None:
        """Read how far the supervisor has extended the lease."""
        if self.supervisor is not None:
            self.expires_at = max(self.expires_at, self.supervisor.extended_to(self))


class HeldLeases:
    def __init__(self, worker: str, supervisor_link: SupervisorLink | None = None) -> None:
        # A worker may restart under the same name. If it used its predecessor's tokens, the store would take its first
        # claim for a repeated one, and return the predecessor's jobs.
        self._prefix = (
            f"{worker}/{os.urandom(8).hex()}" if supervisor_link is None else supervisor_link.prefix
        )
        self._supervisor_link = supervisor_link
        self._serial = itertools.count(1)
        self._leases: dict[str, HeldLease] = {}

    def new_token(self) -> str:
        return f"{self._prefix}-{next(self._serial)}"

    def add(self, token: str, expires_at: int, *, alone: bool = False) -> HeldLease:
        lease = self._leases[token] = HeldLease(token, expires_at, alone, self._supervisor_link)
        return lease

    def settled(self, execution: Execution) -> None:
        self.settled_all((execution,))

    def settled_all(self, executions: Iterable[Execution]) -> None:
        """Take the jobs off their leases; without jobs, a lease is over."""
        for execution in executions:
            lease = execution.lease
            lease.executions.pop(execution.claimed.id, None)
            execution.cell = 0
            if not lease.executions:
                self._leases.pop(lease.token, None)
                if self._supervisor_link is not None:
                    self._supervisor_link.over(lease)

    def forget(self, lease: HeldLease) -> None:
        lease.lost = True
        self._leases.pop(lease.token, None)
        if self._supervisor_link is not None:
            self._supervisor_link.lost(lease)

    def all(self) -> list[HeldLease]:
        return list(self._leases.values())
