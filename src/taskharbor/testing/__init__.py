"""For tests of applications: a clock that a test moves, jobs that run when it says so, and what was enqueued.

With pytest, the fixtures `harbor`, `clock`, `drain` and `run_inline` are there without an import.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from taskharbor.errors import ConfigurationError
from taskharbor.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
from taskharbor.testing.checks import check_harbor
from taskharbor.testing.clock import TestingClock
from taskharbor.testing.context import HandlerContext, make_context
from taskharbor.testing.drain import Drain, HandlersWait, Ran, RunInline
from taskharbor.testing.stage import Stage, staged
from taskharbor.testing.store import FailingStore

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

__all__ = [
    "Drain",
    "FailingStore",
    "HandlerContext",
    "HandlersWait",
    "Ran",
    "RunInline",
    "Stage",
    "TestingClock",
    "assert_enqueued",
    "assert_not_enqueued",
    "enqueued",
    "make_context",
    "outage",
    "staged",
]


@contextmanager
def outage(harbor: Harbor, *verbs: str, calls: int | None = None) -> Iterator[None]:
    """Let the store of this harbor be away inside the block: its verbs raise `StoreUnavailable`.

    `verbs` names those that fail, such as `"settle"`; without them all do. With `calls` only that many calls fail.
    """
    check_harbor(harbor, "outage()")
    if not isinstance(harbor.driver, FailingStore):
        raise ConfigurationError(
            f"only the store of tests can be made to fail, and this harbor's is a {type(harbor.driver).__name__}; "
            "use the fixture `harbor`, or staged(harbor)"
        )
    with harbor.driver.outage(*verbs, calls=calls):
        yield
