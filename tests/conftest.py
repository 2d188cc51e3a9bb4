from __future__ import annotations

import gc
import signal

import hypothesis
import pytest

from taskharbor.drivers.postgres import connections
from taskharbor.worker import worker
from taskharbor.worker.handlers.isolation import pool
from tests import bytecode, guard

# Tests of real processes and long searches. They begin first: a test process that has nothing left to do then takes
# short ones over from another, and none runs a long test alone at the end.
LONGEST = (
    "tests/supervisor/",
    "tests/faults/",
    "tests/postgres/faults/",
    "tests/leftovers/",
    "tests/postgres/test_state_machine.py",
    "tests/drivers/test_state_machine.py",
    "tests/simulation/",
    "tests/streams/test_kills.py",
    "tests/django/",
)


def pytest_configure(config: pytest.Config) -> None:
    bytecode.keep(config.rootpath / ".pytest_cache" / "bytecode")
    # A shell starts what runs in the background with SIGINT ignored, and processes inherit that: those that a test
    # interrupts would not notice.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    guard.start()
    _be_patient()


def _be_patient() -> None:
    """Let no test fail because the machine is busy or its disk stands still for a while."""
    hypothesis.settings.register_profile(
        "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("patient")
    # The limits of what usually takes milliseconds. A test of one of them sets it for itself.
    connections.CONNECT_SECONDS = connections.PROMPT_SECONDS = connections.COMMAND_SECONDS = 60.0
    worker.EVENTS_SECONDS = pool.CLOSE_SECONDS = 20.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    bytecode.import_a_share(session.config.args)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collect garbage less often, and not among the tests and modules: that takes a tenth of the run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, *gc.get_threshold()[1:])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
