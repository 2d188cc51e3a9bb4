"""What a worker publishes to a supervisor outside, and what it hears from there.

Without a supervisor there is no oversight, and none of this costs anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from taskharbor.worker.pipeline.leases import HeldLease


class SupervisorLink(Protocol):
    """A supervisor in another process: it extends this worker's leases, and settles what it leaves behind."""

    prefix: str  # of this worker's tokens
    suspects_only: bool  # a process of their own: it claims suspects, one at a time
    cells: memoryview[int]  # one word for each job: 0 unbegun, +started_at begun, -started_at ended

    @property
    def room(self) -> int:
        """How many more jobs can be published. No more may be claimed."""

    def claiming(self, token: str, *, alone: bool) -> None:
        """A claim with this token is about to be sent."""

    def claimed(self, lease: HeldLease | None, executions: Sequence[Execution]) -> None:
        """It has been answered: publish the lease, if there is one, and give each execution its cell."""

    def lost(self, lease: HeldLease) -> None:
        """The lease is no longer this worker's, though handlers under it may still run."""

    def over(self, lease: HeldLease) -> None:
        """Nothing under the lease is open any more."""

    def extended_to(self, lease: HeldLease) -> int:
        """The expiry that the supervisor has last reached for this lease; 0 for none."""

    def suspects_waiting(self) -> None:
        """Ask for a process that executes a suspect alone."""
