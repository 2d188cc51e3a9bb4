"""Totals: every process counts once, while it runs and after it has ended."""

from __future__ import annotations

import os
import threading
import time

from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.cells import OTHER, OTHER_NAME, PAIRS, Cells
from taskharbor.telemetry.metrics.exposition import Renderer
from taskharbor.telemetry.metrics.totals import Totals
from tests.telemetry.attempts import attempt, count_of, counters, job, new_meter, settle


def test_a_process_counts_the_same_before_and_after_its_end():
    totals = Totals()
    first, second = new_meter(), new_meter()
    totals.add(first.cells)
    totals.add(second.cells)
    settle(first, attempt(), attempt(of=job("other")), seconds=0.1)
    settle(second, attempt(), seconds=0.1)
    running = totals.snapshot()
    assert counters(running) == {"jobs_started": 2, "jobs_succeeded": 2}
    assert count_of(running, catalogue.SETTLE_DURATION) == 2
    totals.end(first.cells)
    assert totals.snapshot() == running
    first.cells.close()
    totals.end(second.cells)
    second.cells.close()
    assert totals.snapshot() == running


def test_recycling_a_thousand_processes_stays_exact_and_quick():
    totals = Totals()
    files = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    for number in range(1_000):
        meter = new_meter()
        totals.add(meter.cells)
        settle(meter, *[attempt(of=job(f"task-{number % 5}"))] * 3)
        totals.end(meter.cells)
        meter.cells.close()
    snapshot = totals.snapshot()
    assert sum(counters(snapshot, *pair)["jobs_succeeded"] for pair in snapshot.jobs) == 3_000
    began = time.thread_time()
    Renderer(totals.snapshot).render()
    assert time.thread_time() - began < 0.05
    if files:
        assert set(os.listdir("/proc/self/fd")) <= files


def test_a_series_never_falls_when_its_process_ends():
    """Processes may have more series together than there is room for: none may move when one of them ends."""
    totals = Totals()
    meters = [new_meter() for _ in range(3)]
    for number, meter in enumerate(meters):
        totals.add(meter.cells)
        for task in range(PAIRS):
            settle(meter, attempt(of=job(f"task-{number}-{task}")))
    before = totals.snapshot()
    assert len(before.jobs) == PAIRS + 1
    assert counters(before, *OTHER)["jobs_succeeded"] == 2 * PAIRS
    for meter in meters:
        totals.end(meter.cells)
    assert totals.snapshot() == before


def test_a_queue_called_other_takes_no_room_from_another_series():
    totals = Totals()
    meter = new_meter(lambda task: task != "unknown")
    totals.add(meter.cells)
    settle(meter, attempt(of=job("unknown", queue=OTHER_NAME)))
    assert set(totals.snapshot().jobs) == {OTHER}
    for task in range(PAIRS):
        settle(meter, attempt(of=job(f"task-{task}")))
    found = totals.snapshot()
    assert len(found.jobs) == PAIRS + 1
    assert counters(found, *OTHER) == {"jobs_started": 1, "jobs_succeeded": 1}


def test_tasks_are_known_once_a_process_has_counted_them():
    totals = Totals()
    meter = new_meter()
    totals.add(meter.cells)
    assert not totals.knows("send")
    settle(meter, attempt())
    assert totals.knows("send")
    totals.end(meter.cells)
    assert totals.knows("send")
    assert not totals.knows("other")


def test_a_scrape_waits_while_a_process_ends():
    """Otherwise it would read a process as neither running nor ended."""
    totals = Totals()
    scrapes: list[threading.Thread] = []

    class Ending(Cells):
        def process(self) -> list[int]:
            if not scrapes:
                scrapes.append(threading.Thread(target=totals.snapshot))
                scrapes[0].start()
                scrapes[0].join(0.05)
                assert scrapes[0].is_alive()
            return super().process()

    cells = Ending()
    totals.add(cells)
    totals.end(cells)
    scrapes[0].join()


def test_readers_in_other_threads_never_see_a_process_twice_nor_miss_it():
    totals = Totals()
    stop = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while not stop.is_set():
            jobs = totals.snapshot().jobs
            seen.append(sum(words[1] for words in jobs.values()))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(200):
        meter = new_meter()
        totals.add(meter.cells)
        settle(meter, attempt())
        totals.end(meter.cells)
        meter.cells.close()
    stop.set()
    reader.join()
    assert seen == sorted(seen)
    assert totals.snapshot().jobs["default", "send"][1] == 200
