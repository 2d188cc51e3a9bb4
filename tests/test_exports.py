"""The public surface: exactly these names, each importable, each documented."""

from __future__ import annotations

import enum
import inspect
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest

import taskharbor

PUBLIC = [
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


def test_the_public_names_are_exactly_these():
    assert sorted(taskharbor.__all__) == sorted(PUBLIC)
    assert len(set(taskharbor.__all__)) == len(taskharbor.__all__)


def test_public_names_can_be_imported():
    assert [name for name in PUBLIC if getattr(taskharbor, name, None) is None] == []


def test_all_of_them_can_be_imported_at_once():
    run = [sys.executable, "-c", "from taskharbor import *; print(Worker.__name__, Harbor.__name__)"]
    assert (
        subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout
        == "Worker Harbor\n"
    )


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'taskharbor' has no attribute 'Wroker'"):
        taskharbor.Wroker  # noqa: B018


def test_the_version_is_that_of_the_project():
    """If this fails after a change of the version: `make .venv/.ready-dev` installs the package anew."""
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
    assert taskharbor.__version__ == project["version"]


# Not documented yet; whoever does so takes the name out of here.
def _documented() -> Iterator[tuple[str, Any]]:
    """Every public class and function, and what hangs on them and is ours."""
    harbor = taskharbor.Harbor("memory://")
    attached = {
        f"harbor.{name}": type(getattr(harbor, name)) for name in ("jobs", "dlq", "queues", "schedules")
    }
    for name, thing in {**{name: getattr(taskharbor, name) for name in PUBLIC}, **attached}.items():
        if get_origin(thing) is Literal:
            continue  # it has no room for a docstring; the reference says what it is
        yield name, thing
        if not isinstance(thing, type) or issubclass(thing, enum.Enum | BaseException):
            continue
        for member, value in inspect.getmembers(thing):
            if member.startswith("_") or not _is_ours(value):
                continue
            yield f"{name}.{member}", value


def _is_ours(value: Any) -> bool:
    function = getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType):
        return False
    return function.__module__.startswith("taskharbor")


def test_what_is_public_is_documented():
    assert [fault for name, thing in _documented() for fault in _faults_of_docstring(name, thing)] == []


def _faults_of_docstring(name: str, thing: Any) -> Iterator[str]:
    own = thing.__doc__  # not inspect.getdoc, which would take a base's for it
    if not own or not own.strip():
        yield f"{name} has no docstring"
    elif isinstance(thing, type) and own.startswith(
        f"{thing.__name__}("
    ):  # what msgspec or dataclasses make up
        yield f"{name} has no docstring of its own"
