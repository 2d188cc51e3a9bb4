"""How many jobs a second a server should carry: costs fitted to measurements, and the resource that ends first.

Pure functions over values. The model is made of bounds: each resource allows a number of jobs a second, and the least
of them is the capacity. A bound is never reached quite; `efficiency` is the share that the measurements reached.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MICROSECONDS = 1e6


@dataclass(frozen=True)
class Drained:
    """A drain by some worker processes, on the same machine as the server."""

    processes: int
    jobs_per_second: float
    worker_us: float
    """Processor time of the workers for a job."""
    server_us: float
    log_bytes: float


@dataclass(frozen=True)
class Idle:
    """Workers with nothing to do."""

    workers: int
    server_us_per_second: float


@dataclass(frozen=True)
class Enqueued:
    """What enqueueing one job costs the server."""

    server_us: float
    log_bytes: float


@dataclass(frozen=True)
class Costs:
    """What a job costs from its enqueue to its settled end, and what a worker costs that waits."""

    worker_us: float
    server_us: float
    """Processor time of the server for a job of the drain, with one worker process."""
    server_us_more: float
    """What each further worker process adds to it."""
    claim_us: float
    """The part of it during which a claim holds the head of its queue: claims of one queue follow one another."""
    log_bytes: float
    enqueue: Enqueued
    idle_us_per_second: float
    """Processor time of the server for one idle worker, each second."""
    efficiency: float

    def server_us_at(self, processes: int) -> float:
        return self.server_us + self.server_us_more * (processes - 1)


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server by itself; its workers run elsewhere."""

    cores: int
    log_bytes_per_second: float
    connections: int
    load: float = 0.7
    """The share of its processor that may be in use: above it waits grow fast."""


@dataclass(frozen=True)
class Capacity:
    processes: int
    jobs_per_second: float
    ends_first: str
    limits: dict[str, float]
    """For each resource: the jobs a second that it allows."""


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The start and the slope of the line with the least squares; a slope that falls counts as none."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    middle_x, middle_y = statistics.fmean(xs), statistics.fmean(ys)
    width = sum((x - middle_x) ** 2 for x in xs)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / width if width else 0.0
    if slope < 0:
        return middle_y, 0.0
    return middle_y - slope * middle_x, slope


def fit(
    drained: Sequence[Drained], idle: Sequence[Idle], enqueued: Enqueued, claim_us: float, cores: int
) -> Costs:
    """The costs that describe these measurements, made on a machine with this many cores."""
    server_us, more = line([(each.processes - 1, each.server_us) for each in drained])
    _, idle_us = line([(each.workers, each.server_us_per_second) for each in idle])
    costs = Costs(
        worker_us=statistics.median(each.worker_us for each in drained),
        server_us=server_us,
        server_us_more=more,
        claim_us=claim_us,
        log_bytes=statistics.median(each.log_bytes for each in drained),
        enqueue=enqueued,
        idle_us_per_second=idle_us,
        efficiency=1.0,
    )
    reached = [each.jobs_per_second / bound_together(costs, each.processes, cores) for each in drained]
    return Costs(**{**vars(costs), "efficiency": min(1.0, statistics.median(reached))})


def bound_together(costs: Costs, processes: int, cores: int) -> float:
    """The drain's bound where workers and server share the cores of one machine."""
    server_us = costs.server_us_at(processes)
    return min(
        processes * MICROSECONDS / costs.worker_us,  # a process of Python computes on one core
        cores * MICROSECONDS / (costs.worker_us + server_us),
        MICROSECONDS / costs.claim_us,
    )


def predicted_together(costs: Costs, processes: int, cores: int) -> float:
    return costs.efficiency * bound_together(costs, processes, cores)


def limits(costs: Costs, server: Server, processes: int, *, idle_workers: int = 0) -> dict[str, float]:
    """Jobs a second that each resource allows, where every job is enqueued, run and settled."""
    job_us = costs.server_us_at(processes) + costs.enqueue.server_us
    available_us = server.load * server.cores * MICROSECONDS - idle_workers * costs.idle_us_per_second
    return {
        "workers": costs.efficiency * processes * MICROSECONDS / costs.worker_us,
        "server's processor": max(0.0, available_us) / job_us,
        "claims of one harbor": costs.efficiency * MICROSECONDS / costs.claim_us,
        "server's log": server.log_bytes_per_second / (costs.log_bytes + costs.enqueue.log_bytes),
    }


def capacity(costs: Costs, server: Server, connections_of_process: int, *, idle_workers: int = 0) -> Capacity:
    """Add worker processes until something else than they ends first, or the server has no connection left."""
    most = max(1, server.connections // connections_of_process)
    for processes in range(1, most + 1):
        allowed = limits(costs, server, processes, idle_workers=idle_workers)
        first = min(allowed, key=lambda name: allowed[name])
        if first != "workers":
            return Capacity(processes, allowed[first], first, allowed)
    allowed = limits(costs, server, most, idle_workers=idle_workers)
    return Capacity(most, allowed["workers"], "connections", allowed)
