"""Group commit under interrupts, what a read remembers, and a store that contradicts itself."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.drivers.base import ClaimRequest, Transition
from taskharbor.drivers.sqlite import SQLiteDriver, leases
from taskharbor.drivers.sqlite.engine import _Write
from taskharbor.drivers.sqlite.session import Session
from taskharbor.records import AttemptStatus, JobFilter, NewJob, State
from taskharbor.sync import run_inline

MINUTE = 60_000_000


@pytest.fixture
def driver(file: Path) -> Iterator[SQLiteDriver]:
    driver = SQLiteDriver(str(file))
    run_inline(driver.open())
    yield driver
    run_inline(driver.close())


def job(number: int, **fields: Any) -> NewJob:
    return NewJob(id=f"019b76da-a800-7000-8000-{number:012x}", task="t", **fields)


# -- interrupts ----------------------------------------------------------------------------------


class Interrupting(deque[Any]):
    """Ctrl-C comes right after the first write was taken off, or right before."""

    def __init__(self, after: bool) -> None:
        super().__init__()
        self.after, self.armed = after, True

    def popleft(self) -> Any:
        if not self.armed:
            return super().popleft()
        self.armed = False
        if self.after:
            super().popleft()
        raise KeyboardInterrupt


async def test_interrupted_writer_rings_for_those_whose_writes_it_took(driver: SQLiteDriver):
    """A synchronous writer takes an asynchronous one's write, and is interrupted before it commits."""
    engine = driver._engine
    loop = asyncio.get_running_loop()
    other: _Write[str] = _Write(lambda _: "done", None)
    other.loop, other.future = loop, loop.create_future()
    happened: list[str] = []

    def interrupted(session: Session) -> None:
        if happened:
            return
        happened.append("interrupted")
        raise KeyboardInterrupt

    def write() -> None:
        engine._pending.append(other)  # its ring has been answered already: the thread found nothing to do
        with pytest.raises(KeyboardInterrupt):
            run_inline(engine.write(interrupted))

    await asyncio.to_thread(write)
    assert await asyncio.wait_for(other.future, 60) == "done"
    assert happened == ["interrupted"]
    await asyncio.to_thread(lambda: run_inline(engine.write(lambda _: None)))
    assert not engine._pending


@pytest.mark.parametrize("after", [False, True])
async def test_interrupt_while_a_write_is_taken_loses_none(driver: SQLiteDriver, after: bool):
    engine = driver._engine
    loop = asyncio.get_running_loop()
    other: _Write[str] = _Write(lambda _: "done", None)
    other.loop, other.future = loop, loop.create_future()
    engine._pending = Interrupting(after)
    engine._pending.append(other)

    def write() -> None:
        with pytest.raises(KeyboardInterrupt):
            run_inline(engine.write(lambda _: None))

    await asyncio.to_thread(write)
    assert await asyncio.wait_for(other.future, 60) == "done"


async def test_interrupt_while_answers_are_delivered_leaves_nobody_waiting(
    driver: SQLiteDriver, monkeypatch: pytest.MonkeyPatch
):
    engine = driver._engine
    loop = asyncio.get_running_loop()
    other: _Write[str] = _Write(lambda _: "done", None)
    other.loop, other.future = loop, loop.create_future()
    deliver, calls = engine._deliver, threading.Semaphore(1)

    def interrupted_once(batch: list[_Write[Any]]) -> None:
        if calls.acquire(blocking=False):
            raise KeyboardInterrupt
        deliver(batch)

    monkeypatch.setattr(engine, "_deliver", interrupted_once)

    def write() -> None:
        engine._pending.append(other)
        with pytest.raises(KeyboardInterrupt):
            run_inline(engine.write(lambda _: None))

    await asyncio.to_thread(write)
    assert await asyncio.wait_for(other.future, 60) == "done"


class Interrupted:
    """A connection with Ctrl-C before some statements and after others, once each."""

    def __init__(self, connection: sqlite3.Connection, before: set[str], after: set[str]) -> None:
        self._connection, self._before, self._after = connection, before, after

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        self._interrupt(statement, self._before)
        cursor = self._connection.execute(statement, *parameters)
        self._interrupt(statement, self._after)
        return cursor

    def _interrupt(self, statement: str, armed: set[str]) -> None:
        if statement in armed:
            armed.remove(statement)
            raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_interrupt_after_a_read_has_begun_leaves_the_store_readable(driver: SQLiteDriver):
    engine = driver._engine
    run_inline(driver.enqueue([job(1)]))
    assert engine._reader is not None
    engine._reader = Interrupted(engine._reader, set(), {"BEGIN"})  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        run_inline(driver.get([job(1).id]))
    run_inline(driver.enqueue([job(2)]))
    assert None not in run_inline(driver.get([job(1).id, job(2).id]))


