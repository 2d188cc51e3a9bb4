"""TaskHarbor's pytest plugin: the fixtures `harbor`, `clock`, `drain` and `run_inline`.

It is a package of its own so that pytest, which imports it at its start, does not import `taskharbor` for suites that
do not use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from taskharbor import Harbor
    from taskharbor.testing import Drain, RunInline, Stage, TestingClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "taskharbor_app", "The Harbor that each test moves onto a fresh memory store, such as shop:harbor."
    )
    parser.addini(
        "taskharbor_clock", "Where the clock of each test starts: a time in ISO 8601 with its zone, or now."
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getini("taskharbor_app"):
        config.pluginmanager.register(_EveryTest(), "taskharbor-every-test")


class _EveryTest:
    """Moves the application's harbor for every test, so that none writes to its real store."""

    @pytest.fixture(autouse=True)
    def _taskharbor_on_memory(self, taskharbor_stage: Stage) -> None:
        pass


@pytest.fixture
def taskharbor_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """The harbor, clock and store of one test. A suite may have fixtures of its own called `harbor` or `clock`."""
    from taskharbor.testing.stage import clock_from, named_harbor, staged

    app: str = request.config.getini("taskharbor_app")
    with staged(
        named_harbor(app) if app else None, clock_from(request.config.getini("taskharbor_clock"))
    ) as stage:
        yield stage


@pytest.fixture
def harbor(taskharbor_stage: Stage) -> Harbor:
    """The application's harbor, or a bare one, on a memory store and a clock of this test."""
    return taskharbor_stage.harbor


@pytest.fixture
def clock(taskharbor_stage: Stage) -> TestingClock:
    """The time of this test: `clock.tick("1h")`."""
    return taskharbor_stage.clock


@pytest.fixture
def drain(taskharbor_stage: Stage) -> Drain:
    """Run everything that is due: `drain()`, or `await drain.async_()`."""
    return taskharbor_stage.drain


@pytest.fixture
def run_inline(taskharbor_stage: Stage) -> RunInline:
    """Run one job and return its result: `run_inline(task, argument=…)`."""
    return taskharbor_stage.run_inline
