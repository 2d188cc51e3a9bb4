"""`--publish FILE` and `--load FILE`: measure a page's sections, keep them in a file, and write the page's tables.

Each section is kept in the JSON file as soon as it is measured. A second run measures only the sections that are not in
the file, so a long run can be made in pieces. The tables go between two comments of the page, a pair for each section;
what stands there is never written by hand.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.contestant import Contestant
from benchmarks.discovery import Entry, Field
from benchmarks.durations import works
from benchmarks.growth import GrowthContestant
from benchmarks.load_report import load_tables, run_load
from benchmarks.report import (
    DASH,
    Table,
    contestants_table,
    durations_table,
    growth_table,
    markdown_table,
    noise_table,
    number,
    paired_ratios,
    plain,
    scaling_table,
    snapshot_tables,
    spread,
    times,
)
from benchmarks.rounds import (
    Samples,
    run_durations,
    run_growth,
    run_rounds,
    run_scaling,
    run_snapshots,
)
from benchmarks.scaling import can_share
from benchmarks.settings import Settings
from benchmarks.streams import run_streams, stream_tables
from benchmarks.summary import FIGURES

ROOT = Path(__file__).parent.parent
OURS = {"postgresql": "taskharbor postgres", "sqlite": "taskharbor sqlite"}
FASTEST = (OURS["postgresql"], "graphile-worker tuned", "pg-boss", "river", "pgqueuer")
LEFT_OUT = (
    "huey (default polling)",
    "huey (fsync=True)",
    "persist-queue",
    "persist-queue (ack)",
    "litequeue",
)
"""Variants that never lead and take long; `--peers` measures them."""
GROWTH_ROWS = 1_000_000
SNAPSHOT_SECONDS = 40.0
TIMEOUT_SECONDS = 180.0
"""A measurement of a page takes seconds; one that hangs must not take the others' time."""

Run = Callable[[Sequence[Entry], Settings, Path], Samples]
Tables = Callable[[Sequence[type[Contestant]], Samples, Settings], list[Table]]


@dataclass(frozen=True)
class Section:
    """One part of a page: who takes part, what is run at which sizes, and the tables that come of it."""

    name: str
    minutes: float
    """How long it takes on two cores that do nothing else, at five rounds."""
    takes_part: Callable[[type[Contestant]], bool]
    run: Run
    tables: Tables
    sizes: dict[str, Any] = field(default_factory=dict)
    rounds_max: int | None = None
    picture: str | None = None
    """The link to what the tables draw beside the page."""


def sized(section: Section, settings: Settings, *, quick: bool) -> Settings:
    """The section's sizes, except in a quick run; never more rounds than it may have."""
    rounds = min(settings.rounds, section.rounds_max or settings.rounds)
    timeout = min(settings.timeout_seconds, TIMEOUT_SECONDS)
    return replace(settings, **({} if quick else section.sizes), rounds=rounds, timeout_seconds=timeout)


# -- the sections of docs/benchmarks.md ------------------------------------------------------------


def by_measures(*measures: str) -> Run:
    return lambda entries, settings, scratch: run_rounds(entries, measures, settings, scratch)


def on(store: str) -> Callable[[type[Contestant]], bool]:
    return lambda one: one.store == store and one.name not in LEFT_OUT


RATES = {
    "enqueue_one": "one by one",
    "enqueue_concurrent": "50 callers",
    "enqueue_batches": "calls of 1,000",
    "drain": "drain",
    "drain_sync": "drain, plain functions",
}
COSTS = {
    "worker_cpu": "worker, µs",
    "server_cpu": "server, µs",
    "log_bytes": "log, bytes",
    "drain_memory": "worker's peak memory, MB",
    "enqueue_client_cpu": "enqueue: client, µs",
    "enqueue_server_cpu": "enqueue: server, µs",
    "enqueue_log_bytes": "enqueue: log, bytes",
}
LATENCY = {"latency_p50": "p50, ms", "latency_p99": "p99, ms"}
IDLE = {
    "idle_memory": "memory, MB",
    "idle_processor": "processor, % of a core",
    "idle_queries": "queries a second",
}


