"""The contract of `taskharbor.drivers.base` as tests that anybody can run against a driver of their own.

One line in a test file runs all of it:

    from taskharbor import conformance

    TestMyStore = conformance.suite(MyDriver)
    TestMyStoreMachine = conformance.state_machine(MyDriver)

The argument is a factory: called with a clock, it gives a driver on a store that holds nothing. A store that has
to be cleaned up comes from a context manager instead, synchronous or asynchronous:

    @contextmanager
    def fresh(clock):
        with TemporaryDirectory() as directory:
            yield SQLiteDriver(f"{directory}/jobs.db", clock=clock)

    TestSQLite = conformance.suite(fresh, another=lambda driver, clock: SQLiteDriver(driver.path, clock=clock))

Needs pytest, and for the state machine Hypothesis: `pip install taskharbor[test]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

# Before they are imported, or a failing rule would say "AssertionError" and not what was answered.
pytest.register_assert_rewrite(
    "taskharbor.conformance.chapters", "taskharbor.conformance.store", "taskharbor.conformance.machine"
)

if TYPE_CHECKING:
    from unittest import TestCase

    from taskharbor.conformance.store import Another, Factory

__all__ = ["suite", "state_machine"]


def suite(factory: Factory, *, another: Another | None = None, threads: bool = True) -> type[Any]:
    """A pytest class that holds every rule of the contract; bind it to a name that begins with `Test`.

    `another` opens a second driver on the store of a first one. With it, the suite also proves that what was
    accepted outlives the driver that accepted it, and that two drivers never hand out the same job.
    `threads=False` keeps the concurrent rules in one event loop, for a driver that belongs to one.
    """
    from taskharbor.conformance.chapters import CHAPTERS, SECOND_DRIVER_CHAPTERS

    chapters = CHAPTERS + (SECOND_DRIVER_CHAPTERS if another is not None else ())
    return type(
        "Conformance",
        chapters,
        {
            "__doc__": "Every rule of the driver contract.",
            "factory": staticmethod(factory),
            "another": None if another is None else staticmethod(another),
            "threads": threads,
        },
    )


def state_machine(factory: Factory, *, examples: int | None = None) -> type[TestCase]:
    """A test case that does the same random things to the driver and to the memory reference, and compares.

    `examples` is how many stories it tells: by default some half a minute's worth, or what
    $TASKHARBOR_CONFORMANCE_EXAMPLES says, for a longer search. Bind it to a name that begins with `Test`.
    """
    from taskharbor.conformance.machine import case_for

    return case_for(factory, examples)
