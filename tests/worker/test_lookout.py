"""A request to cancel reaches a running handler between two heartbeats, and costs nothing while there is none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Context, Harbor
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SQLiteDriver
from taskharbor.errors import StoreUnavailable
from taskharbor.records import State
from taskharbor.worker.pipeline.cancel_watch import AWAY_SECONDS, LOOK_SECONDS
from tests.postgres import store as postgres
from tests.worker import isolated
from tests.worker.apart import apart, begun
from tests.worker.stage import PATIENCE_SECONDS, FaultyDriver, soon, statuses, until, until_state, working

LONG_LEASE = {"lease_seconds": 86_400.0}  # no test lets enough time pass for a heartbeat
BEAT_SECONDS = 200.0  # far more than the first looks take, also of a machine that is busy

Harbors = tuple[Harbor, Harbor]  # the worker's, and an operator's in what might be another process


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The looks that drivers have taken at their stores, by the name of the store."""
    taken: list[str] = []
    for name in ("memory", "sqlite", "postgres"):
        verb = f"taskharbor.drivers.{name}.leases.cancel_requests"
        monkeypatch.setattr(verb, _noting(taken, name, import_module(verb.rpartition(".")[0])))
    return taken


def _noting(taken: list[str], name: str, module: Any) -> Callable[..., Any]:
    look = module.cancel_requests

    def noting(*arguments: Any) -> Any:
        taken.append(name)
        return look(*arguments)

    return noting


