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
from benchmarks.processes import family_seconds, memory_megabytes, processor_seconds
from benchmarks.settings import Settings
from benchmarks.stores import fresh_store
from benchmarks.work import PLAIN, PLAIN_SYNC, Work
from benchmarks.worker_process import WorkerProcess, fill_in_other_process
from benchmarks.workflows import chord

WARM_UP_PROBES = 5
GAP_SECONDS = (0.02, 0.15)
IDLE_SECONDS = 5.0

DRAIN_FIGURES = ("drain", "worker_cpu", "server_cpu", "log_bytes", "drain_memory")

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


def enqueue_batches(arena: Arena) -> Figures:
    """Calls of 1,000 jobs, and what one job costs the client and the server."""
    count = jobs_of(arena, arena.settings.jobs)
    seconds, cost = with_cost(arena.contestant, count, arena.contestant.enqueue_batches)
    if seconds is None:
        return dict.fromkeys(
            ("enqueue_batches", "enqueue_client_cpu", "enqueue_server_cpu", "enqueue_log_bytes")
        )
    return {
        "enqueue_batches": count / seconds,
        "enqueue_client_cpu": cost.client_microseconds,
        "enqueue_server_cpu": cost.server_microseconds,
        "enqueue_log_bytes": cost.log_bytes,
    }


def drain(arena: Arena) -> Figures:
    """The rate, and what one job costs: processor time, bytes of the server's log, and the worker's peak memory."""
    return measured_drain(arena, PLAIN)


def drain_sync(arena: Arena) -> Figures:
    """The same with a handler that is a plain function, for those that run these in threads."""
    return {f"{figure}_sync": value for figure, value in measured_drain(arena, PLAIN_SYNC).items()}


def measured_drain(arena: Arena, work: Work, count: int | None = None) -> Figures:
    contestant = arena.contestant
    if work.kind not in contestant.kinds:
        return dict.fromkeys(DRAIN_FIGURES)
    count = jobs_of(arena, count or arena.settings.jobs)
    if contestant.separate_worker:  # the memory of enqueueing is not the worker's
        fill_in_other_process(arena.module, contestant.name, arena.directory, arena.settings, count, work)
    else:
        contestant.fill_work(work, count)
    seconds, cost = with_cost(contestant, count, contestant.drain)
    if seconds is None:
        return dict.fromkeys(DRAIN_FIGURES)
    return {
        "drain": count / seconds,
        "worker_cpu": cost.client_microseconds,
        "server_cpu": cost.server_microseconds,
        "log_bytes": cost.log_bytes,
        "drain_memory": memory_megabytes(contestant.draining_pid(), peak=True),
    }


@dataclass(frozen=True)
class Cost:
    """What one job took; None where it cannot be known."""

    client_microseconds: float | None
    server_microseconds: float | None
    log_bytes: float | None


def with_cost(
    contestant: Contestant, count: int, verb: Callable[[int], float | None]
) -> tuple[float | None, Cost]:
    """The seconds of a verb, and its cost by job."""

    def used() -> tuple[float | None, float | None, float | None]:
        return family_seconds(contestant.draining_pid()), contestant.server_seconds(), contestant.log_bytes()

    before = used()
    seconds = verb(count)
    client, server, log = (per_second(*pair, count) for pair in zip(before, used(), strict=True))
    return seconds, Cost(client and client * 1e6, server and server * 1e6, log)


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
    "enqueue_batches": enqueue_batches,
    "drain": drain,
    "drain_sync": drain_sync,
    "latency": latency,
    "idle": idle,
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
