"""Options that `@task` hands to the backend, from Django 6.1 on."""

from __future__ import annotations

from typing import Any

from taskharbor.integrations.django import task


@task(timeout=60, max_attempts=7, retry=None, delivery="at_most_once")
def patient() -> None:
    raise ValueError("once")


def plain() -> None: ...


def declare(**options: Any) -> Any:
    return task(**options)(plain)
