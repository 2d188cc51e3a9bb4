"""Gauges of the store: what they say, and that scrapes do not add up to load."""

from __future__ import annotations

import asyncio
import threading

import pytest

from taskharbor import Harbor, Worker
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.reading import WorkerRecord
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.errors import StoreError
from taskharbor.records import QueueRecord, State
from taskharbor.rules.autoscale import Load
from taskharbor.rules.rollups import begin_of
from taskharbor.telemetry.metrics.cells import PAIRS
from taskharbor.telemetry.metrics.store_gauges import (
    Gauges,
    SeenQueues,
    StoreGauges,
    StoreReading,
    gauges_of,
    in_loop,
    read_store,
)

NOTHING = dict.fromkeys(State, 0)


def worker(name: str, slots: int, *queues: str) -> WorkerRecord:
    return WorkerRecord(name, "host", 1, slots, 0, queues or None)


async def gauges(harbor: Harbor) -> Gauges:
    return gauges_of(await read_store(harbor.driver))


async def test_gauges_say_how_the_store_stands():
    async with Harbor("memory://") as harbor:
        await harbor.aenqueue("send", queue="mail")
        await harbor.aenqueue("send", queue="mail", delay=3_600)
        await harbor.aenqueue("report", queue="slow")
        await harbor.queues.apause("slow")
        await WORKERS.put(harbor.driver, [worker("a", 4, "mail"), worker("b", 8)], 60_000_000)
        found = await gauges(harbor)
    assert found["store_up"] == {(): 1}
    assert {key: value for key, value in found["queue_jobs"].items() if value} == {
        ("mail", "ready"): 1,
        ("mail", "scheduled"): 1,
        ("slow", "ready"): 1,
    }
    assert found["queue_paused"] == {("mail",): 0, ("slow",): 1}
    assert found["queue_workers"] == {("mail",): 2, ("slow",): 1}
    assert found["queue_slots"] == {("mail",): 12, ("slow",): 8}
    assert (found["workers"], found["worker_slots"]) == ({(): 2}, {(): 12})
    assert (found["dead_jobs"], found["waiting_jobs"]) == ({(): 0}, {(): 0})


def test_the_age_of_the_oldest_ready_job_is_by_the_stores_clock():
    queues = [QueueRecord("old", False, 1, 0, 0, 5_000_000), QueueRecord("new", False, 1, 0, 0, 99_000_000)]
    found = gauges_of(StoreReading(35_000_000, NOTHING, queues, []))
    assert found["queue_oldest_ready_seconds"] == {("old",): 30.0, ("new",): 0.0}


def test_slots_wanted_follow_from_the_load_of_each_queue():
    loads = {"busy": Load(arrivals_per_second=10, mean_seconds=0.5), "quiet": Load()}
    found = gauges_of(StoreReading(0, NOTHING, [], [], loads))
    assert found["autoscale_slots"] == {("busy",): 5.0, ("quiet",): 0.0}


async def test_slots_wanted_are_read_from_the_roll_ups():
    async with Harbor("memory://") as harbor:
        at = begin_of(await harbor.driver.now(), Period.MINUTE)
        figures = Figures(enqueued=6_000, duration=(6_000_000, 6_000))
        await Rollups.of(harbor.driver).append_rollups([Rollup(at, "mail", "send", figures)])
        found = await gauges(harbor)
    assert found["autoscale_slots"].keys() == {("mail",)}
    assert found["autoscale_slots"]["mail",] == 1


def test_queues_beyond_the_limit_are_shown_as_one():
    queues = [QueueRecord(f"queue-{number:03}", False, 2, 0, 0, 0) for number in range(PAIRS + 3)]
    found = gauges_of(StoreReading(7_000_000, NOTHING, queues, []))
    assert len(found["queue_oldest_ready_seconds"]) == PAIRS + 1
    assert found["queue_jobs"]["_other", "ready"] == 6
    assert found["queue_oldest_ready_seconds"]["_other",] == 7.0