def store_tables(store: str) -> Tables:
    def tables(contestants: Sequence[type[Contestant]], samples: Samples, settings: Settings) -> list[Table]:
        wide = [
            overview("jobs a second", RATES, contestants, samples),
            overview("cost of a job: drain, and enqueue in calls of 1,000", COSTS, contestants, samples),
            overview("idle latency", LATENCY, contestants, samples),
        ]
        figures = [*RATES, *LATENCY, "worker_cpu", "server_cpu", "log_bytes"]
        return [*wide, ratios_table(OURS[store], figures, contestants, samples)]

    return tables


def overview(
    title: str, columns: dict[str, str], contestants: Sequence[type[Contestant]], samples: Samples
) -> Table:
    """A row for each contestant, in the order of the first figure: the median, with the range of the rounds."""

    def cell(contestant: type[Contestant], figure: str) -> str:
        seen = samples.values.get(contestant.name, {}).get(figure, [])
        if not seen:
            return DASH
        middle = number(statistics.median(seen))
        return middle if len(seen) == 1 else f"{middle} ({spread(seen)})"

    shown = {
        figure: head
        for figure, head in columns.items()
        if any(figure in samples.values.get(one.name, {}) for one in contestants)
    }
    order = "drain" if "drain" in shown else next(iter(shown), "")

    def place(contestant: type[Contestant]) -> tuple[bool, float]:
        seen = samples.values.get(contestant.name, {}).get(order, [])
        middle = statistics.median(seen) if seen else 0.0
        return not seen, -middle if FIGURES[order].more_is_better else middle

    rows = [[one.name, *(cell(one, figure) for figure in shown)] for one in sorted(contestants, key=place)]
    return Table(title, ["contestant", *shown.values()], rows)


def ratios_table(
    ours: str, figures: Sequence[str], contestants: Sequence[type[Contestant]], samples: Samples
) -> Table:
    """How many times better TaskHarbor is, round by round: the median of the rounds' ratios, and their range."""
    peers = [one.name for one in contestants if one.role == "peer"]
    shown = [figure for figure in figures if figure in samples.values.get(ours, {})]

    def cell(peer: str, figure: str) -> str:
        ratios = paired_ratios(samples, figure, ours, peer)
        if not FIGURES[figure].more_is_better:
            ratios = [1 / ratio for ratio in ratios if ratio]
        if not ratios:
            return DASH
        return f"{times(statistics.median(ratios))} ({number(min(ratios))}{DASH}{number(max(ratios))})"

    rows = [[peer, *(cell(peer, figure) for figure in shown)] for peer in peers]
    heads = [{**RATES, **LATENCY, **COSTS}[figure] for figure in shown]
    return Table(f"{ours}, times better than", ["peer", *heads], rows)


BENCHMARKS = [
    Section(
        "postgresql",
        15,
        on("postgresql"),
        by_measures("enqueue_one", "enqueue_concurrent", "enqueue_batches", "drain", "drain_sync", "latency"),
        store_tables("postgresql"),
        {"jobs": 60_000, "single_jobs_max": 1_000, "probes": 100},
    ),
    Section(
        "processes",
        2,
        lambda one: one.name in FASTEST and can_share(one),
        lambda entries, settings, scratch: run_scaling(entries, [1, 2], settings, scratch),
        lambda contestants, samples, settings: [scaling_table(contestants, samples, settings.memory_jobs)],
        {"memory_jobs": 60_000},
    ),
    Section(
        "idle",
        1,
        lambda one: one.store == "postgresql" and one.separate_worker,
        by_measures("idle"),
        lambda contestants, samples, settings: [overview("an idle worker", IDLE, contestants, samples)],
        rounds_max=1,
    ),
    Section(
        "durations",
        5,
        lambda one: one.name in FASTEST and bool(works(one)),
        run_durations,
        lambda contestants, samples, settings: [durations_table(contestants, samples)],
        {"jobs": 20_000},
        rounds_max=1,
    ),
    Section(
        "growth",
        3,
        lambda one: one.name == OURS["postgresql"] and issubclass(one, GrowthContestant),
        lambda entries, settings, scratch: run_growth(entries, growth_rows(settings), settings, scratch),
        lambda contestants, samples, settings: [growth_table(contestants, samples, growth_rows(settings))],
        {"jobs": 50_000},
    ),
    Section(
        "snapshot",
        1.5,
        lambda one: one.name == OURS["postgresql"],
        lambda entries, settings, scratch: run_snapshots(entries, SNAPSHOT_SECONDS, settings, scratch),
        lambda contestants, samples, settings: snapshot_tables(contestants, samples, SNAPSHOT_SECONDS),
        rounds_max=1,
    ),
    Section(
        "sqlite",
        4,
        on("sqlite"),
        by_measures("enqueue_one", "enqueue_concurrent", "enqueue_batches", "drain", "drain_sync", "latency"),
        store_tables("sqlite"),
        {"jobs": 20_000, "single_jobs_max": 1_000, "probes": 40},
    ),
    Section(
        "commands",
        2.5,
        lambda one: one.name in OURS.values(),
        by_measures("chord", "supervised", "recovery", "rest"),
        lambda contestants, samples, settings: [
            figures_table("TaskHarbor's commands and workflows", contestants, samples)
        ],
        {"jobs": 20_000, "single_jobs_max": 1_000},
        rounds_max=2,
    ),
    Section(
        "streams",
        8,
        lambda one: False,  # it has contestants of its own
        run_streams,
        stream_tables,
        {"jobs": 60_000, "probes": 100},
        rounds_max=3,
    ),
]


