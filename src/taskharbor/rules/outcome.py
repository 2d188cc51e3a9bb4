"""Outcomes: how an execution ended, as values. The executor makes them, the policy decides by them."""

from __future__ import annotations

from msgspec import Struct

from taskharbor.records import Reason
from taskharbor.rules.retry import ErrorInfo


class Succeeded(Struct, frozen=True, gc=False):
    result: str | None = None  # JSON


class Failed(Struct, frozen=True):
    """The handler raised, or ran out of time."""

    info: ErrorInfo
    error: str
    traceback: str | None = None
    timed_out: bool = False
    fingerprint: str | None = None  # None: it is the task and the kind of the failure


class Unrunnable(Struct, frozen=True):
    """This worker cannot begin the job: it does not know the task, or the payload does not fit it."""

    reason: Reason  # UNKNOWN_TASK or INVALID_PAYLOAD
    error: str


class Expired(Struct, frozen=True):
    """It was not begun by its `expires_at`."""


class Missed(Struct, frozen=True):
    """An occurrence of a recurring job that no worker began within its grace: it is dropped."""

    late_seconds: float
    grace_seconds: float


class HandedBack(Struct, frozen=True):
    """It never began: nothing is counted."""


class Held(Struct, frozen=True):
    """It never began: a hold keeps it back."""

    label: str  # of the hold's place aside


class Interrupted(Struct, frozen=True):
    """The worker is shutting down and the grace period is over."""


class Crashed(Struct, frozen=True):
    """The process that executed this job, and nothing else, died of it."""

    error: str  # by which signal, or with which exit code


class Disturbed(Struct, frozen=True):
    """The handler was cancelled by neither itself nor the worker: by another handler, or by other code on the loop."""

    error: str = "cancelled by neither its own handler nor the worker"


class Slept(Struct, frozen=True):
    """The handler asked to be executed again after a while; see `Context.sleep`."""

    name: str
    seconds: float


class CancelledOnRequest(Struct, frozen=True):
    """A caller asked to cancel it, and it ended without succeeding."""

    error: str | None = None


Outcome = (
    Succeeded
    | Failed
    | Unrunnable
    | Expired
    | Missed
    | HandedBack
    | Held
    | Interrupted
    | Crashed
    | Disturbed
    | Slept
    | CancelledOnRequest
)