def test_of_queues_shown_as_one_the_oldest_job_and_all_slots_wanted_count():
    queues = [QueueRecord(f"queue-{number:03}", False, 2, 0, 0, 0) for number in range(PAIRS)]
    queues += [QueueRecord(f"rest-{number}", False, 2, 0, 0, number * 1_000_000) for number in range(3)]
    loads = {queue.name: Load(arrivals_per_second=10, mean_seconds=0.5) for queue in queues}
    found = gauges_of(StoreReading(7_000_000, NOTHING, queues, [], loads))
    assert found["queue_oldest_ready_seconds"]["_other",] == 7.0
    assert found["autoscale_slots"]["_other",] == 15.0


# -- queues that hold nothing --


def queue(name: str, ready: int = 1) -> QueueRecord:
    return QueueRecord(name, False, ready, 0, 0, 0)


async def test_a_queue_without_a_job_is_shown_as_empty_once_it_was_seen():
    """Otherwise its series end whenever its last job does, and graphs and alerts with them."""
    now = [0.0]
    cached = StoreGauges(monotonic=lambda: now[0])
    async with Harbor("memory://") as harbor:

        @harbor.task(name="send", queue="mail")
        async def send() -> None: ...

        await send.aenqueue()
        first = await cached.aread(lambda: read_store(harbor.driver))
        await Worker(harbor, rollups=False).drain()
        now[0] += 1
        assert await harbor.driver.queues() == []
        later = await cached.aread(lambda: read_store(harbor.driver))
    assert first["queue_jobs"]["mail", "ready"] == 1
    assert later["queue_jobs"] == dict.fromkeys(
        [("mail", state) for state in ("ready", "scheduled", "running")], 0
    )
    for name in (
        "queue_oldest_ready_seconds",
        "queue_paused",
        "queue_workers",
        "queue_slots",
        "autoscale_slots",
    ):
        assert later[name] == {("mail",): 0}, name


def test_a_queue_that_a_worker_names_is_shown_before_its_first_job():
    reading = StoreReading(0, NOTHING, [], [worker("a", 4, "mail", "sms"), worker("b", 8)])
    found = gauges_of(SeenQueues().added_to(reading))
    assert found["queue_workers"] == {("mail",): 2, ("sms",): 2}
    assert found["queue_jobs"]["sms", "ready"] == 0
    assert found["autoscale_slots"] == {}  # this store has no roll-ups


def test_a_queue_that_was_seen_keeps_the_load_that_the_roll_ups_show():
    seen = SeenQueues()
    seen.added_to(StoreReading(0, NOTHING, [queue("mail"), queue("sms")], [], {}))
    load = Load(arrivals_per_second=10, mean_seconds=0.5)
    found = gauges_of(seen.added_to(StoreReading(0, NOTHING, [], [], {"mail": load})))
    assert found["autoscale_slots"] == {("mail",): 5.0, ("sms",): 0.0}


def test_only_so_many_empty_queues_are_shown_and_the_latest_of_them():
    seen = SeenQueues()
    for number in range(PAIRS + 50):
        seen.added_to(StoreReading(0, NOTHING, [queue(f"queue-{number:03}")], [], {}))
    again = StoreReading(0, NOTHING, [queue("new", 3), queue("other", 4)], [], {})
    found = gauges_of(seen.added_to(again))
    latest = {f"queue-{number:03}" for number in range(52, PAIRS + 50)}
    assert {name for name, _ in found["queue_jobs"]} == {"new", "other"} | latest
    assert {name for (name,) in found["autoscale_slots"]} == {"new", "other"} | latest
    assert found["queue_jobs"]["new", "ready"] == 3


