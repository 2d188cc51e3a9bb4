"""Handing over: a job that came from a log, with the attempt that has ended there."""

from __future__ import annotations

from msgspec import Struct

from taskharbor.records import AttemptRecord, NewJob, Reason, State

TOKEN_SUFFIX = "stream"  # of the token in the row of history: no lease covered the attempt


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

    @property
    def token(self) -> str:
        """What stands in the row of history for a token, which names the worker."""
        assert self.attempt is not None, "only an attempt has a token"
        return f"{self.attempt.worker}/{TOKEN_SUFFIX}"
