"""The whole contract, on every driver of ours; and the suite itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import conformance
from taskharbor.clock import ManualClock
from taskharbor.conformance.chapters import CHAPTERS, SECOND_DRIVER_CHAPTERS
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver


# NORMAL: no rule of the contract is about a loss of power, and the disk is waited for only now and then.
@contextmanager
def fresh_sqlite(clock: ManualClock) -> Iterator[SQLiteDriver]:
    with TemporaryDirectory() as directory:
        yield SQLiteDriver(str(Path(directory) / "jobs.db"), synchronous="NORMAL", clock=clock)


def second_sqlite(first: SQLiteDriver, clock: ManualClock) -> SQLiteDriver:
    return SQLiteDriver(first.path, synchronous="NORMAL", clock=clock)


TestMemory = conformance.suite(MemoryDriver)
TestSQLite = conformance.suite(fresh_sqlite, another=second_sqlite)


# -- the suite ---------------------------------------------------------------------------------------


@asynccontextmanager
async def fresh_memory(clock: ManualClock) -> AsyncIterator[MemoryDriver]:
    yield MemoryDriver(clock)


# As for a driver that belongs to one event loop, from a factory that has to be awaited.
TestInOneLoop = conformance.suite(fresh_memory, threads=False)


def rules() -> list[tuple[str, str | None]]:
    chapters = CHAPTERS + SECOND_DRIVER_CHAPTERS
    tests = [(name, rule) for chapter in chapters for name, rule in vars(chapter).items()]
    return [(name, rule.__doc__) for name, rule in tests if name.startswith("test_")]


def test_no_chapter_hides_a_rule_of_another():
    assert [name for name, count in Counter(name for name, _ in rules()).items() if count > 1] == []


def test_every_rule_is_said_in_a_sentence():
    assert [name for name, sentence in rules() if not sentence or not sentence.endswith(".")] == []


def test_suite_holds_every_rule():
    assert {name for name, _ in rules()} <= set(dir(TestSQLite))
