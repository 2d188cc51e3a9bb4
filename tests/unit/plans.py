"""Call plans to test: what the tests of signatures share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from taskharbor.signature import CallPlan


class Context:
    """Stands for the context that a worker injects."""


def case(value: object) -> str:
    """An id for pytest, which cannot make its own of hostile values."""
    return ascii(value)[1:40] if isinstance(value, str) else type(value).__name__


def plan_of(function: Callable[..., Any], **options: Any) -> CallPlan:
    options.setdefault("context_type", Context)
    options.setdefault("task", "email:send")
    return CallPlan.of(function, **options)


def plan_for(annotation: Any) -> CallPlan:
    def handler(value): ...

    handler.__annotations__["value"] = annotation
    return plan_of(handler)


def comes_back(annotation: Any, value: Any) -> Any:
    plan = plan_for(annotation)
    return plan.decode(plan.encode((value,), {}))["value"]


def send(to: str, subject: str = "hi", *, times: int = 1) -> tuple[str, str, int]:
    return (to, subject, times)


@dataclasses.dataclass
class HoldsText:
    text: str


@dataclasses.dataclass
class Linked:
    value: int
    next: Linked | None = None
