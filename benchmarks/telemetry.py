"""What telemetry costs a drain: each kind of it on, against all of it off, interleaved within one process.

A round is a process of its own. It drains equal stores in the order of the variants, then in the reverse order, so that
a machine that slows down meanwhile slows all of them down. A ratio compares a variant with `off` of the same round.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import end_with_parent
from benchmarks.report import DASH, Table, number
from benchmarks.settings import Settings

STORES = ("memory", "sqlite", "postgresql")
BATCH = 10_000  # jobs in one enqueue_many
SERIES = 200  # queues and tasks of the scrape
PROCESSES = 4  # whose counts the scrape adds up
SCRAPES = 15
BOUND_RANK = 2  # of nine ratios the second and the eighth bound their median with a certainty of 96 %


@dataclass(frozen=True)
class Variant:
    """What is switched on."""

    name: str
    worker: Mapping[str, Any] = field(default_factory=dict)
    is_traced: bool = False
    job: Mapping[str, Any] = field(default_factory=dict)


OFF = Variant("off")
VARIANTS = (
    OFF,
    Variant("metrics", {"metrics": True}),
    Variant("roll-ups", {"rollups": True}),
    Variant("metrics and roll-ups", {"metrics": True, "rollups": True}),
    Variant("tracing without an SDK", is_traced=True),
    Variant("a meta of one entry", job={"meta": {"tenant": "acme"}}),
)


# -- one round, in a process of its own --


def measure(store: str, jobs: int, scratch: Path) -> dict[str, dict[str, float]]:
    """Return the jobs a second and the microseconds of the worker's processor by job, for each variant."""
    found: dict[str, list[tuple[float, float]]] = {variant.name: [] for variant in VARIANTS}
    for variant in VARIANTS:  # imports, and the processor's own warming up
        _drain(store, variant, jobs // 10, scratch)
    for variant in (*VARIANTS, *reversed(VARIANTS)):
        found[variant.name].append(_drain(store, variant, jobs, scratch))
    return {
        name: {
            "rate": jobs / statistics.mean(seconds for seconds, _ in each),
            "cpu": statistics.mean(processor for _, processor in each) / jobs * 1e6,
        }
        for name, each in found.items()
    }


def _drain(store: str, variant: Variant, jobs: int, scratch: Path) -> tuple[float, float]:
    """Return the seconds of a drain, and those of this process's processor."""
    from taskharbor import Harbor, Worker

    with _url(store, scratch) as url:
        harbor = Harbor(url)
        harbor.migrate()
        if variant.is_traced:
            from taskharbor.telemetry.tracing import instrument

            instrument(harbor)

        @harbor.task(name="noop")
        async def noop() -> None: ...

        async def drain() -> tuple[float, float]:
            task = noop.using(**variant.job)
            for begin in range(0, jobs, BATCH):
                await task.aenqueue_many([{}] * min(BATCH, jobs - begin))
            options: dict[str, Any] = {"metrics": False, "rollups": False, **variant.worker}
            worker = Worker(harbor, concurrency=100, **options)
            gc.collect()
            processor, begun = time.process_time(), time.perf_counter()
            await worker.drain()
            seconds, used = time.perf_counter() - begun, time.process_time() - processor
            counts = await harbor.jobs.acounts()
            assert counts["succeeded"] == jobs, counts
            await harbor.aclose()
            return seconds, used

        return asyncio.run(drain())


@contextmanager
def _url(store: str, scratch: Path) -> Iterator[str]:
    """An empty store."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="bench-") as created:
        if store != "postgresql":
            yield "memory://" if store == "memory" else f"sqlite:///{created}/harbor.db"
            return
        from benchmarks import postgres

        directory = Path(created)
        postgres.create_database(directory)
        try:
            yield postgres.url_of(directory)
        finally:
            postgres.drop_database(directory)


def measure_scrape() -> dict[str, float]:
    """Return the milliseconds of a processor for a scrape of as many queues and tasks as there can be."""
    from taskharbor.drivers.base import Claimed, SettleAnswer, SettleResult, Transition
    from taskharbor.records import AttemptStatus, State
    from taskharbor.telemetry.metrics.cells import Cells
    from taskharbor.telemetry.metrics.exposition import Renderer
    from taskharbor.telemetry.metrics.meter import Meter
    from taskharbor.telemetry.metrics.totals import Totals

    totals = Totals()
    success = Transition("token", "id", 1, AttemptStatus.SUCCEEDED, State.SUCCEEDED, started_at=5)
    retry = Transition("token", "id", 1, AttemptStatus.FAILED, State.READY, started_at=5, delay=3_000_000)
    answer = SettleResult(SettleAnswer.DONE, None, None, at=40_000)
    for _ in range(PROCESSES):
        meter = Meter(Cells(), lambda task: True)
        totals.add(meter.cells)
        for index in range(SERIES):
            job = Claimed("id", f"task-{index}", "{}", f"queue-{index % 7}", 0, 1, 0, 1, 0, 0)
            meter.claimed([job], 0.01)
            meter.settled([job, job], [success, retry], [answer, answer], 0.01)
    renderer = Renderer(totals.snapshot)
    found = {}
    for name, accept in (("plain", ""), ("OpenMetrics", "application/openmetrics-text; version=1.0.0")):
        seen = []
        for _ in range(SCRAPES):
            begun = time.thread_time()
            renderer.render(accept)
            seen.append((time.thread_time() - begun) * 1e3)
        found[name] = statistics.median(seen)
    return found


# -- a run --


def run_telemetry(stores: Sequence[str], settings: Settings, scratch: Path) -> list[Table]:
    """Measure every store in turn in each round, then the scrape; return the tables."""
    found: dict[str, list[dict[str, dict[str, float]]]] = {store: [] for store in stores}
    for current in range(1, settings.rounds + 1):
        for store in stores:
            print(f"telemetry {current}/{settings.rounds} {store} … ", end="", flush=True)
            figures = _in_child("drain", store, str(settings.jobs), str(scratch))
            found[store].append(figures)
            print(", ".join(f"{name} {each['cpu']:.2f} µs" for name, each in figures.items()), flush=True)
    scrape = _in_child("scrape")
    return [*(drain_table(store, rounds) for store, rounds in found.items()), scrape_table(scrape)]


def _in_child(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.telemetry", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=end_with_parent,
    )
    return json.loads(done.stdout.splitlines()[-1])


def drain_table(store: str, rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> Table:
    head = ["", "jobs/s", "of off (interval)", "worker CPU, µs a job", "of off (interval)"]
    rows = [
        [variant.name, *(cell for figure in ("rate", "cpu") for cell in _cells(rounds, variant, figure))]
        for variant in VARIANTS
    ]
    return Table(f"What telemetry costs a drain, {store}", head, rows)


def _cells(rounds: Sequence[Mapping[str, Mapping[str, float]]], variant: Variant, figure: str) -> list[str]:
    middle = number(statistics.median(each[variant.name][figure] for each in rounds))
    if variant is OFF:
        return [middle, ""]
    low, median, high = interval([each[variant.name][figure] / each[OFF.name][figure] for each in rounds])
    return [middle, f"{median:.3f} ({low:.3f}{DASH}{high:.3f})"]


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return a lower bound of the median, the median, and an upper bound; of few ratios, the least and the greatest."""
    ordered = sorted(ratios)
    rank = BOUND_RANK if len(ordered) >= 9 else 1
    return ordered[rank - 1], statistics.median(ordered), ordered[-rank]


def scrape_table(figures: Mapping[str, float]) -> Table:
    title = f"A scrape of {SERIES} queues and tasks that {PROCESSES} processes have counted"
    return Table(title, ["format", "CPU, ms"], [[name, number(value)] for name, value in figures.items()])


_CHILD: dict[str, Callable[..., Any]] = {
    "drain": lambda store, jobs, scratch: measure(store, int(jobs), Path(scratch)),
    "scrape": measure_scrape,
}

if __name__ == "__main__":
    print(json.dumps(_CHILD[sys.argv[1]](*sys.argv[2:])))
