"""Handing over: a job that came from a log, with the attempt that has ended there."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from taskharbor.errors import TaskHarborError
from taskharbor.records import AttemptRecord, NewJob, Reason, State

TOKEN_SUFFIX = "stream"  # of the token in the row of history: no lease covered the attempt


class HandOverAnswer(StrEnum):
    """What became of a job that was handed over."""

    STORED = "stored"
    KNOWN = "known"  # its id, or its (queue, idempotency key), is kept already: nothing was stored
    NO_BACKLOG = "no_backlog"  # it was to join a backlog that has ended: nothing was stored


class BacklogPlace(Struct, frozen=True):
    """The place of a job in the backlog of a key: jobs that execute one after the other, in the order of `position`.

    A job that `opens` makes the backlog if there is none. Any other joins it only if it is there. With `holds`, a dead
    job keeps those behind it waiting until an operator requeues, discards or deletes it.
    """

    key: str
    position: int
    opens: bool = False
    holds: bool = False


class Owner(Struct, frozen=True):
    """Who hands over messages of a partition of a log: the worker that was given this epoch."""

    partition: str
    epoch: int


class Advanced(Struct, frozen=True):
    """What a round over the backlogs did."""

    released: list[str]  # jobs that are runnable now
    cursor: str | None  # where the next round goes on; None: this one came to the end


class NotOwner(TaskHarborError):
    """Another worker owns these partitions by now: nothing was stored."""

    def __init__(self, partitions: Iterable[str]) -> None:
        self.partitions = frozenset(partitions)
        named = ", ".join(sorted(self.partitions))
        super().__init__(f"another worker has taken over {named}: its messages are no longer this worker's")


class HandedOver(Struct, frozen=True):
    """A job that enters the store in the middle of its first run.

    `job` has an idempotency key; its `delay` says when it is runnable again. To `DEAD`, it is dead from the start, for
    `reason`. `inserts` exist if and only if this job is stored now: not if the key names a job already.
    """

    job: NewJob
    attempt: AttemptRecord | None = None  # number 1; None: it has not been attempted
    attempts: int = 0  # failures so far
    to: State = State.READY  # or DEAD
    reason: Reason | None = None
    inserts: tuple[NewJob, ...] = ()
    aside: str | None = (
        None  # the label of the place where it waits, of one with an attempt; None: the ordinary one
    )
    backlog: BacklogPlace | None = None

    @property
    def token(self) -> str:
        """What stands in the row of history for a token, which names the worker."""
        assert self.attempt is not None, "only an attempt has a token"
        return f"{self.attempt.worker}/{TOKEN_SUFFIX}"
