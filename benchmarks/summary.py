"""From samples to statements: medians, spreads, and ratios against the best peer of the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.contestant import Contestant
from benchmarks.rounds import Samples

Accepts = Callable[[type[Contestant], type[Contestant]], bool]
"""Whether the second, a peer on the same store, is one to compare the first with."""

COMPARISONS: dict[str, Accepts] = {
    "vs best peer": lambda one, peer: True,
    "vs best as durable": lambda one, peer: peer.durability >= one.durability,
    "vs best worker as durable": lambda one, peer: peer.own_worker and peer.durability >= one.durability,
}
ANY, AS_DURABLE, WORKER = COMPARISONS


@dataclass(frozen=True)
class Figure:
    """One thing that is measured, and how to read it."""

    title: str
    unit: str
    more_is_better: bool
    comparisons: tuple[str, ...]
    """None for processor use and queries: who sleeps for ten seconds uses nothing, and a ratio to nothing says
    nothing."""


FIGURES = {
    "enqueue_one": Figure("enqueue one by one", "jobs/s", True, (ANY, AS_DURABLE)),
    "enqueue_concurrent": Figure("enqueue by concurrent callers", "jobs/s", True, (ANY, AS_DURABLE)),
    "enqueue_bulk": Figure("bulk enqueue", "jobs/s", True, (ANY, AS_DURABLE)),
    "enqueue_batches": Figure("enqueue in calls of 1,000", "jobs/s", True, (ANY, AS_DURABLE)),
    "enqueue_client_cpu": Figure(
        "enqueue in calls of 1,000: processor time of the client", "µs/job", False, (ANY, AS_DURABLE)
    ),
    "enqueue_server_cpu": Figure(
        "enqueue in calls of 1,000: processor time of the server", "µs/job", False, (ANY, AS_DURABLE)
    ),
    "enqueue_log_bytes": Figure(
        "enqueue in calls of 1,000: bytes in the server's log", "bytes/job", False, (ANY, AS_DURABLE)
    ),
    "drain": Figure("drain, one worker process", "jobs/s", True, (ANY, AS_DURABLE, WORKER)),
    "drain_sync": Figure(
        "drain, handlers that are plain functions", "jobs/s", True, (ANY, AS_DURABLE, WORKER)
    ),
    "worker_cpu": Figure("drain: processor time of the worker", "µs/job", False, (ANY, WORKER)),
    "worker_cpu_sync": Figure(
        "drain, plain functions: processor time of the worker", "µs/job", False, (ANY, WORKER)
    ),
    "server_cpu": Figure("drain: processor time of the server", "µs/job", False, (ANY, WORKER)),
    "server_cpu_sync": Figure(
        "drain, plain functions: processor time of the server", "µs/job", False, (ANY, WORKER)
    ),
    "log_bytes": Figure("drain: bytes in the server's log", "bytes/job", False, (ANY, WORKER)),
    "log_bytes_sync": Figure(
        "drain, plain functions: bytes in the server's log", "bytes/job", False, (ANY, WORKER)
    ),
    "drain_memory": Figure("drain: peak memory of the worker", "MB", False, (ANY, WORKER)),
    "drain_memory_sync": Figure(
        "drain, plain functions: peak memory of the worker", "MB", False, (ANY, WORKER)
    ),
    "latency_p50": Figure("idle latency, p50", "ms", False, (ANY, WORKER)),
    "latency_p99": Figure("idle latency, p99", "ms", False, (ANY, WORKER)),
    "idle_memory": Figure("memory of an idle worker", "MB", False, (ANY, WORKER)),
    "idle_processor": Figure("processor use of an idle worker", "% of a core", False, ()),
    "idle_queries": Figure("queries of an idle worker", "queries/s", False, ()),
    "chord_enqueue": Figure("chord, storing", "jobs/s", True, (ANY,)),
    "chord_drain": Figure("chord, drain", "jobs/s", True, (ANY,)),
    "command_drain": Figure("drain by `taskharbor worker`", "jobs/s", True, ()),
    "supervised_drain": Figure("drain by `taskharbor worker --processes 1`", "jobs/s", True, ()),
    "supervised_drain_2": Figure("drain by `taskharbor worker --processes 2`", "jobs/s", True, ()),
    "recovery_supervised": Figure("job of a killed process begins again, supervised", "s", False, ()),
    "recovery_lease": Figure("job of a killed worker begins again, lease of 5 s", "s", False, ()),
    "rest_one": Figure("REST enqueue, one connection", "jobs/s", True, ()),
    "rest_concurrent": Figure("REST enqueue, many connections", "jobs/s", True, ()),
}


@dataclass(frozen=True)
class Line:
    """What the report says about one contestant under one figure."""

    contestant: type[Contestant]
    seen: list[float]
    """One value for each round; none at all where the contestant cannot do it, or failed."""
    ratios: list[float | None]
    """For each comparison of the figure: how many times better. Above 1 is better, whatever the unit."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.seen) if self.seen else None


def summarize(figure: str, contestants: Sequence[type[Contestant]], samples: Samples) -> list[Line]:
    """A line for each contestant, the best first, those without a value last."""
    seen = {one: samples.values.get(one.name, {}).get(figure, []) for one in contestants}
    medians = {one: statistics.median(values) for one, values in seen.items() if values}
    shown = FIGURES[figure]
    lines = [
        Line(one, seen[one], [ratio(one, medians, COMPARISONS[name], shown) for name in shown.comparisons])
        for one in contestants
    ]
    sign = -1 if shown.more_is_better else 1
    return sorted(lines, key=lambda line: (line.median is None, sign * (line.median or 0)))


def ratio(
    one: type[Contestant], medians: dict[type[Contestant], float], accepts: Accepts, figure: Figure
) -> float | None:
    peers = [
        median
        for other, median in medians.items()
        if other.role == "peer" and other.store == one.store and accepts(one, other)
    ]
    value = medians.get(one)
    if not peers or not value:
        return None
    return value / max(peers) if figure.more_is_better else min(peers) / value