def test_a_queue_that_is_seen_again_is_remembered_for_longer():
    seen = SeenQueues()
    for number in range(PAIRS):
        seen.added_to(StoreReading(0, NOTHING, [queue(f"queue-{number:03}")], []))
    seen.added_to(StoreReading(0, NOTHING, [queue("queue-000")], []))
    found = gauges_of(seen.added_to(StoreReading(0, NOTHING, [queue("new")], [])))
    shown = {name for name, _ in found["queue_jobs"]}
    assert {"new", "queue-000"} <= shown
    assert "queue-001" not in shown


def test_what_was_seen_once_is_forgotten_when_there_is_too_much_of_it():
    """However many queues are there at once, and then gone."""
    seen = SeenQueues()
    many = [queue(f"queue-{number:03}") for number in range(3 * PAIRS)]
    seen.added_to(StoreReading(0, NOTHING, many, []))
    reading = seen.added_to(StoreReading(0, NOTHING, [], []))
    assert [each.name for each in reading.queues] == [each.name for each in many[-PAIRS:]]


def test_a_queue_that_a_worker_names_takes_no_room_from_those_that_hold_jobs():
    many = [queue(f"queue-{number:03}", 2) for number in range(PAIRS)]
    reading = StoreReading(0, NOTHING, many, [worker("a", 4, "zzz")], {})
    found = gauges_of(SeenQueues().added_to(reading))
    assert {name for name, _ in found["queue_jobs"]} == {each.name for each in many}


def test_empty_queues_take_no_room_from_those_that_hold_jobs():
    seen = SeenQueues()
    seen.added_to(StoreReading(0, NOTHING, [queue("aaa")], [], {}))
    many = [queue(f"queue-{number:03}", 2) for number in range(PAIRS)]
    loads = {each.name: Load(ready=2) for each in many}
    found = gauges_of(seen.added_to(StoreReading(0, NOTHING, many, [], loads)))
    assert {name for name, _ in found["queue_jobs"]} == loads.keys()
    assert {name for (name,) in found["autoscale_slots"]} == loads.keys()


# -- how often the store is read --


class Counted:
    """A reader that counts its calls."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self._error = error

    def __call__(self) -> StoreReading:
        self.calls += 1
        if self._error is not None:
            raise self._error
        return StoreReading(0, NOTHING, [], [])

    async def asynchronous(self) -> StoreReading:
        await asyncio.sleep(0)
        return self()


def test_the_store_is_read_once_a_second_at_most():
    now, counted = [0.0], Counted()
    cached = StoreGauges(monotonic=lambda: now[0])
    for second in (0.0, 0.5, 0.99, 1.0, 1.9, 2.1):
        now[0] = second
        assert cached.read(counted)["store_up"] == {(): 1}
    assert counted.calls == 3


async def test_scrapes_at_the_same_time_read_the_store_once():
    counted = Counted()
    cached = StoreGauges(monotonic=lambda: 0.0)
    await asyncio.gather(*(cached.aread(counted.asynchronous) for _ in range(5)))
    assert counted.calls == 1


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_store_that_cannot_be_read_is_down_and_asked_again_a_second_later(
    asynchronous: bool, caplog: pytest.LogCaptureFixture
):
    now = [0.0]
    counted = Counted(StoreError("cannot reach postgresql://user:canary@host/db"))
    cached = StoreGauges(monotonic=lambda: now[0])
    for second in (0.0, 0.5, 1.5):
        now[0] = second
        found = await cached.aread(counted.asynchronous) if asynchronous else cached.read(counted)
        assert found == {"store_up": {(): 0.0}}
    assert counted.calls == 2
    assert "the store cannot be read for its metrics" in caplog.text
    assert "canary" not in caplog.text


async def test_a_thread_reads_through_the_loop_of_the_store():
    loop = asyncio.get_running_loop()
    threads: list[str] = []

    async def read() -> StoreReading:
        threads.append(threading.current_thread().name)
        return StoreReading(0, NOTHING, [], [])

    found = await asyncio.to_thread(StoreGauges().read, in_loop(loop, read))
    assert found["store_up"] == {(): 1}
    assert threads == [threading.current_thread().name]
