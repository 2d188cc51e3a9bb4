"""What the reader sees: the same tables as plain text and as markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.contestant import Contestant
from benchmarks.discovery import other_label
from benchmarks.durations import FIGURES as DURATION_FIGURES
from benchmarks.durations import MILLISECONDS, SLOTS
from benchmarks.rounds import Samples
from benchmarks.summary import FIGURES, summarize
from benchmarks.work import KINDS, Work

DASH = "\N{EN DASH}"
RATIO_RULE = (
    "Medians over interleaved rounds, each measurement in a fresh process with a fresh store. Ratios are "
    "against the best peer on the same store in this run; above 1.0x is better. Limits are not peers."
)


@dataclass(frozen=True)
class Table:
    """A title, a head and rows; the first column is text, the others are figures."""

    title: str
    head: list[str]
    rows: list[list[str]]


def tables_of(contestants: Sequence[type[Contestant]], samples: Samples) -> list[Table]:
    measured = {figure for seen in samples.values.values() for figure in seen}
    return [figure_table(figure, contestants, samples) for figure in FIGURES if figure in measured]


def figure_table(figure: str, contestants: Sequence[type[Contestant]], samples: Samples) -> Table:
    shown = FIGURES[figure]
    rows = [
        [
            line.contestant.name,
            number(line.median),
            spread(line.seen),
            *map(times, line.ratios),
            line.contestant.durability.name,
            "own" if line.contestant.own_worker else "bare loop",
        ]
        for line in summarize(figure, contestants, samples)
    ]
    return Table(
        shown.title,
        ["contestant", shown.unit, f"min{DASH}max", *shown.comparisons, "durability", "worker"],
        rows,
    )


def against_table(contestants: Sequence[type[Contestant]], samples: Samples) -> Table:
    """This checkout by the other, round by round: a ratio of one round is of two measurements side by side."""
    rows = []
    for contestant in contestants:
        name, other = contestant.name, other_label(contestant.name)
        for figure, seen in samples.values.get(name, {}).items():
            if ratios := paired_ratios(samples, figure, name, other):
                rows.append(
                    [
                        name,
                        FIGURES[figure].title if figure in FIGURES else figure,
                        number(statistics.median(seen)),
                        number(statistics.median(samples.values[other][figure])),
                        times(statistics.median(ratios)),
                        f"{times(min(ratios))}{DASH}{times(max(ratios))}",
                        "less" if figure in FIGURES and not FIGURES[figure].more_is_better else "more",
                    ]
                )
    head = ["contestant", "figure", "new", "old", "new / old", f"min{DASH}max", "better is"]
    return Table("this checkout against the other", head, rows)


def paired_ratios(samples: Samples, figure: str, name: str, other: str) -> list[float]:
    """The ratios of the rounds in which both were measured."""

    def by_round(which: str) -> dict[int, float]:
        values = samples.values.get(which, {}).get(figure, [])
        return dict(zip(samples.rounds.get(which, {}).get(figure, []), values, strict=True))

    new, old = by_round(name), by_round(other)
    return [new[each] / old[each] for each in sorted(new.keys() & old.keys()) if old[each]]


def noise_table(samples: Samples) -> Table:
    rows = [
        [what, number(statistics.median(seen)), spread(seen), times(max(seen) / min(seen))]
        for what, seen in samples.noise.items()
    ]
    title = "the machine's noise: the same fixed work between the rounds"
    return Table(title, ["work", "median", f"min{DASH}max", "max / min"], rows)


def contestants_table(contestants: Sequence[type[Contestant]], absent: dict[str, str]) -> Table:
    rows = [
        [one.name, one.version(), one.store, one.durability.name, one.durability_note] for one in contestants
    ]
    rows += [[file, DASH, DASH, DASH, reason] for file, reason in absent.items()]
    return Table("Contestants", ["contestant", "version", "store", "durability", "note"], rows)


def growth_table(contestants: Sequence[type[Contestant]], samples: Samples, rows: int) -> Table:
    lines = []
    for contestant in contestants:
        seen = samples.values.get(contestant.name, {})
        empty, grown = seen.get("growth_empty", []), seen.get("growth_grown", [])
        if empty and grown:
            middles = statistics.median(empty), statistics.median(grown)
            lines.append(
                [
                    contestant.name,
                    f"{number(middles[0])} ({spread(empty)})",
                    f"{number(middles[1])} ({spread(grown)})",
                    times(middles[1] / middles[0]),
                ]
            )
    title = f"drain beside {rows:,} ready of low priority, {rows:,} finished, {rows:,} future of top priority"
    return Table(title, ["contestant", "empty store, jobs/s", "grown store, jobs/s", "grown / empty"], lines)


def scaling_table(contestants: Sequence[type[Contestant]], samples: Samples, jobs: int) -> Table:
    rows = []
    for contestant in contestants:
        seen = samples.values.get(contestant.name, {})
        counts = sorted(int(figure[10:]) for figure in seen if re.fullmatch(r"processes_\d+", figure))
        by_count = {count: seen[f"processes_{count}"] for count in counts}
        first = statistics.median(by_count[counts[0]]) if by_count else None

        def cost(name: str, count: int, seen: dict[str, list[float]] = seen) -> str:
            values = seen.get(f"processes_{name}_{count}")
            return number(statistics.median(values)) if values else DASH

        rows += [
            [
                contestant.name,
                str(count),
                number(statistics.median(values)),
                spread(values),
                times(statistics.median(values) / first) if first else DASH,
                cost("worker_cpu", count),
                cost("server_cpu", count),
                cost("log_bytes", count),
            ]
            for count, values in by_count.items()
        ]
    head = ["contestant", "worker processes", "jobs/s", f"min{DASH}max", "vs the first"]
    head += ["workers, µs/job", "server, µs/job", "log, bytes/job"]
    return Table(f"drain of {jobs:,} jobs by several worker processes", head, rows)


def durations_table(contestants: Sequence[type[Contestant]], samples: Samples) -> Table:
    """A row for each kind of handler, duration and contestant that has it."""
    rows = []
    for work in [Work(kind, each) for kind in KINDS for each in MILLISECONDS]:
        for contestant in contestants:
            seen = samples.values.get(contestant.name, {})
            values = [seen.get(f"{work}: {figure}", []) for figure in DURATION_FIGURES]
            if values[0]:
                cells = [number(statistics.median(each)) if each else DASH for each in values]
                rows.append([str(work), contestant.name, cells[0], spread(values[0]), *cells[1:]])
    head = ["handler", "contestant", "peak, jobs/s", f"min{DASH}max", "worker, µs/job", "server, µs/job"]
    head += ["idle wait p50, ms", "wait at half the peak p50, ms", "p99, ms"]
    slots = ", ".join(f"{count:,} {kind}" for kind, count in SLOTS.items())
    return Table(f"by kind and duration of the handler; handlers at once: {slots}", head, rows)


def snapshot_tables(contestants: Sequence[type[Contestant]], samples: Samples, seconds: float) -> list[Table]:
    """One for each contestant: its slices in the order of time."""
    tables = []
    for contestant in contestants:
        seen = samples.values.get(contestant.name, {})
        medians = {label: statistics.median(values) for label, values in seen.items()}
        first = next(iter(medians.values()), None)
        rows = [
            [label, number(medians[label]), spread(values), times(medians[label] / first) if first else DASH]
            for label, values in seen.items()
        ]
        title = f"{contestant.name}: enqueue and drain, a snapshot held for {seconds:g} s"
        tables.append(Table(title, ["slice", "jobs/s", f"min{DASH}max", "vs before"], rows))
    return tables


def number(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(seen: list[float]) -> str:
    return f"{number(min(seen))}{DASH}{number(max(seen))}" if seen else DASH


def times(ratio: float | None) -> str:
    return DASH if ratio is None else f"{ratio:.2f}x"


def plain(tables: Iterable[Table]) -> str:
    return "\n\n".join(f"{table.title}\n{grid(table)}" for table in tables)


def grid(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]
    lines = [table.head, ["-" * width for width in widths], *table.rows]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def markdown(tables: Iterable[Table], machine: dict[str, str], sizes: str) -> str:
    facts = [f"- {key}: {value}" for key, value in machine.items()]
    text = "\n".join(["# Benchmark results", "", *facts, f"- sizes: {sizes}", "", RATIO_RULE, ""])
    for table in tables:
        text += f"\n## {table.title}\n\n{grid_lines(table)}"
    return text


def markdown_table(table: Table) -> str:
    """One table of a page, under its title."""
    return f"**{table.title[:1].upper()}{table.title[1:]}**\n\n{grid_lines(table)}"


def grid_lines(table: Table) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
