"""A task in a module that nothing imports before a job of it is executed."""

from __future__ import annotations

from taskharbor.integrations.django import task


@task
def hidden() -> str:
    return "found"
