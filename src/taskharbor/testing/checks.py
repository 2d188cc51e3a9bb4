"""What the helpers of tests refuse: a slip in a test is to be an error, not a test that passes."""

from __future__ import annotations

from typing import Any

from taskharbor.client.task import Enqueueable
from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError


def check_task(task: object, name: str) -> None:
    """Refuse what is no task; `name` names the function that takes it."""
    if isinstance(task, Enqueueable):
        return
    called = getattr(task, "__qualname__", None)
    given = f"the plain function {called}" if called is not None and callable(task) else shorten(task)
    raise ConfigurationError(f"{name} takes a task, which is what @harbor.task returns, not {given}")


def check_harbor(harbor: object, name: str) -> None:
    from taskharbor.client.harbor import Harbor

    if not isinstance(harbor, Harbor):
        raise ConfigurationError(
            f"{name} takes a Harbor, such as the fixture `harbor`, not {shorten(harbor)}"
        )


def check_number(value: Any, name: str, least: int) -> None:
    """Refuse what is no whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} takes a whole number of at least {least}, not {shorten(value)}")