@pytest.fixture
def on_postgres(clock: ManualClock) -> Iterator[PostgresDriver]:
    with postgres.fresh(clock) as driver:
        yield driver


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def drivers(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> list[Driver]:
    """Two on each store, each with connections of its own."""
    if request.param == "memory":
        return [MemoryDriver(clock)] * 2
    if request.param == "sqlite":
        return [SQLiteDriver(f"{tmp_path}/harbor.db", clock=clock) for _ in range(2)]
    driver = request.getfixturevalue("on_postgres")
    return [driver, postgres.another(driver, clock)]


@pytest.fixture
async def harbors(drivers: list[Driver]) -> AsyncIterator[Harbors]:
    mine, operators = drivers
    async with Harbor(driver=mine) as harbor, Harbor(driver=operators) as operator:
        yield harbor, operator


async def tick_until(clock: ManualClock, condition: Callable[[], Any], real_seconds: float = 0.001) -> None:
    """Let the lookout have its turn until something is so; what stores do meanwhile takes real time."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come about"
        await clock.jump(LOOK_SECONDS)
        await asyncio.sleep(real_seconds)


# -- every kind of handler -----------------------------------------------------------------------


async def test_an_async_handler_is_cancelled_before_any_heartbeat(harbors: Harbors, clock):
    harbor, operator = harbors
    started, cancelled = asyncio.Event(), asyncio.Event()
    job = await _hanging(harbor, started, cancelled).aenqueue()
    async with working(harbor, **LONG_LEASE):
        await soon(started.wait())
        await operator.jobs.acancel(job.id)
        await tick_until(clock, cancelled.is_set)
        await until_state(job, State.CANCELLED)
    assert await statuses(job) == ["cancelled"]


async def test_a_handler_in_a_thread_is_marked_before_any_heartbeat(harbors: Harbors, clock):
    harbor, operator = harbors
    started, seen = threading.Event(), threading.Event()

    @harbor.task
    def work(ctx: Context) -> None:
        started.set()
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not ctx.cancelled:
            assert time.monotonic() < give_up_at
            time.sleep(0.002)
        seen.set()
        raise RuntimeError("stopped half way")

    job = await work.aenqueue()
    async with working(harbor, **LONG_LEASE):
        await until(started.is_set)
        await operator.jobs.acancel(job.id)
        await tick_until(clock, seen.is_set)
        await until_state(job, State.CANCELLED)


async def test_a_handler_in_a_process_is_cancelled_before_any_heartbeat(
    harbors: Harbors, clock, tmp_path, monkeypatch
):
    # The clock runs ahead while the process, in real time, hears of it and ends.
    monkeypatch.setattr("taskharbor.worker.handlers.isolation.running.CANCEL_PATIENCE_SECONDS", 1e9)
    harbor, operator = harbors
    ended = tmp_path / "ended"
    job = await apart(harbor, isolated.hang_async).aenqueue(str(tmp_path / "begun"), str(ended))
    async with working(harbor, **LONG_LEASE):
        await begun(tmp_path / "begun")
        await operator.jobs.acancel(job.id)
        await tick_until(clock, ended.exists)
        await until_state(job, State.CANCELLED)
    assert ended.read_text() == "cancelled"


# -- when it looks -------------------------------------------------------------------------------


async def test_a_look_is_due_twice_a_second(memory, clock):
    started, cancelled = asyncio.Event(), asyncio.Event()
    hang = _hanging(memory, started, cancelled)
    job = await hang.aenqueue()
    async with working(memory):
        await soon(started.wait())
        await clock.jump(4 * LOOK_SECONDS)
        await memory.jobs.acancel(job.id)
        await clock.jump(LOOK_SECONDS - 0.001)
        assert not cancelled.is_set()
        await clock.jump(0.001)
        assert cancelled.is_set()
        await until_state(job, State.CANCELLED)
    assert LOOK_SECONDS == 0.5


@pytest.mark.parametrize("drivers", ["memory", "postgres"], indirect=True)
async def test_nothing_is_looked_at_while_nobody_is_asked_to_end(harbors: Harbors, clock, looks):
    """Whatever else happens in the store."""
    harbor, operator = harbors
    if isinstance(harbor.driver, PostgresDriver):
        await soon(harbor.driver.wait_for_change(harbor.driver.change_token(), 3600))  # until it listens
    started, cancelled = asyncio.Event(), asyncio.Event()

    @harbor.task(name="work")
    async def work() -> int:
        return 1

    job = await _hanging(harbor, started, cancelled).aenqueue()
    async with working(harbor, **LONG_LEASE):
        await soon(started.wait())
        await _first_looks(clock, looks)
        for _ in range(5):
            await soon((await operator.aenqueue("work")).aresult())
            await clock.jump(2 * LOOK_SECONDS)
        assert len(looks) == 2
        await operator.jobs.acancel(job.id)
        await tick_until(clock, cancelled.is_set)
        assert len(looks) > 2


@pytest.mark.parametrize("drivers", ["sqlite"], indirect=True)
async def test_on_sqlite_nothing_is_looked_at_while_nothing_is_written(harbors: Harbors, looks):
    """It knows only that something has been written, not what."""
    harbor, operator = harbors
    await operator.aenqueue("work")
    mark = (await harbor.driver.cancel_requests(["nobody/1"])).mark
    assert looks == ["sqlite"]
    for _ in range(3):
        assert (await harbor.driver.cancel_requests(["nobody/1"], mark)).mark == mark
    assert looks == ["sqlite"]
    await operator.aenqueue("work")
    assert (await harbor.driver.cancel_requests(["nobody/1"], mark)).mark != mark
    assert looks == ["sqlite", "sqlite"]


async def _first_looks(clock: ManualClock, looks: list[str]) -> None:
    """For what may have been asked before the worker began."""
    await tick_until(clock, lambda: len(looks) >= 2, real_seconds=0.05)


async def test_an_idle_worker_never_looks(memory, clock, looks):
    job = await memory.aenqueue("nobody.knows")
    async with working(memory):
        await until_state(job, State.SCHEDULED)  # it was put back
        before = len(looks)
        await memory.jobs.acancel(job.id)
        await clock.jump(5)
    assert len(looks) == before


async def test_without_a_listener_the_heartbeat_remains(on_postgres: PostgresDriver, clock, looks):
    mine = PostgresDriver(on_postgres.dsn, schema=on_postgres.schema, listen=False, clock=clock)
    async with Harbor(driver=mine) as harbor, Harbor(driver=on_postgres) as operator:
        started, cancelled = asyncio.Event(), asyncio.Event()
        job = await _hanging(harbor, started, cancelled).aenqueue()
        begun_at = clock.monotonic()
        async with working(harbor, lease_seconds=3 * BEAT_SECONDS):
            await soon(started.wait())
            await _first_looks(clock, looks)
            await operator.jobs.acancel(job.id)
            await clock.jump(begun_at + BEAT_SECONDS - LOOK_SECONDS - clock.monotonic())
            assert not cancelled.is_set()
            assert len(looks) == 2
            await clock.jump(LOOK_SECONDS)
            await until(cancelled.is_set)
            await until_state(job, State.CANCELLED)


async def test_a_job_whose_claim_is_under_way_is_found_by_the_next_look(faulty, store: FaultyDriver, clock):
    """The store has leased it, and the worker does not know the lease yet."""
    started, cancelled = asyncio.Event(), asyncio.Event()
    first_started, answered = asyncio.Event(), asyncio.Event()

    @faulty.task
    async def first() -> None:
        first_started.set()
        await cancelled.wait()

    hang = _hanging(faulty, started, cancelled)
    await first.aenqueue()
    async with working(faulty, **LONG_LEASE):
        await soon(first_started.wait())
        await clock.jump(4 * LOOK_SECONDS)

        store.after["claim"] = lambda: _wait(answered)
        job = await hang.aenqueue()
        await until_state(job, State.RUNNING)
        await faulty.jobs.acancel(job.id)
        await clock.jump(LOOK_SECONDS)
        answered.set()
        await soon(started.wait())
        await clock.jump(LOOK_SECONDS)
        assert cancelled.is_set()
        await until_state(job, State.CANCELLED)


async def test_a_store_that_is_away_is_looked_at_again_later(faulty, store: FaultyDriver, clock):
    started, cancelled = asyncio.Event(), asyncio.Event()
    hang = _hanging(faulty, started, cancelled)
    job = await hang.aenqueue()
    async with working(faulty, **LONG_LEASE):
        await soon(started.wait())
        await clock.jump(4 * LOOK_SECONDS)
        store.fail["cancel_requests"] = lambda *_: StoreUnavailable("away")
        await faulty.jobs.acancel(job.id)
        await clock.jump(LOOK_SECONDS)
        del store.fail["cancel_requests"]
        await clock.jump(AWAY_SECONDS)
        assert cancelled.is_set()
        await until_state(job, State.CANCELLED)


def _hanging(harbor: Harbor, started: asyncio.Event, cancelled: asyncio.Event) -> Any:
    @harbor.task
    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    return hang


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