LOAD = [
    Section(
        "load",
        8,
        lambda one: one.name == OURS["postgresql"],
        run_load,
        load_tables,
        {"jobs": 50_000, "memory_jobs": 100_000},
        picture="![Jobs a second by the cores of the server](images/capacity.svg)",
    )
]


def growth_rows(settings: Settings) -> int:
    """A million, or in a quick run what a quick run takes."""
    return GROWTH_ROWS if settings.jobs >= 10_000 else settings.jobs


def figures_table(title: str, contestants: Sequence[type[Contestant]], samples: Samples) -> Table:
    """A row for each figure, a column for each contestant."""
    seen = [samples.values.get(one.name, {}) for one in contestants]
    figures = [figure for figure in FIGURES if any(figure in values for values in seen)]
    rows = [
        [
            FIGURES[figure].title,
            FIGURES[figure].unit,
            *(
                f"{number(statistics.median(values[figure]))} ({spread(values[figure])})"
                if figure in values
                else DASH
                for values in seen
            ),
        ]
        for figure in figures
    ]
    return Table(title, ["figure", "unit", *(one.name for one in contestants)], rows)


# -- running them ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """A page and its sections."""

    path: Path
    sections: Sequence[Section]


def publish(
    page: Page,
    results: Path,
    found: Field,
    settings: Settings,
    scratch: Path,
    *,
    wanted: Sequence[str] | None,
    quick: bool,
    machine: Callable[[ExitStack], dict[str, str]],
) -> int:
    """Measure what the file does not have, then write the page from the file. Returns how many failures there are."""
    kept: dict[str, Any] = json.loads(results.read_text("utf-8")) if results.exists() else {}
    if unknown := set(wanted or ()) - {section.name for section in page.sections}:
        known = ", ".join(section.name for section in page.sections)
        raise SystemExit(f"no section {', '.join(sorted(unknown))}: there are {known}")
    missing = [
        each for each in page.sections if each.name not in kept and (not wanted or each.name in wanted)
    ]
    if not page.path.is_file():  # said before the measurements, which take half an hour
        raise SystemExit(f"there is no page {page.path}: copy the one in docs/ there, or leave --page out")
    with ExitStack() as servers:
        facts = machine(servers) if missing else {}
        for section in missing:
            print(f"== {section.name}: about {section.minutes:g} minutes at five rounds", flush=True)
            kept[section.name] = measured(
                section, found, sized(section, settings, quick=quick), scratch, facts
            )
            kept[section.name]["command"] = command_line(sys.argv[1:])
            keep(results, kept)
    text = page.path.read_text("utf-8")
    for section in page.sections:
        if section.name in kept:
            text = written(text, section.name, body_of(kept[section.name]))
    shown = {section.name: kept[section.name] for section in page.sections if section.name in kept}
    others = [each.name for each in page.sections if each.name not in kept and part_of(text, each.name)]
    if others:  # their contestants are named there, and the file does not know them
        print(f"machine and contestants stay as they are: {results.name} lacks {', '.join(others)}")
    else:
        text = written(text, "machine", machine_body(shown))
    page.path.write_text(text, "utf-8")
    failures = [failure for section in shown.values() for failure in section["failures"]]
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    print(f"{page.path.name}: {len(shown)} of {len(page.sections)} sections, {len(failures)} failures")
    return len(failures)


