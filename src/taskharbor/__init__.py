"""TaskHarbor: durable background jobs for Python.

from taskharbor import Harbor

harbor = Harbor("sqlite:///harbor.db")

@harbor.task
def greet(name: str) -> str:
    return f"Hello, {name}"

job = greet.enqueue("Ada")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskharbor import presets
from taskharbor.client.handle import Attempt, Job, Step
from taskharbor.client.harbor import Harbor
from taskharbor.client.retry_metrics import RetryMetrics
from taskharbor.client.task import Signature, Task
from taskharbor.context import Context, current_context
from taskharbor.errors import (
    AccessDenied,
    ConfigurationError,
    JobCancelled,
    JobConflict,
    JobFailed,
    JobNotFound,
    LeaseLost,
    MissingCapability,
    PayloadError,
    PayloadTooLarge,
    RemoteError,
    RetryAfter,
    SchemaError,
    StopRequested,
    StoreError,
    StoreUnavailable,
    StreamError,
    TaskHarborError,
    Unrecoverable,
    UnresponsiveHandler,
    WorkflowCancelled,
    WorkflowError,
    WorkflowNotFound,
    WorkflowStuck,
)
from taskharbor.records import (
    AttemptStatus,
    Delivery,
    JobFilter,
    Progress,
    Reason,
    ReasonName,
    State,
    StateName,
)
from taskharbor.rules.retry import Decision, Failure, RetryPolicy
from taskharbor.sealing import PayloadCodec
from taskharbor.telemetry.events import Event, EventName

if TYPE_CHECKING:
    from taskharbor.worker import Worker
    from taskharbor.workflow import Workflow, WorkflowState, chain, chord, group

__version__: str  # made below

__all__ = [
    "AccessDenied",
    "Attempt",
    "AttemptStatus",
    "ConfigurationError",
    "Context",
    "Decision",
    "Delivery",
    "Event",
    "EventName",
    "Failure",
    "Harbor",
    "Job",
    "JobCancelled",
    "JobConflict",
    "JobFailed",
    "JobFilter",
    "JobNotFound",
    "LeaseLost",
    "MissingCapability",
    "PayloadCodec",
    "PayloadError",
    "PayloadTooLarge",
    "Progress",
    "Reason",
    "ReasonName",
    "RemoteError",
    "RetryAfter",
    "RetryMetrics",
    "RetryPolicy",
    "SchemaError",
    "Signature",
    "State",
    "StateName",
    "Step",
    "StopRequested",
    "StoreError",
    "StoreUnavailable",
    "StreamError",
    "UnresponsiveHandler",
    "Task",
    "TaskHarborError",
    "Unrecoverable",
    "Worker",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowError",
    "WorkflowNotFound",
    "WorkflowState",
    "WorkflowStuck",
    "chain",
    "chord",
    "current_context",
    "group",
    "presets",
]


def __getattr__(name: str) -> Any:
    """A producer never pays for the worker, nor for workflows: they are imported when they are first asked for."""
    if name == "Worker":
        from taskharbor.worker import Worker

        return Worker
    if name in ("Workflow", "WorkflowState", "chain", "chord", "group"):
        from taskharbor import workflow

        return getattr(workflow, name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("taskharbor")
        except PackageNotFoundError:  # a copy of the code, without the metadata of an installed package
            return "0+unknown"
    raise AttributeError(f"module 'taskharbor' has no attribute {name!r}")
