"""Handlers that take time: the peak rate, what a job costs there, and how long a job waits, idle and at half the peak.

All contestants run the same number of handlers at once. The load at half the peak comes in small bulk calls, a hundred
a second; a probe among them is one job by one call, and its wait is from just before the call to its handler's start.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

from benchmarks.contestant import Contestant
from benchmarks.measures import Arena, Figures, measured_drain, percentile
from benchmarks.settings import Settings
from benchmarks.stores import fresh_store
from benchmarks.work import KINDS, Kind, Work
from benchmarks.worker_process import WorkerProcess

MILLISECONDS = (0, 1, 10, 100)
SLOTS: dict[Kind, int] = {"async": 1_000, "sync": 100, "process": 4}
"""Handlers at once: more threads or processes than this are no way to run two cores."""

PEAK_SECONDS = 2.0
RATE_MAX = 10_000.0
"""Above this no contestant is limited by the handler, and the number of jobs is bounded by it."""
WARM_UP_PROBES = 5
IDLE_PROBES = 25
LOAD_SECONDS = 3.0
LOAD_WARM_UP_SECONDS = 0.5
TICK_SECONDS = 0.01
PROBE_SECONDS = (0.02, 0.06)
FIGURES = ("drain", "worker_cpu", "server_cpu", "idle_p50", "half_p50", "half_p99")


def works(contestant: type[Contestant]) -> list[Work]:
    """What a contestant is measured with; nothing for one whose handlers only do nothing."""
    if not contestant.separate_worker or contestant.fill_work is Contestant.fill_work:
        return []
    return [Work(kind, each) for kind in KINDS if kind in contestant.kinds for each in MILLISECONDS]


def jobs_at_peak(work: Work, settings: Settings) -> int:
    """As many as take about two seconds if only the handlers' sleep counted, and no more than a plain drain has."""
    rate = min(RATE_MAX, SLOTS[work.kind] / work.seconds) if work.milliseconds else RATE_MAX
    return max(1, min(settings.jobs, round(rate * PEAK_SECONDS)))


def measure_work(
    module: str, contestant: Contestant, work: Work, settings: Settings, parent: Path
) -> dict[str, float | None]:
    contestant.slots = SLOTS[work.kind]
    with fresh_store(type(contestant), parent) as directory:
        contestant.setup(directory)
        try:
            arena = Arena(contestant, module, directory, settings)
            peak = measured_drain(arena, work, jobs_at_peak(work, settings))
        finally:
            contestant.close()
    with fresh_store(type(contestant), parent) as directory:
        contestant.setup(directory)
        try:
            waits = measure_waits(Arena(contestant, module, directory, settings), work, peak["drain"] or 0.0)
        finally:
            contestant.close()
    figures = {**peak, **waits}
    return {f"{work}: {name}": figures[name] for name in FIGURES}


def measure_waits(arena: Arena, work: Work, peak: float) -> Figures:
    """Milliseconds from an enqueue to the handler's start in a worker of another process."""
    contestant = arena.contestant
    with WorkerProcess(arena.module, contestant.name, arena.directory, arena.settings, work) as worker:

        def one_after_another(numbers: range) -> list[float]:
            waits = []
            for number in numbers:
                sent_ns = time.time_ns()
                contestant.probe_work(work, number)
                waits.append((worker.wait_started(number) - sent_ns) / 1e6)
                time.sleep(random.uniform(*PROBE_SECONDS))
            return waits

        one_after_another(range(WARM_UP_PROBES))
        idle = one_after_another(range(WARM_UP_PROBES, WARM_UP_PROBES + IDLE_PROBES))
        half = waits_under_load(contestant, worker, work, peak / 2)
    return {
        "idle_p50": statistics.median(idle),
        "half_p50": statistics.median(half),
        "half_p99": percentile(half, 0.99),
    }


def waits_under_load(contestant: Contestant, worker: WorkerProcess, work: Work, rate: float) -> list[float]:
    sent_ns: dict[int, int] = {}
    enqueued = 0
    begun = time.perf_counter()
    next_probe_at = begun + LOAD_WARM_UP_SECONDS
    number = 1_000_000  # not one of the idle probes
    while (now := time.perf_counter()) < begun + LOAD_WARM_UP_SECONDS + LOAD_SECONDS:
        due = int((now - begun) * rate) - enqueued
        if due > 0:
            contestant.fill_work(work, due)
            enqueued += due
        if time.perf_counter() >= next_probe_at:
            number += 1
            sent_ns[number] = time.time_ns()
            contestant.probe_work(work, number)
            next_probe_at = time.perf_counter() + random.uniform(*PROBE_SECONDS)
        time.sleep(max(0.0, now + TICK_SECONDS - time.perf_counter()))
    return [(worker.wait_started(each) - sent_ns[each]) / 1e6 for each in sent_ns]