def measured(
    section: Section, found: Field, settings: Settings, scratch: Path, machine: dict[str, str]
) -> dict[str, Any]:
    entries = [entry for entry in found.entries if section.takes_part(entry.contestant)]
    contestants = [entry.contestant for entry in entries]
    begun = time.monotonic()
    samples = section.run(entries, settings, scratch)
    try:
        tables = [*section.tables(contestants, samples, settings), noise_table(samples)]
    except (KeyError, ValueError, ArithmeticError) as error:  # too little was measured; what was is kept
        samples.failures.append(f"{section.name}: no tables, {error!r}")
        tables = []
    print("\n" + plain(tables) + "\n", flush=True)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "minutes": round((time.monotonic() - begun) / 60, 1),
        "machine": machine,
        "settings": settings.as_dict(),
        "tables": [asdict(table) for table in tables],
        "picture": section.picture if tables else None,
        "contestants": contestants_table(contestants, {}).rows,
        "absent": found.absent,
        "samples": samples.values,
        "rounds": samples.rounds,
        "noise": samples.noise,
        "failures": samples.failures,
    }


def command_line(arguments: Sequence[str]) -> str:
    """What was called, as a reader would call it: a file by its name, wherever it is."""
    return shlex.join(["python", "-m", "benchmarks", *(Path(each).name for each in arguments)])


def keep(results: Path, kept: dict[str, Any]) -> None:
    """Replace the file at once: a run that is killed leaves the one before."""
    beside = results.with_name(results.name + ".new")
    beside.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    os.replace(beside, results)


# -- writing the page ------------------------------------------------------------------------------


def written(text: str, name: str, body: str) -> str:
    """The page with `body` between the two comments of this section."""
    begin, end = _comments(name)
    part_of(text, name)
    return _part(name).sub(lambda _: f"{begin}\n\n{body.strip()}\n\n{end}", text)


def part_of(text: str, name: str) -> str:
    """What the page has between the two comments of this section."""
    found = _part(name).findall(text)
    if len(found) != 1:
        begin, end = _comments(name)
        raise SystemExit(f"the page must have one {begin} with its {end}")
    return str(found[0]).strip()


def _comments(name: str) -> tuple[str, str]:
    return f"<!-- results: {name} -->", f"<!-- end of results: {name} -->"


def _part(name: str) -> re.Pattern[str]:
    begin, end = map(re.escape, _comments(name))
    return re.compile(f"{begin}(.*?){end}", re.DOTALL)


def body_of(section: dict[str, Any]) -> str:
    settings = section["settings"]
    rounds = f"{settings['rounds']} rounds" if settings["rounds"] > 1 else "one round"
    lines = [f"Measured {section['date']}, {rounds}, {section['minutes']:g} minutes."]
    lines += [f"- Not measured: {failure}" for failure in section["failures"]]
    tables = [markdown_table(Table(**table)).strip() for table in section["tables"]]
    return "\n\n".join([*lines, *tables, *filter(None, [section["picture"]])])


def machine_body(sections: dict[str, dict[str, Any]]) -> str:
    """The machine, the command, and who took part; every fact once, also where sections are of several runs."""
    facts: dict[str, list[str]] = {}
    for section in sections.values():
        for key, value in section["machine"].items():
            if key != "date" and value not in facts.setdefault(key, []):
                facts[key].append(value)
    commands = sorted({section["command"] for section in sections.values()})
    lines = [f"- {key}: {'; '.join(values)}" for key, values in facts.items()]
    lines += [f"- sections made by: {', '.join(f'`{command}`' for command in commands)}"]
    lines += [f"- minutes in all: {sum(section['minutes'] for section in sections.values()):.0f}"]
    rows: dict[str, list[str]] = {}
    for section in sections.values():
        rows |= {row[0]: row for row in section["contestants"]}
        rows |= {file: [file, DASH, DASH, DASH, reason] for file, reason in section["absent"].items()}
    head = ["contestant", "version", "store", "durability", "what it keeps, and what a kill does"]
    table = Table("Contestants", head, sorted(rows.values()))
    return "\n".join(lines) + "\n\n" + markdown_table(table)
