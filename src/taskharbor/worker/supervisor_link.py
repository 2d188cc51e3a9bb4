"""`SupervisorLink`: what a worker publishes to a supervisor in another process, and what it learns from there.

A worker without a supervisor has no link and pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution
    from taskharbor.worker.pipeline.leases import HeldLease


class SupervisorLink(Protocol):
    """A supervisor in another process: it extends this worker's leases, and settles its jobs if it dies."""

    extends_leases: bool  # False: the worker's jobs come from a log, and it needs no help with them
    prefix: str  # of this worker's lease tokens
    suspects_only: bool  # this process claims only suspects, one at a time
    cells: memoryview[int]  # one word per job: 0 not begun, +started_at begun, -started_at ended

    @property
    def room(self) -> int:
        """How many more jobs can be published, and therefore claimed."""

    def claiming(self, token: str, *, alone: bool) -> None:
        """Publish that a claim with this token is about to be sent."""

    def claimed(self, lease: HeldLease | None, executions: Sequence[Execution]) -> None:
        """Publish the lease that the claim returned, if any, and give each execution its cell."""

    def lost(self, lease: HeldLease) -> None:
        """Publish that the worker lost this lease, though handlers under it may still run."""

    def over(self, lease: HeldLease) -> None:
        """Publish that every job under the lease is settled."""

    def extended_to(self, lease: HeldLease) -> int:
        """Return the latest expiry to which the supervisor has extended this lease, or 0."""

    def suspects_waiting(self) -> None:
        """Ask for a process that executes a suspect alone."""
