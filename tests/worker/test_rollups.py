"""A worker writes what it has counted into the store's roll-ups, every ten seconds."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.errors import StoreUnavailable
from taskharbor.own_tasks import own_task
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.rules.rollups import COUNTS, DAY, HOUR, MINUTE, begin_of
from taskharbor.telemetry.metrics.cells import JOB_WORDS
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.worker.upkeep.rollups import RollupWriter, figures_of
from tests.telemetry.attempts import SECOND, attempt, job, new_meter, settle
from tests.worker.stage import FaultyDriver, soon, working


def writer_for(harbor: Harbor, meter: Meter) -> RollupWriter:
    clock = harbor.driver.clock
    return RollupWriter(harbor.driver, clock, meter=meter, now=clock.now)


async def rollups(harbor: Harbor, period: Period = Period.MINUTE) -> list[Rollup]:
    end = harbor.driver.clock.now() + DAY
    return await Rollups.of(harbor.driver).rollups(0, end - end % HOUR, period)


def minute(clock: ManualClock) -> int:
    return begin_of(clock.now(), Period.MINUTE)


@pytest.fixture
def meter() -> Meter:
    return new_meter()


@pytest.fixture(autouse=True)
def at_the_begin_of_a_minute(clock: ManualClock) -> None:
    clock.advance((minute(clock) + MINUTE - clock.now()) / SECOND)


async def test_each_outcome_and_each_time_is_in_the_row(memory: Harbor, clock: ManualClock, meter: Meter):
    meter.claimed([job("send", "mail"), job("send", "mail", number=2)], 0.001)
    settle(
        meter,
        attempt(of=job("send", "mail"), waited=2 * SECOND, took=40_000),
        attempt(AttemptStatus.FAILED, State.READY, of=job("send", "mail"), took=40_000, delay=5),
        attempt(AttemptStatus.FAILED, State.DEAD, of=job("send", "mail"), reason=Reason.EXHAUSTED),
        attempt(AttemptStatus.LOST, State.READY, of=job("send", "mail")),
        attempt(AttemptStatus.CANCELLED, State.CANCELLED, of=job("send", "mail"), begun=False),
    )
    await writer_for(memory, meter).stop()
    [row] = await rollups(memory)
    assert (row.at, row.queue, row.task) == (minute(clock), "mail", "send")
    assert [getattr(row.figures, name) for name in COUNTS] == [1, 4, 1, 2, 1, 1, 1, 1]
    assert (row.figures.wait[0], sum(row.figures.wait[1:])) == (2 * SECOND, 4)
    assert (row.figures.duration[0], sum(row.figures.duration[1:])) == (80_000, 3)


async def test_rows_are_written_at_every_tenth_second_and_hold_what_was_new(
    memory: Harbor, clock: ManualClock, meter: Meter
):
    running = own_task(writer_for(memory, meter).run())
    clock_started = [0, 0]
    await clock.jump(3)
    for number in range(2):
        settle(meter, *[attempt()] * (number + 1))
        await clock.jump(6.9)
        clock_started[number] = sum(row.figures.started for row in await rollups(memory))
        await clock.jump(3.1)
    running.end()
    assert clock_started == [0, 1]  # at 9.9 s and at 19.9 s
    assert [row.figures.started for row in await rollups(memory)] == [3]


async def test_what_was_counted_before_the_end_of_a_minute_is_in_that_minute(
    memory: Harbor, clock: ManualClock, meter: Meter
):
    first = minute(clock)
    running = own_task(writer_for(memory, meter).run())
    await clock.jump(55)
    settle(meter, attempt())
    await clock.jump(5)
    settle(meter, attempt(), attempt())
    await clock.jump(10)
    running.end()
    assert [(row.at, row.figures.started) for row in await rollups(memory)] == [
        (first, 1),
        (first + MINUTE, 2),
    ]


async def test_nothing_new_is_not_written(
    memory: Harbor, clock: ManualClock, meter: Meter, monkeypatch: pytest.MonkeyPatch
):
    settle(meter, attempt())
    writer = writer_for(memory, meter)
    await writer.stop()
    monkeypatch.setattr(memory.driver, "append_rollups", None)
    running = own_task(writer.run())
    meter.claimed([], 0.1)
    for _ in range(6):
        await clock.jump(10)
    running.end()
    await writer.stop()
    assert [row.figures.started for row in await rollups(memory)] == [1]


async def test_worker_that_runs_again_writes_only_what_is_new(memory: Harbor):
    @memory.task(name="send")
    async def send() -> None: ...

    worker = Worker(memory)
    for _ in range(3):
        await send.aenqueue()
        await worker.drain()
    assert [(row.task, row.figures.succeeded) for row in await rollups(memory)] == [("send", 3)]


async def test_rows_of_several_workers_add_up(memory: Harbor, clock: ManualClock):
    for _ in range(3):
        meter = new_meter()
        settle(meter, attempt(), attempt())
        await writer_for(memory, meter).stop()
    assert [row.figures.succeeded for row in await rollups(memory)] == [6]


async def test_an_outage_delays_rows_and_keeps_their_minutes(
    faulty: Harbor, store: FaultyDriver, clock: ManualClock, meter: Meter
):
    append = store.append_rollups

    async def away(rows: object) -> None:
        raise StoreUnavailable("away")

    first = minute(clock)
    store.append_rollups = away  # type: ignore[method-assign]
    running = own_task(writer_for(faulty, meter).run())
    for _ in range(12):
        settle(meter, attempt())
        await clock.jump(10)
    assert await rollups(faulty) == []
    store.append_rollups = append  # type: ignore[method-assign]
    await clock.jump(10)
    running.end()
    assert [(row.at, row.figures.started) for row in await rollups(faulty)] == [
        (first, 6),
        (first + MINUTE, 6),
    ]


async def test_a_worker_that_appends_also_folds(memory: Harbor, clock: ManualClock, meter: Meter):
    """Minutes into hours after a day, and nothing after 30 days."""
    running = own_task(writer_for(memory, meter).run())
    settle(meter, attempt())
    for _ in range(25):
        for _ in range(7):
            await clock.jump(10)
        await clock.jump(3_600)
        settle(meter, attempt(of=job("other")))
    running.end()
    assert [row.figures.started for row in await rollups(memory) if row.task == "send"] == []
    assert [row.figures.started for row in await rollups(memory, Period.HOUR) if row.task == "send"] == [1]


async def test_pairs_beyond_the_limit_count_as_other(memory: Harbor, clock: ManualClock, meter: Meter):
    settle(meter, *[attempt(of=job(f"task-{number}")) for number in range(210)])
    await writer_for(memory, meter).stop()
    found = await rollups(memory)
    assert len(found) == 201
    assert [row.figures.started for row in found if row.task == "_other"] == [10]


# -- in a worker -----------------------------------------------------------------------------------


async def test_a_worker_writes_what_it_did_when_it_stops(harbor: Harbor, clock: ManualClock):
    """A drain is enough, on each store."""

    @harbor.task(name="send", queue="mail", retry=None)
    def send(fails: bool) -> None:
        if fails:
            raise RuntimeError("no luck")

    for fails in (False, False, True):
        await send.aenqueue(fails)
    await Worker(harbor).drain()
    [row] = await rollups(harbor)
    assert (row.at, row.queue, row.task) == (minute(clock), "mail", "send")
    assert [getattr(row.figures, name) for name in COUNTS] == [3, 3, 2, 1, 0, 1, 0, 0]
    assert (sum(row.figures.wait[1:]), sum(row.figures.duration[1:])) == (3, 3)


async def test_a_running_worker_writes_every_ten_seconds(memory: Harbor, clock: ManualClock):
    @memory.task(name="send")
    async def send() -> None: ...

    async with working(memory):
        job = await send.aenqueue()
        await job.aresult(timeout=60)
        assert await rollups(memory) == []
        await clock.jump(10)
        assert [row.figures.succeeded for row in await rollups(memory)] == [1]


async def test_a_worker_without_roll_ups_writes_none(memory: Harbor):
    @memory.task(name="send")
    def send() -> None: ...

    await send.aenqueue()
    await Worker(memory, rollups=False).drain()
    assert await rollups(memory) == []


async def test_a_task_that_the_worker_does_not_know_is_not_named(memory: Harbor):
    """Any producer can name a task, and a name could contain anything."""

    @memory.task(name="send")
    def send() -> None: ...

    await memory.aenqueue("token-0123456789", max_attempts=1)
    await send.aenqueue()
    await Worker(memory, unrunnable_grace_seconds=0).drain()
    assert {row.task for row in await rollups(memory)} == {"send", "_other"}


def test_figures_without_counts_are_empty():
    assert Figures() == Figures(wait=(), duration=())


# -- limits and pauses ------------------------------------------------------------------------------


async def test_only_so_many_rows_wait_for_a_store_that_is_away(
    faulty: Harbor, store: FaultyDriver, clock: ManualClock, meter: Meter, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.worker.upkeep.rollups.PENDING_MAX", 2)
    append, first = store.append_rollups, minute(clock)

    async def away(rows: object) -> None:
        raise StoreUnavailable("away")

    store.append_rollups = away  # type: ignore[method-assign]
    writer = writer_for(faulty, meter)
    running = own_task(writer.run())
    for _ in range(5):
        settle(meter, attempt())
        for _ in range(6):
            await clock.jump(10)
    running.end()
    store.append_rollups = append  # type: ignore[method-assign]
    await writer.stop()
    assert [row.at for row in await rollups(faulty)] == [first + 3 * MINUTE, first + 4 * MINUTE]


async def test_a_clock_that_goes_back_does_not_hold_rows_up(memory: Harbor, clock: ManualClock, meter: Meter):
    behind = [0]
    writer = RollupWriter(memory.driver, clock, meter=meter, now=lambda: clock.now() - behind[0])
    running = own_task(writer.run())
    await clock.jump(3)
    behind[0] = HOUR
    settle(meter, attempt())
    for _ in range(3):
        await clock.jump(10)
    running.end()
    assert sum(row.figures.started for row in await rollups(memory)) == 1


async def test_a_worker_folds_once_a_minute_while_it_appends_and_once_an_hour_while_it_does_not(
    memory: Harbor, clock: ManualClock, meter: Meter, monkeypatch: pytest.MonkeyPatch
):
    folds: list[int] = []

    async def fold(limit: int) -> int:
        folds.append(limit)
        return 0

    monkeypatch.setattr(memory.driver, "fold_rollups", fold)
    running = own_task(writer_for(memory, meter).run())
    for _ in range(18):
        settle(meter, attempt())
        await clock.jump(10)
    assert len(folds) == 3
    for _ in range(6 * 59):
        await clock.jump(10)
    assert len(folds) == 3
    for _ in range(6 * 2):
        await clock.jump(10)
    running.end()
    assert len(folds) == 4


async def test_a_worker_that_stops_does_not_wait_for_a_store_that_is_silent(
    faulty: Harbor, store: FaultyDriver, meter: Meter, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.worker.upkeep.rollups.STOP_SECONDS", 0.01)

    async def silent(rows: object) -> None:
        await asyncio.Event().wait()

    store.append_rollups = silent  # type: ignore[method-assign]
    settle(meter, attempt())
    await soon(writer_for(faulty, meter).stop())


def test_words_that_count_nothing_are_figures_of_nothing():
    assert figures_of([0] * JOB_WORDS) == Figures()
