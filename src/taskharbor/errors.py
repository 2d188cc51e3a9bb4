"""Every error TaskHarbor raises, from the most general to the most particular.

An error's text is for the person who reads it: what was given, what was expected, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskharbor.records import ReasonName
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskharbor.records import StopReason


class TaskHarborError(Exception):
    """The base of every error that TaskHarbor itself raises."""


# -- errors of a caller --------------------------------------------------------------------------


class ConfigurationError(TaskHarborError, ValueError):
    """An option, a declaration or a URL that cannot be used as it was given."""


class MissingCapability(ConfigurationError):
    """The store cannot do what was asked: its driver does not offer `capability`."""

    def __init__(self, message: str, capability: str) -> None:
        super().__init__(message)
        self.capability = capability


class PayloadError(TaskHarborError, ValueError):
    """Arguments, a payload or a result that cannot be stored as JSON or do not fit the task."""


class PayloadTooLarge(PayloadError):
    """A payload or result over the size limit."""


# -- what a handler may raise --------------------------------------------------------------------


class Unrecoverable(Exception):
    """Raised by a handler: trying again cannot help, so the job goes to the dead-letter queue at once."""


class RetryAfter(Exception):
    """Raised by a handler: fail this attempt, and try again after `seconds` rather than the policy's delay."""

    def __init__(self, seconds: float, message: str = "") -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e10:
            raise ConfigurationError(
                f"RetryAfter takes a delay in seconds of 0 or more, not {seconds!r}; "
                "give the number of seconds to wait, for example RetryAfter(30)"
            )
        super().__init__(message or f"retry after {seconds:g} s")
        self.seconds = float(seconds)


class AttemptTimedOut(TimeoutError):
    """Raised by a handler that keeps the time itself: history says `timed_out`, and the failure counts as any other."""


class StopRequested(BaseException):
    """Raised by `ctx.raise_if_stopped()`. Let through, it ends its own attempt by the rule of its `reason`.

    It is not an Exception, so that few handlers swallow it. `job_id` and `number` name the attempt.
    """

    def __init__(self, reason: StopReason, job_id: str, number: int) -> None:
        super().__init__(reason, job_id, number)
        self.reason = reason
        self.job_id = job_id
        self.number = number

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id} stops: {self.reason}"


# -- errors in a worker --------------------------------------------------------------------------


class RemoteError(TaskHarborError):
    """The error of a handler that failed in its own process, as a middleware sees it; `type_name` is its class."""

    def __init__(self, message: str, *, type_name: str, outcome: object) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.outcome = outcome


class UnresponsiveHandler(TaskHarborError):
    """A handler ignored every stop request, so the worker has shut down for its process to be replaced."""


# -- errors about a job --------------------------------------------------------------------------


class JobError(TaskHarborError):
    """An error about one job; `job_id` names it."""

    def __init__(self, job_id: str, message: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobNotFound(JobError, LookupError):
    """No job has this id: it never existed, or it was deleted or pruned."""


class JobConflict(JobError):
    """The job is in a state that does not allow what was asked."""


class JobFailed(JobError):
    """The job is dead; `reason` and `error` say why."""

    def __init__(self, job_id: str, message: str, *, reason: ReasonName | None, error: str | None) -> None:
        super().__init__(job_id, message)
        self.reason = reason
        self.error = error


class JobCancelled(JobError):
    """The job was cancelled, so it has no result."""


class LeaseLost(JobError):
    """This attempt no longer holds its job's lease: nothing that it does from here on is committed."""


# -- errors about a workflow ---------------------------------------------------------------------


class WorkflowError(TaskHarborError):
    """An error about one workflow; `workflow_id` names it."""

    def __init__(self, workflow_id: str, message: str) -> None:
        super().__init__(message)
        self.workflow_id = workflow_id


class WorkflowNotFound(WorkflowError, LookupError):
    """No workflow has this id: it never existed, or it was pruned."""


class WorkflowStuck(WorkflowError):
    """Members are dead or cancelled, so the workflow cannot end by itself; `job_ids` names them."""

    def __init__(self, workflow_id: str, message: str, job_ids: Sequence[str]) -> None:
        super().__init__(workflow_id, message)
        self.job_ids = tuple(job_ids)


class WorkflowCancelled(WorkflowStuck):
    """The workflow was cancelled, or gave up because of a failure; `job_ids` names the members that did not succeed."""


# -- the store -----------------------------------------------------------------------------------


class StoreError(TaskHarborError):
    """The store could not do what was asked."""


class StreamError(TaskHarborError):
    """The brokers of a stream refuse what a worker or a producer needs, and waiting does not help."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, is locked, or is full.

    `job_ids` names the jobs of an enqueue whose outcome is unknown: enqueueing them again under the same
    ids is safe and yields one job each.
    """

    def __init__(self, message: str, job_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.job_ids = tuple(job_ids)


class AccessDenied(StoreError):
    """The store does not let this user do what was asked; the text names the right that is missing."""


class OperationRefused(StoreError):
    """The store refused an operation, and neither its content nor an outage is why: a bug, or a damaged store."""


class SchemaError(StoreError):
    """The store holds something other than the schema this version works with."""
