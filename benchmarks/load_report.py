"""The sections of docs/scaling.md: measurements, the model that is fitted to them, and its picture."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.contestant import Contestant
from benchmarks.discovery import Entry
from benchmarks.load_model import (
    Capacity,
    Costs,
    Drained,
    Enqueued,
    Idle,
    Server,
    capacity,
    fit,
    limits,
    predicted_together,
)
from benchmarks.report import DASH, Table, number, spread
from benchmarks.rounds import Samples, rounds, run_child
from benchmarks.settings import Settings

PROCESSES = (1, 2, 4, 8)
IDLE_WORKERS = (10, 100, 1_000)
SERVER_CORES = (2, 4, 8, 16, 32)
LOG_BYTES_PER_SECOND = 200e6
"""What a small cloud disk writes in order; a local one writes several times as much."""
CONNECTIONS = 400
CONNECTIONS_OF_PROCESS = 8
NAME = "taskharbor postgres"
PICTURE = Path(__file__).parent.parent / "docs/images/capacity.svg"


def run_load(entries: Sequence[Entry], settings: Settings, scratch: Path) -> Samples:
    """All of it in turn, round by round: what a job costs, by 1 to 8 processes, and idle workers."""
    samples = Samples()
    [entry] = entries
    where = ["--directory", str(scratch)]
    for turn in rounds(settings, samples, scratch):
        label = f"load {turn}/{settings.rounds}"
        arguments = ["--measure", "enqueue_batches", *where]
        run_child("measure", entry, arguments, settings, samples, f"{label} enqueue", number=turn)
        run_child("footprint", entry, where, settings, samples, f"{label} footprint", number=turn)
        for processes in PROCESSES:
            arguments = ["--count", str(processes), *where]
            name = f"{label} {processes} processes"
            run_child("scale", entry, arguments, settings, samples, name, number=turn)
        for workers in IDLE_WORKERS:
            arguments = ["--count", str(workers), *where]
            name = f"{label} {workers} idle workers"
            run_child("idle_workers", entry, arguments, settings, samples, name, number=turn)
    return samples


def costs_of(samples: Samples, cores: int) -> Costs:
    seen = {figure: statistics.median(values) for figure, values in samples.values[NAME].items()}
    return fit(
        [
            Drained(
                count,
                seen[f"processes_{count}"],
                seen[f"processes_worker_cpu_{count}"],
                seen[f"processes_server_cpu_{count}"],
                seen[f"processes_log_bytes_{count}"],
            )
            for count in PROCESSES
        ],
        [
            Idle(count, seen[f"idle_server_us_{count}"])
            for count in IDLE_WORKERS
            if f"idle_server_us_{count}" in seen  # a small machine may not get 1,000 of them started
        ],
        Enqueued(seen["enqueue_server_cpu"], seen["enqueue_log_bytes"]),
        seen["claim_share"] * seen["processes_server_cpu_1"],
        cores,
    )


def load_tables(contestants: Sequence[type[Contestant]], samples: Samples, settings: Settings) -> list[Table]:
    seen = samples.values.get(NAME, {})
    cores = os.cpu_count() or 1
    costs = costs_of(samples, cores)
    PICTURE.write_text(picture(costs), "utf-8")
    return [
        cost_table(costs, seen),
        drained_table(costs, seen, cores),
        idle_table(seen),
        capacity_table(costs),
        limits_table(costs),
    ]


def cell(seen: Mapping[str, list[float]], figure: str) -> str:
    values = seen.get(figure)
    return f"{number(statistics.median(values))} ({spread(values)})" if values else DASH


def cost_table(costs: Costs, seen: Mapping[str, list[float]]) -> Table:
    rows = [
        ["enqueue in calls of 1,000: client's processor", "µs", cell(seen, "enqueue_client_cpu")],
        ["enqueue in calls of 1,000: server's processor", "µs", cell(seen, "enqueue_server_cpu")],
        ["enqueue in calls of 1,000: server's log", "bytes", cell(seen, "enqueue_log_bytes")],
        ["claim, run and settle: worker's processor", "µs", cell(seen, "processes_worker_cpu_1")],
        ["claim, run and settle: server's processor", "µs", cell(seen, "processes_server_cpu_1")],
        ["of it in claims, which follow one another", "share", cell(seen, "claim_share")],
        ["claim, run and settle: server's log", "bytes", cell(seen, "processes_log_bytes_1")],
        ["on the disk while it waits", "bytes", cell(seen, "waiting_bytes")],
        ["on the disk when it is finished, with its history", "bytes", cell(seen, "finished_bytes")],
        ["each further worker process, by the fit: server's processor", "µs", number(costs.server_us_more)],
        ["efficiency, by the fit", "", f"{costs.efficiency:.2f}"],
    ]
    return Table("cost of one job with an empty handler", ["what", "unit", f"median (min{DASH}max)"], rows)


def drained_table(costs: Costs, seen: Mapping[str, list[float]], cores: int) -> Table:
    rows = []
    for count in PROCESSES:
        predicted = predicted_together(costs, count, cores)
        measured = statistics.median(seen[f"processes_{count}"])
        rows.append(
            [
                str(count),
                cell(seen, f"processes_{count}"),
                number(predicted),
                f"{predicted / measured - 1:+.0%}",
                cell(seen, f"processes_worker_cpu_{count}"),
                cell(seen, f"processes_server_cpu_{count}"),
            ]
        )
    head = ["worker processes", "measured, jobs/s", "model, jobs/s", "difference"]
    head += ["workers, µs/job", "server, µs/job"]
    return Table(f"drain by worker processes, server and workers on the same {cores} cores", head, rows)


def idle_table(seen: Mapping[str, list[float]]) -> Table:
    rows = [
        [
            f"{count:,}",
            cell(seen, f"idle_server_us_{count}"),
            cell(seen, f"idle_queries_{count}"),
            cell(seen, f"idle_worker_us_{count}"),
            cell(seen, f"idle_connections_{count}"),
        ]
        for count in IDLE_WORKERS
    ]
    head = ["idle workers", "server, µs of processor a second", "queries a second"]
    head += ["one worker, µs of processor a second", "connections of one harbor"]
    return Table("idle workers", head, rows)


def server_with(cores: int) -> Server:
    return Server(cores, LOG_BYTES_PER_SECOND, CONNECTIONS)


def capacities(costs: Costs) -> dict[int, Capacity]:
    return {cores: capacity(costs, server_with(cores), CONNECTIONS_OF_PROCESS) for cores in SERVER_CORES}


def capacity_table(costs: Costs) -> Table:
    rows = []
    for cores, each in capacities(costs).items():
        log = each.jobs_per_second * (costs.log_bytes + costs.enqueue.log_bytes) / 1e6
        rows.append(
            [
                str(cores),
                number(each.jobs_per_second),
                each.ends_first,
                str(each.processes),
                str(each.processes * CONNECTIONS_OF_PROCESS),
                number(log),
            ]
        )
    head = ["server's cores", "jobs/s", "ends first", "worker processes", "connections", "log, MB/s"]
    return Table(
        "model: enqueue, run and settle, workers on other machines, the server 70 % busy", head, rows
    )


def limits_table(costs: Costs) -> Table:
    each = capacities(costs)[16]
    rows = [[name, number(rate)] for name, rate in sorted(each.limits.items(), key=lambda one: one[1])]
    idle = limits(costs, server_with(16), each.processes, idle_workers=1_000)["server's processor"]
    rows.append(["server's processor, beside 1,000 idle workers", number(idle)])
    return Table("model: what each resource of a 16-core server allows", ["resource", "jobs/s"], rows)


# -- the picture -----------------------------------------------------------------------------------

WIDTH, HEIGHT = 720, 410
LEFT, RIGHT, TOP, BOTTOM = 80, 690, 40, 320

STYLE = """
    text { fill: #1f2328; }
    .small { font-size: 12px; fill: #57606a; }
    .axis { stroke: #57606a; fill: none; }
    .rule { stroke: #d0d7de; fill: none; }
    .curve { fill: none; stroke-width: 2; }
    .carried { stroke: #0969da; stroke-width: 4; }
    .processor { stroke: #bc4c00; stroke-dasharray: 7 4; }
    .claims { stroke: #1a7f37; stroke-dasharray: 2 3; }
    .log { stroke: #8250df; stroke-dasharray: 10 3 2 3; }
    .end { text-anchor: end; }
    .middle { text-anchor: middle; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .small { fill: #9da7b3; }
      .axis { stroke: #8b949e; }
      .rule { stroke: #30363d; }
      .carried { stroke: #58a6ff; }
      .processor { stroke: #f0883e; }
      .claims { stroke: #3fb950; }
      .log { stroke: #bc8cff; }
    }
"""
CURVES = {
    "server's processor": ("processor", "the server's processor, 70 % busy"),
    "claims of one harbor": ("claims", "claims of one harbor"),
    "server's log": ("log", f"the log, {LOG_BYTES_PER_SECOND / 1e6:.0f} MB/s"),
}


def picture(costs: Costs) -> str:
    """Jobs a second by the server's cores: what each resource allows, and what is left of all of them."""
    by_cores = {cores: capacity(costs, server_with(cores), CONNECTIONS_OF_PROCESS) for cores in range(1, 33)}
    top = nice_above(1.15 * max(each.jobs_per_second for each in by_cores.values()))

    def place(cores: float, rate: float) -> str:
        x = LEFT + (RIGHT - LEFT) * cores / 32
        return f"{x:.0f},{BOTTOM - (BOTTOM - TOP) * min(rate, top) / top:.0f}"

    def curve(kind: str, rates: Mapping[int, float]) -> str:
        shown = [(cores, rate) for cores, rate in rates.items() if rate <= top]
        return f'  <polyline class="curve {kind}" points="{" ".join(place(*each) for each in shown)}"/>'

    lines = []
    for share in range(5):
        y = BOTTOM - (BOTTOM - TOP) * share / 4
        lines.append(f'  <path class="rule" d="M{LEFT},{y:.0f} H{RIGHT}"/>')
        label = f"{top * share / 4:,.0f}"
        lines.append(f'  <text class="small end" x="{LEFT - 8}" y="{y + 4:.0f}">{label}</text>')
    for cores in (1, 4, 8, 16, 24, 32):
        x = LEFT + (RIGHT - LEFT) * cores / 32
        lines.append(f'  <text class="small middle" x="{x:.0f}" y="{BOTTOM + 18}">{cores}</text>')
    lines.append(f'  <path class="axis" d="M{LEFT},{TOP} V{BOTTOM} H{RIGHT}"/>')
    lines.append(f'  <text class="small" x="{LEFT - 70}" y="{TOP - 16}">jobs a second</text>')
    lines.append(f'  <text class="small end" x="{RIGHT}" y="{BOTTOM + 36}">cores of the server</text>')
    legend = [("carried", "what the server carries")]
    lines.append(curve("carried", {cores: each.jobs_per_second for cores, each in by_cores.items()}))
    for resource, (kind, label) in CURVES.items():
        rates = {cores: each.limits[resource] for cores, each in by_cores.items()}
        if min(rates.values()) <= top:  # what lies above the picture is not in it
            lines.append(curve(kind, rates))
            legend.append((kind, label))
    for index, (kind, label) in enumerate(legend):
        x, y = LEFT + (index % 2) * 300, HEIGHT - 32 + (index // 2) * 20
        lines.append(f'  <path class="curve {kind}" d="M{x},{y - 4} h34"/>')
        lines.append(f'  <text class="small" x="{x + 42}" y="{y}">{label}</text>')
    described = "; ".join(
        f"{cores} cores carry {each.jobs_per_second:,.0f} jobs a second, {each.ends_first} end first"
        for cores, each in by_cores.items()
        if cores in SERVER_CORES
    )
    fonts = "system-ui, -apple-system, 'Segoe UI', sans-serif"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="title desc" font-family="{fonts}" font-size="14">'
    )
    return "\n".join(
        [
            head,
            '  <title id="title">Jobs a second by the cores of the server</title>',
            f'  <desc id="desc">By the load model: {described}.</desc>',
            f"  <style>{STYLE}  </style>",
            *lines,
            "</svg>",
            "",
        ]
    )


def nice_above(value: float) -> float:
    """The next round number: 1, 2, 4 or 8 followed by zeros."""
    unit = 1.0
    while unit * 10 <= value:
        unit *= 10
    return next(unit * step for step in (1, 2, 4, 8, 10) if unit * step >= value)
