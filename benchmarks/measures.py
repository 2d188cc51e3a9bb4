"""The measures: each drives one contestant and answers with figures, or None for what it cannot do."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commands import recovery, rest, supervised
from benchmarks.contestant import Contestant
from benchmarks.processes import memory_megabytes, processor_seconds
from benchmarks.settings import Settings
from benchmarks.stores import fresh_store
from benchmarks.worker_process import WorkerProcess, fill_in_other_process
from benchmarks.workflows import chord

WARM_UP_PROBES = 5
GAP_SECONDS = (0.02, 0.15)
IDLE_SECONDS = 5.0

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Arena:
    """Where one measurement takes place."""

    contestant: Contestant
    module: str
    directory: Path
    settings: Settings


def jobs_of(arena: Arena, wanted: int) -> int:
    return min(wanted, arena.contestant.jobs_max or wanted)


def enqueue_one(arena: Arena) -> Figures:
    count = jobs_of(arena, arena.settings.single_jobs)
    return {"enqueue_one": rate(count, arena.contestant.enqueue_one(count))}


def enqueue_concurrent(arena: Arena) -> Figures:
    count, callers = jobs_of(arena, arena.settings.single_jobs), arena.settings.callers
    return {"enqueue_concurrent": rate(count, arena.contestant.enqueue_concurrent(count, callers))}


def enqueue_bulk(arena: Arena) -> Figures:
    count = jobs_of(arena, arena.settings.jobs)
    return {"enqueue_bulk": rate(count, arena.contestant.enqueue_bulk(count))}


def drain(arena: Arena) -> Figures:
    count = jobs_of(arena, arena.settings.jobs)
    arena.contestant.fill(count)
    return {"drain": rate(count, arena.contestant.drain(count))}


def latency(arena: Arena) -> Figures:
    """On an idle store: from just before the enqueue call to the handler's start in another process."""
    if not arena.contestant.separate_worker:
        return {"latency_p50": None, "latency_p99": None}
    milliseconds = []
    with WorkerProcess(arena.module, arena.contestant.name, arena.directory, arena.settings) as worker:
        for number in range(WARM_UP_PROBES + arena.settings.probes):
            sent_ns = time.time_ns()
            arena.contestant.probe(number)
            started_ns = worker.wait_started(number)
            if number >= WARM_UP_PROBES:
                milliseconds.append((started_ns - sent_ns) / 1e6)
            time.sleep(random.uniform(*GAP_SECONDS))  # not in step with anybody's polling
    return {"latency_p50": statistics.median(milliseconds), "latency_p99": percentile(milliseconds, 0.99)}


def idle(arena: Arena) -> Figures:
    """What a worker that has run one job and now has nothing to do uses, and how often it asks the store."""
    if not arena.contestant.separate_worker:
        return {"idle_memory": None, "idle_processor": None, "idle_queries": None}
    arena.contestant.count_queries()
    with WorkerProcess(arena.module, arena.contestant.name, arena.directory, arena.settings) as worker:
        arena.contestant.probe(0)
        worker.wait_started(0)
        time.sleep(0.5)  # let it settle that job
        asked_before = arena.contestant.queries_counted()
        before, begun = processor_seconds(worker.pid), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        after, elapsed = processor_seconds(worker.pid), time.perf_counter() - begun
        asked_after = arena.contestant.queries_counted()
        return {
            "idle_memory": memory_megabytes(worker.pid, peak=False),
            "idle_processor": per_second(before, after, elapsed / 100),
            "idle_queries": per_second(asked_before, asked_after, elapsed),
        }


def drain_memory(arena: Arena) -> Figures:
    """The high-water mark of a process that drains what, where the store allows it, another enqueued."""
    count = jobs_of(arena, arena.settings.memory_jobs)
    if arena.contestant.separate_worker:
        fill_in_other_process(arena.module, arena.contestant.name, arena.directory, arena.settings, count)
    else:
        arena.contestant.fill(count)
    drained = arena.contestant.drain(count)
    return {
        "drain_memory": None
        if drained is None
        else memory_megabytes(arena.contestant.draining_pid(), peak=True)
    }


def rate(count: int, seconds: float | None) -> float | None:
    return None if seconds is None else count / seconds


def per_second(before: float | None, after: float | None, seconds: float) -> float | None:
    return None if before is None or after is None else (after - before) / seconds


def percentile(values: list[float], fraction: float) -> float:
    """Nearest rank: a percentile that was really seen."""
    ordered = sorted(values)
    return ordered[math.ceil(fraction * len(ordered)) - 1]


MEASURES: Mapping[str, Callable[[Arena], Figures]] = {
    "enqueue_one": enqueue_one,
    "enqueue_concurrent": enqueue_concurrent,
    "enqueue_bulk": enqueue_bulk,
    "drain": drain,
    "latency": latency,
    "idle": idle,
    "drain_memory": drain_memory,
    "chord": chord,
    "supervised": supervised,
    "recovery": recovery,
    "rest": rest,
}


def measure(name: str, module: str, contestant: Contestant, settings: Settings, parent: Path) -> Figures:
    """Run one measure on a fresh store, and check first that the store is as durable as it is said to be."""
    with fresh_store(type(contestant), parent) as directory:
        contestant.setup(directory)
        try:
            seen = contestant.observed_durability()
            if seen is not None and seen is not contestant.durability:
                raise RuntimeError(
                    f"{contestant.name} states {contestant.durability.name} but runs {seen.name}"
                )
            return MEASURES[name](Arena(contestant, module, directory, settings))
        finally:
            contestant.close()