def test_interrupts_within_a_write_leave_nothing_of_it_and_the_store_writable(driver: SQLiteDriver):
    """The second one comes while the first is being cleared up."""
    engine = driver._engine
    assert engine._writer is not None
    engine._writer = Interrupted(engine._writer, {"COMMIT", "ROLLBACK"}, set())  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        run_inline(driver.enqueue([job(1)]))
    run_inline(driver.enqueue([job(2)]))
    first, second = run_inline(driver.get([job(1).id, job(2).id]))
    assert first is None
    assert second is not None


# -- what a read remembers -----------------------------------------------------------------------


def test_list_reads_each_lease_once(driver: SQLiteDriver, monkeypatch: pytest.MonkeyPatch):
    run_inline(driver.enqueue([job(n) for n in range(60)]))
    for n in range(3):
        run_inline(driver.claim(ClaimRequest(f"w/{n}", MINUTE, 20)))
    decoded: list[int] = []
    decode = leases._decode_entries

    def counted(text: str) -> leases.Columns:
        decoded.append(len(text))
        return decode(text)

    monkeypatch.setattr(leases, "_decode_entries", counted)
    for where, times in (
        (JobFilter(task="nope"), 0),
        (JobFilter(task="t"), 3),
        (JobFilter(state=State.RUNNING), 3),
    ):
        decoded.clear()
        run_inline(driver.list(where))
        assert len(decoded) == times
    decoded.clear()
    assert all(run_inline(driver.get([job(n).id for n in range(60)])))
    assert len(decoded) == 3


def test_list_of_a_queues_ready_jobs_is_one_scan_however_many_other_jobs_there_are(driver: SQLiteDriver):
    run_inline(driver.enqueue([job(n, queue="a" if n % 100 == 0 else "b") for n in range(2_000)]))
    scans: list[str] = []
    assert driver._engine._reader is not None
    driver._engine._reader.set_trace_callback(
        lambda statement: scans.append(statement) if "group_concat(" in statement else None
    )
    page = run_inline(driver.list(JobFilter(state=State.READY, queue="a")))
    assert [found.id for found in page.jobs] == [job(n).id for n in range(1_900, -1, -100)]
    assert page.next_cursor is None
    assert len(scans) == 1


def test_job_that_an_older_lease_names_is_shown_under_its_own(driver: SQLiteDriver):
    """SettleResult under one lease that lives on for another job, and claimed again under the next."""
    run_inline(driver.enqueue([job(1), job(2)]))
    run_inline(driver.claim(ClaimRequest("a/1", MINUTE, 2)))
    back = Transition("a/1", job(1).id, 1, AttemptStatus.FAILED, State.READY, attempts=1, delay=0)
    run_inline(driver.settle([back]))
    run_inline(driver.claim(ClaimRequest("b/1", MINUTE, 1)))
    first, second = run_inline(driver.get([job(1).id, job(2).id]))
    assert first is not None
    assert second is not None
    assert (first.worker, first.number, second.worker) == ("b", 2, "a")


# -- a store that contradicts itself -------------------------------------------------------------


def test_job_in_no_place_is_shown_as_dead_and_can_be_brought_back_or_deleted(file: Path):
    with Harbor(f"sqlite:///{file}") as harbor:
        other, job_id = harbor.enqueue("t").id, harbor.enqueue("t").id
        assert {check.name: check.ok for check in run_inline(harbor.driver.check())}["places"]
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("DELETE FROM taskharbor_ready")
        assert {(job.state, job.reason) for job in harbor.jobs.list()} == {("dead", "unreadable")}
        assert "neither ready" in (harbor.jobs.get(job_id).record.unreadable or "")
        [places] = [check for check in run_inline(harbor.driver.check()) if check.name == "places"]
        assert not places.ok
        assert "2 jobs are in no place" in places.detail
        assert harbor.jobs.retry(job_id).state == "ready"
        harbor.jobs.delete(other)
        assert run_inline(harbor.driver.claim(ClaimRequest("a/1", MINUTE, 1))).jobs[0].id == job_id
        assert harbor.jobs.counts()["dead"] == 0
