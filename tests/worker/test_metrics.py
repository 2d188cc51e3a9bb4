"""What a worker counts: each attempt once, whatever way it ends, and nothing at all unless it is asked to."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from taskharbor import ConfigurationError, Context, Event, Harbor, Worker, chain
from taskharbor.clock import ManualClock, from_micros
from taskharbor.drivers.base import ClaimRequest
from taskharbor.errors import StoreUnavailable
from taskharbor.records import State
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.cells import Cells
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.telemetry.metrics.totals import Snapshot, Totals
from tests.telemetry.attempts import attempt, count_of, counters, job, read, settle, sum_of
from tests.worker.conftest import STEADY
from tests.worker.stage import FaultyDriver, soon, until, working
from tests.worker.test_leases import lose_the_lease


def counted(*workers: Worker) -> Snapshot:
    totals = Totals()
    for worker in workers:
        assert worker._meter is not None
        totals.add(worker._meter.cells)
    return totals.snapshot()


async def drained(harbor: Harbor, **options: Any) -> Worker:
    worker = Worker(harbor, metrics=True, **({"retry": STEADY} | options))
    await soon(worker.drain())
    return worker


# -- attempts ------------------------------------------------------------------------------------------


async def test_successes_are_counted_with_their_times_and_batches(harbor: Harbor, clock: ManualClock):
    @harbor.task(name="send")
    async def send() -> None: ...

    await send.aenqueue_many([{}] * 30)
    clock.advance(2)
    found = counted(await drained(harbor))
    assert counters(found) == {"jobs_enqueued": 30, "jobs_started": 30, "jobs_succeeded": 30}
    assert count_of(found, catalogue.WAIT) == count_of(found, catalogue.DURATION) == 30
    assert sum_of(found, catalogue.WAIT) == 30 * 2_000_000
    assert sum_of(found, catalogue.CLAIM_BATCH) == sum_of(found, catalogue.SETTLE_BATCH) == 30
    assert 0 < count_of(found, catalogue.SETTLE_DURATION) <= 30
    assert count_of(found, catalogue.CLAIM_DURATION) >= 2  # the last one finds nothing


async def test_successes_of_several_queues_and_tasks_are_counted_apart(harbor: Harbor):
    @harbor.task(name="send")
    async def send() -> None: ...

    @harbor.task(name="bill")
    async def bill() -> None: ...

    await send.aenqueue_many([{}] * 3)
    await bill.aenqueue_many([{}] * 4)
    await bill.using(queue="night").aenqueue_many([{}] * 5)
    found = counted(await drained(harbor))
    succeeded = {pair: counters(found, *pair)["jobs_succeeded"] for pair in found.jobs}
    assert succeeded == {("default", "send"): 3, ("default", "bill"): 4, ("night", "bill"): 5}


async def test_successes_that_are_logged_one_by_one_are_counted_as_well(harbor: Harbor, caplog: Any):
    caplog.set_level(logging.INFO, "taskharbor.worker")

    @harbor.task(name="send")
    async def send() -> None: ...

    await send.aenqueue_many([{}] * 30)
    found = counted(await drained(harbor))
    assert counters(found) == {"jobs_enqueued": 30, "jobs_started": 30, "jobs_succeeded": 30}
    assert count_of(found, catalogue.DURATION) == sum_of(found, catalogue.SETTLE_BATCH) == 30


async def test_retries_and_exhausted_jobs_are_counted(harbor: Harbor, clock: ManualClock):
    @harbor.task(name="send", max_attempts=3)
    async def send() -> None:
        raise ValueError("no luck")

    await send.aenqueue()
    workers = []
    for _ in range(3):
        workers.append(await drained(harbor))
        clock.advance(60)
    found = counted(*workers)
    assert counters(found) == {
        "jobs_enqueued": 1,
        "jobs_started": 3,
        "jobs_failed": 3,
        "retries": 2,
        "retry_exhausted": 1,
        "jobs_dead": 1,
    }
    assert sum_of(found, catalogue.RETRY_LATENCY) == (1 + 2) * 1_000_000  # the delays granted


async def test_a_job_that_is_cancelled_while_it_runs_is_counted(memory: Harbor, clock: ManualClock):
    begun = asyncio.Event()

    @memory.task(name="send")
    async def send() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await send.aenqueue()
    async with working(memory, metrics=True) as worker:
        await soon(begun.wait())
        await memory.jobs.acancel(job.id)
        await clock.jump(60)
        await until(lambda: counters(counted(worker)).get("jobs_cancelled"))
    assert counters(counted(worker)) == {"jobs_enqueued": 1, "jobs_started": 1, "jobs_cancelled": 1}


async def test_a_lost_lease_is_counted_as_refused_and_its_attempt_as_lost(
    faulty: Harbor, store: FaultyDriver, clock: ManualClock
):
    begun = asyncio.Event()

    @faulty.task(name="send")
    async def send() -> None:
        begun.set()
        await asyncio.Event().wait()

    await send.aenqueue()
    async with working(faulty, lease_seconds=3, grace_seconds=0, metrics=True) as worker:
        await soon(begun.wait())
        await lose_the_lease(store, clock, 5)
        await clock.jump(1)
        await until(lambda: counters(counted(worker)).get("jobs_lost"))
        found = counted(worker)
        worker.stop()
        await clock.jump(1)
    assert count_of(found, catalogue.EXTENSIONS_REFUSED) == 1
    assert (counters(found)["jobs_enqueued"], counters(found)["jobs_lost"]) == (1, 1)


async def test_an_attempt_of_a_dead_worker_is_counted_by_the_one_that_settles_it(
    harbor: Harbor, clock: ManualClock
):
    @harbor.task(name="send", delivery="at_most_once")
    async def send() -> None: ...

    await send.aenqueue()
    await harbor.driver.claim(ClaimRequest("dead/1-1", 1_000_000, 1, once_limit=1))
    clock.advance(5)
    found = counted(await drained(harbor))
    assert counters(found)["jobs_lost"] == 1
    assert "jobs_enqueued" not in counters(found)  # its first claim was not this worker's


async def test_losses_that_a_worker_collects_while_it_is_stopped_are_counted_and_reported(
    faulty: Harbor, store: FaultyDriver, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """The store has committed, and its answer comes after the worker has ended its parts."""
    monkeypatch.setattr("taskharbor.rescue.REPORT_SECONDS", 60.0)
    settled, answer = asyncio.Event(), asyncio.Event()
    heard: list[str] = []

    @faulty.task(name="send", queue="elsewhere")
    async def send() -> None: ...

    @faulty.on("lost")
    async def hear(event: Event) -> None:
        heard.append(event.job_id)

    async def answer_late() -> None:
        del store.after["settle"]
        settled.set()
        await answer.wait()

    worker = Worker(faulty, metrics=True, queues=["default"])
    async with worker:
        lost = await send.aenqueue()
        await faulty.driver.claim(ClaimRequest("dead/1-1", 1_000_000, 1))
        store.after["settle"] = answer_late
        await clock.jump(5)
        await soon(settled.wait())
        worker.stop()
        for _ in range(100):  # turns of the loop, in which the worker ends its parts
            await asyncio.sleep(0)
        answer.set()
    assert counters(counted(worker), queue="elsewhere") == {"jobs_lost": 1}
    assert heard == [lost.id]


# -- jobs that no worker begins --------------------------------------------------------------------------


async def test_jobs_that_expire_are_counted_as_cancelled(harbor: Harbor, clock: ManualClock):
    @harbor.task(name="send")
    async def send() -> None: ...

    expires_at = from_micros(clock.now()) + timedelta(seconds=1)
    for _ in range(3):
        await send.using(expires_at=expires_at).aenqueue()
    clock.advance(5)
    assert counters(counted(await drained(harbor))) == {"jobs_cancelled": 3}


@pytest.mark.parametrize("level", [logging.INFO, logging.CRITICAL])
async def test_jobs_that_end_with_a_dependency_are_counted_as_cancelled(
    harbor: Harbor, caplog: pytest.LogCaptureFixture, level: int
):
    """Whether or not they are logged."""
    caplog.set_level(level, "taskharbor.worker")

    @harbor.task(name="send", max_attempts=1)
    async def send() -> None:
        raise ValueError("no luck")

    @harbor.task(name="later")
    async def later() -> None: ...

    await chain(send.si(), later.si(), later.si()).using(on_failure="cancel").aenqueue()
    found = counted(await drained(harbor))
    assert counters(found)["jobs_dead"] == 1
    assert counters(found, task="later") == {"jobs_cancelled": 2}


# -- once, and only once -----------------------------------------------------------------------------------


async def test_a_job_that_is_handed_back_counts_as_enqueued_once(harbor: Harbor):
    @harbor.task(name="send")
    async def send() -> None: ...

    await send.aenqueue_many([{}] * 50)
    workers = []
    for _ in range(5):
        worker = Worker(harbor, concurrency=3, max_jobs=10, metrics=True)
        worker._expected_pace = 10_000.0  # it claims ahead, and hands back what it may not begin
        await soon(worker.run())
        workers.append(worker)
    assert counters(counted(*workers)) == {"jobs_enqueued": 50, "jobs_started": 50, "jobs_succeeded": 50}


async def test_a_batch_that_a_cancelled_committer_settles_again_counts_once(
    faulty: Harbor, store: FaultyDriver
):
    """The store has committed, and its answer is lost with the cancellation."""
    settled, never = asyncio.Event(), asyncio.Event()

    @faulty.task(name="send")
    async def send() -> None: ...

    async def lose_the_answer() -> None:
        del store.after["settle"]
        settled.set()
        await never.wait()

    store.after["settle"] = lose_the_answer
    await send.aenqueue_many([{}] * 20)
    worker = Worker(faulty, metrics=True)
    running = asyncio.create_task(worker.run())
    await soon(settled.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    assert (await faulty.jobs.acounts())[State.SUCCEEDED] == 20
    assert counters(counted(worker)) == {"jobs_enqueued": 20, "jobs_started": 20, "jobs_succeeded": 20}


async def test_a_batch_whose_dependants_cannot_be_read_counts_once(
    faulty: Harbor, store: FaultyDriver, monkeypatch: pytest.MonkeyPatch
):
    """The worker is cancelled between the settle and the reading of the jobs that ended with it."""
    reading, never = asyncio.Event(), asyncio.Event()

    @faulty.task(name="send", max_attempts=1)
    async def send() -> None:
        raise ValueError("no luck")

    @faulty.task(name="later")
    async def later() -> None: ...

    read = FaultyDriver.get

    async def read_slowly(self: FaultyDriver, ids: Any) -> Any:
        if not reading.is_set():
            reading.set()
            await never.wait()
        return await read(self, ids)

    await chain(send.si(), later.si()).using(on_failure="cancel").aenqueue()
    worker = Worker(faulty, metrics=True)
    monkeypatch.setattr(FaultyDriver, "get", read_slowly)
    running = asyncio.create_task(worker.run())
    await soon(reading.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    assert counters(counted(worker)) == {
        "jobs_enqueued": 1,
        "jobs_started": 1,
        "jobs_failed": 1,
        "jobs_dead": 1,
        "retry_exhausted": 1,
    }
    assert counters(counted(worker), task="later") == {"jobs_cancelled": 1}


async def test_what_is_settled_after_an_outage_counts_once(faulty: Harbor, store: FaultyDriver):
    @faulty.task(name="send")
    async def send() -> None: ...

    tries: list[int] = []

    def away_at_first(*_: Any) -> Exception | None:
        tries.append(1)
        return StoreUnavailable("away") if len(tries) < 3 else None

    store.fail["settle"] = away_at_first
    await send.aenqueue_many([{}] * 20)
    async with working(faulty, metrics=True) as worker:
        await until(lambda: len(tries) >= 3 or _advanced(store.clock))
        await until(lambda: counters(counted(worker)).get("jobs_succeeded") == 20)
    assert sum_of(counted(worker), catalogue.SETTLE_BATCH) == 20


def _advanced(clock: Any) -> bool:
    clock.advance(0.1)
    return False


async def test_every_way_in_counts_once_and_a_rollback_counts_nothing(tmp_path: Path):
    """1,000 of a committed and 1,000 of a rolled-back transaction, and 1,000 children."""
    file = tmp_path / "harbor.db"
    async with Harbor(f"sqlite:///{file}?synchronous=normal") as harbor:

        @harbor.task(name="send")
        async def send(ctx: Context) -> None:
            ctx.enqueue(child.s())

        @harbor.task(name="child")
        async def child() -> None: ...

        await harbor.amigrate()

        def enqueue_in_transactions() -> None:
            with closing(sqlite3.connect(file)) as connection:
                for end in (connection.commit, connection.rollback):
                    with harbor.transaction(connection):
                        for _ in range(1_000):
                            send.enqueue()
                    end()

        await asyncio.to_thread(enqueue_in_transactions)
        found = counted(await drained(harbor))
        assert (await harbor.jobs.acounts())[State.SUCCEEDED] == 2_000
    enqueued = [counters(found, task=task)["jobs_enqueued"] for task in ("send", "child")]
    assert (enqueued, sum(enqueued)) == ([1_000, 1_000], 2_000)


async def test_jobs_in_memory_and_their_children_count_once(memory: Harbor):
    """1,000 jobs and 1,000 children; a store in memory has no transactions of its callers."""

    @memory.task(name="send")
    async def send(ctx: Context) -> None:
        ctx.enqueue(child.s())

    @memory.task(name="child")
    async def child() -> None: ...

    await send.aenqueue_many([{}] * 1_000)
    found = counted(await drained(memory))
    enqueued = [counters(found, task=task)["jobs_enqueued"] for task in ("send", "child")]
    assert (enqueued, sum(enqueued)) == ([1_000, 1_000], 2_000)


# -- on and off ------------------------------------------------------------------------------------------------


async def test_a_worker_without_metrics_and_roll_ups_calls_no_meter(
    harbor: Harbor, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any) -> None:
        raise AssertionError("it counts")

    for name in ("__init__", "claimed", "settled", "succeeded", "store_settled", "loop_was_late"):
        monkeypatch.setattr(Meter, name, refuse)

    @harbor.task(name="send")
    async def send() -> None: ...

    await send.aenqueue_many([{}] * 20)
    await soon(Worker(harbor, rollups=False).drain())
    assert (await harbor.jobs.acounts())[State.SUCCEEDED] == 20


async def test_a_meter_that_fails_costs_no_job_anything(
    harbor: Harbor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: Any) -> None:
        raise OverflowError("too much")

    monkeypatch.setattr(Meter, "succeeded", fail)

    @harbor.task(name="send")
    async def send() -> None: ...

    await send.aenqueue_many([{}] * 20)
    await drained(harbor)
    assert (await harbor.jobs.acounts())[State.SUCCEEDED] == 20
    assert "settled jobs could not be counted" in caplog.text


async def test_an_application_gives_the_collector_to_its_own_registry(harbor: Harbor):
    @harbor.task(name="send")
    async def send() -> None: ...

    await send.aenqueue()
    registry = CollectorRegistry()
    worker = Worker(harbor, metrics=True)
    registry.register(worker.collector(prefix=""))
    await soon(worker.drain())
    assert b'\njobs_succeeded_total{queue="default",task="send"} 1.0\n' in generate_latest(registry)


async def test_a_worker_that_counts_nothing_has_no_collector(memory: Harbor):
    with pytest.raises(ConfigurationError, match="metrics=True"):
        Worker(memory).collector()


async def test_a_job_that_no_worker_knows_counts_as_other(
    memory: Harbor, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    await memory.aenqueue("canary-of-a-producer")
    found = counted(await drained(memory))
    assert set(found.jobs) == {("default", "_other")}


async def test_the_loops_lag_is_looked_at(memory: Harbor, monkeypatch: pytest.MonkeyPatch):
    late: list[float] = []
    monkeypatch.setattr(Meter, "loop_was_late", lambda self, seconds: late.append(seconds))
    monkeypatch.setattr("taskharbor.telemetry.metrics.meter.watch_loop.__defaults__", (0.001,))
    async with working(memory, metrics=True):
        await until(lambda: len(late) >= 2)


@pytest.mark.parametrize("batch", [1, 3])
def test_times_since_the_year_1_fill_a_sum_and_break_nothing(batch: int):
    meter = Meter(Cells(), lambda task: True)
    since = -60_000_000_000_000_000  # microseconds
    done = attempt(of=job(run_at=since), waited=-since)
    for _ in range(200 // batch):
        settle(meter, *[done] * batch)
    assert count_of(read(meter), catalogue.WAIT) == 200 // batch * batch
    assert sum_of(read(meter), catalogue.WAIT) == 2**63 - 1
