"""`python -m benchmarks`: choose, run, report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.discovery import Entry, Field, discover
from benchmarks.growth import GrowthContestant
from benchmarks.machine import describe, scratch_directory
from benchmarks.measures import MEASURES
from benchmarks.report import RATIO_RULE, Table, contestants_table, growth_table, markdown, plain, tables_of
from benchmarks.rounds import Samples, run_growth, run_rounds
from benchmarks.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = settings_of(options)
    scratch = scratch_directory(options.directory)
    found = discover()
    entries = choose(found, options)
    if not entries:
        print(plain([contestants_table([], found.absent)]), file=sys.stderr)
        raise SystemExit("no contestant left to measure: see the reasons above, and --only, --peers")
    contestants = [entry.contestant for entry in entries]
    if options.growth:
        samples = run_growth(entries, options.growth_rows, settings, scratch)
        tables = [growth_table(contestants, samples, options.growth_rows)]
    else:
        samples = run_rounds(entries, options.measure or list(MEASURES), settings, scratch)
        tables = tables_of(contestants, samples)
    tables.append(contestants_table(contestants, found.absent))
    tell(tables, samples, settings, describe(scratch), options)
    return 1 if samples.failures else 0


def choose(found: Field, options: argparse.Namespace) -> list[Entry]:
    """Who takes part: TaskHarbor always, the others with --peers or when --only names them."""

    def takes_part(entry: Entry) -> bool:
        if options.growth and not issubclass(entry.contestant, GrowthContestant):
            return False
        if options.growth and not options.only:
            return entry.contestant.separate_worker
        if options.only:
            return any(wanted in entry.contestant.name for wanted in options.only)
        return bool(options.peers) or entry.contestant.role == "taskharbor"

    return [entry for entry in found.entries if takes_part(entry)]


def tell(
    tables: list[Table],
    samples: Samples,
    settings: Settings,
    machine: dict[str, str],
    options: argparse.Namespace,
) -> None:
    sizes = ", ".join(f"{key}={value}" for key, value in settings.as_dict().items())
    print("\n" + plain(tables))
    print("\n" + RATIO_RULE)
    print("\n".join(f"{key}: {value}" for key, value in machine.items()))
    print(sizes)
    for failure in samples.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    if options.markdown:
        options.markdown.write_text(markdown(tables, machine, sizes), encoding="utf-8")
    if options.json:
        raw = {
            "machine": machine,
            "settings": settings.as_dict(),
            "samples": samples.values,
            "cannot": {name: sorted(figures) for name, figures in samples.cannot.items()},
            "failures": samples.failures,
            "tables": {table.title: [table.head, *table.rows] for table in tables},
        }
        options.json.write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def settings_of(options: argparse.Namespace) -> Settings:
    """The given sizes over those of --quick or of a full run."""
    base = Settings.quick() if options.quick else Settings()
    given = {"rounds": options.rounds, "jobs": options.jobs, "probes": options.probes}
    given |= {"memory_jobs": options.memory_jobs, "poll_seconds": options.poll_seconds}
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, default=False, help="measure peers too"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="contestants whose name holds NAME")
    parser.add_argument("--measure", action="append", choices=list(MEASURES), help="default: all of them")
    parser.add_argument("--rounds", type=positive)
    parser.add_argument("--jobs", type=positive, help="jobs in a drain and in a bulk enqueue")
    parser.add_argument("--probes", type=positive, help="jobs in a latency measurement")
    parser.add_argument("--memory-jobs", type=positive, help="jobs in the drain whose memory is measured")
    parser.add_argument("--poll-seconds", type=float, help="how often peers that poll look for work")
    parser.add_argument("--quick", action="store_true", help="one small round: does it run, not how fast")
    parser.add_argument("--growth", action="store_true", help="drain beside many jobs against an empty store")
    parser.add_argument("--growth-rows", type=positive, default=1_000_000, metavar="N")
    parser.add_argument("--directory", type=Path, help="where the stores are made; must be on a disk")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every sample, for other tools")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value
