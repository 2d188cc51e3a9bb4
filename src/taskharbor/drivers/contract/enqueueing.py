"""What stands for a job or a workflow once it has been enqueued."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct

from taskharbor.errors import ConfigurationError
from taskharbor.records import State


class Enqueued(Struct, frozen=True, gc=False):
    """The job that now stands for the one given: itself, or the one that existed."""

    id: str
    existed: bool
    state: State
    run_at: int
    enqueued_at: int


class WorkflowEnqueued(Struct, frozen=True):
    """The workflow that now stands for the one given: itself, or the one that existed."""

    id: str
    existed: bool
    enqueued_at: int


def member_id(workflow_id: str, index: int) -> str:
    """The id of a workflow's job: it follows the workflow's own, so that all of them are one range."""
    return str(UUID(int=UUID(workflow_id).int + 1 + index))


def member_exists(job_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"a job has the id {job_id} already, which a job of this workflow would have; "
        "give the workflow another id, or leave it out: random ones never come so close to each other"
    )
