"""The whole contract, on every driver of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import conformance
from taskharbor.clock import ManualClock
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver


@contextmanager
def fresh_sqlite(clock: ManualClock) -> Iterator[SQLiteDriver]:
    with TemporaryDirectory() as directory:
        yield SQLiteDriver(str(Path(directory) / "jobs.db"), clock=clock)


def second_sqlite(first: SQLiteDriver, clock: ManualClock) -> SQLiteDriver:
    return SQLiteDriver(first.path, clock=clock)


TestMemory = conformance.suite(MemoryDriver)
TestSQLite = conformance.suite(fresh_sqlite, another=second_sqlite)
