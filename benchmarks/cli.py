"""`python -m benchmarks`: choose, run, report."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.discovery import Entry, Field, discover
from benchmarks.durations import works
from benchmarks.growth import GrowthContestant
from benchmarks.machine import describe, scratch_directory
from benchmarks.measures import MEASURES
from benchmarks.report import (
    RATIO_RULE,
    Table,
    against_table,
    contestants_table,
    durations_table,
    growth_table,
    markdown,
    noise_table,
    plain,
    scaling_table,
    snapshot_tables,
    tables_of,
)
from benchmarks.rounds import Samples, run_durations, run_growth, run_rounds, run_scaling, run_snapshots
from benchmarks.scaling import can_share
from benchmarks.settings import Settings
from benchmarks.snapshot import can_churn


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the run's server and its files go with it
    settings = settings_of(options)
    scratch = scratch_directory(options.directory)
    found = discover()
    if options.publish or options.load:
        return publish_page(options, settings, scratch, found)
    if options.telemetry:
        return measure_telemetry(options, settings, scratch)
    entries = choose(found, options)
    if not entries:
        print(plain([contestants_table([], found.absent)]), file=sys.stderr)
        raise SystemExit("no contestant left to measure: see the reasons above, and --only, --peers")
    machine = describe(scratch)
    with ExitStack() as servers:
        if any(entry.contestant.needs_postgres for entry in entries):
            machine["PostgreSQL"] = start_postgres(servers, options, scratch)
        samples, tables = run(entries, options, settings, scratch)
    contestants = [entry.contestant for entry in entries if entry.checkout is None]
    if options.against:
        tables.append(against_table(contestants, samples))
    tables.append(noise_table(samples))
    tables.append(contestants_table(contestants, found.absent))
    tell(tables, samples, settings, machine, options)
    return 1 if samples.failures else 0


def measure_telemetry(options: argparse.Namespace, settings: Settings, scratch: Path) -> int:
    from benchmarks.telemetry import STORES, run_telemetry

    stores = [store for store in STORES if store in (options.store or STORES)]
    machine = describe(scratch)
    with ExitStack() as servers:
        if "postgresql" in stores:
            machine["PostgreSQL"] = start_postgres(servers, options, scratch)
        tables = run_telemetry(stores, settings, scratch)
    tell(tables, Samples(), settings, machine, options)
    return 0


def publish_page(options: argparse.Namespace, settings: Settings, scratch: Path, found: Field) -> int:
    from benchmarks.publish import BENCHMARKS, LOAD, ROOT, Page, publish

    def machine(servers: ExitStack) -> dict[str, str]:
        return {**describe(scratch), "PostgreSQL": start_postgres(servers, options, scratch)}

    name, sections = ("benchmarks.md", BENCHMARKS) if options.publish else ("scaling.md", LOAD)
    page = Page(options.page or ROOT / "docs" / name, sections)
    failures = publish(
        page,
        options.publish or options.load,
        found,
        settings,
        scratch,
        wanted=options.section,
        quick=options.quick,
        machine=machine,
    )
    return 1 if failures else 0


def start_postgres(servers: ExitStack, options: argparse.Namespace, scratch: Path) -> str:
    """Have a server until the run ends: its version and its settings."""
    from benchmarks import postgres  # its contestants could be imported, so this can

    servers.enter_context(postgres.serving(options.postgres_url, scratch))
    if options.postgres_url:
        return f"{postgres.version()}, a server given by its URL"
    told = ", ".join(f"{name}={value}" for name, value in postgres.SETTINGS.items())
    return f"{postgres.version()}, {told}"


def run(
    entries: list[Entry], options: argparse.Namespace, settings: Settings, scratch: Path
) -> tuple[Samples, list[Table]]:
    contestants = [entry.contestant for entry in entries if entry.checkout is None]
    if options.growth:
        samples = run_growth(entries, options.growth_rows, settings, scratch)
        return samples, [growth_table(contestants, samples, options.growth_rows)]
    if options.processes:
        samples = run_scaling(entries, options.processes, settings, scratch)
        return samples, [scaling_table(contestants, samples, settings.memory_jobs)]
    if options.durations:
        samples = run_durations(entries, settings, scratch)
        return samples, [durations_table(contestants, samples)]
    if options.snapshot_seconds:
        samples = run_snapshots(entries, options.snapshot_seconds, settings, scratch)
        return samples, snapshot_tables(contestants, samples, options.snapshot_seconds)
    samples = run_rounds(entries, options.measure or list(MEASURES), settings, scratch)
    return samples, tables_of(contestants, samples)


def choose(found: Field, options: argparse.Namespace) -> list[Entry]:
    """Who takes part: TaskHarbor always, the others with --peers or when --only names them."""

    def takes_part(entry: Entry) -> bool:
        if options.growth and not issubclass(entry.contestant, GrowthContestant):
            return False
        if options.processes and not can_share(entry.contestant):
            return False
        if options.durations and not works(entry.contestant):
            return False
        if options.snapshot_seconds and not can_churn(entry.contestant):
            return False
        if options.store and entry.contestant.store not in options.store:
            return False
        if options.growth and not options.only and not entry.contestant.separate_worker:
            return False
        if options.only:
            return any(wanted in entry.contestant.name for wanted in options.only)
        return bool(options.peers) or entry.contestant.role == "taskharbor"

    chosen = [entry for entry in found.entries if takes_part(entry)]
    return [each for entry in chosen for each in with_other_checkout(entry, options.against)]


def with_other_checkout(entry: Entry, other: Path | None) -> list[Entry]:
    if other is None or entry.contestant.role != "taskharbor":
        return [entry]
    return [entry, replace(entry, checkout=other)]


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
            "rounds": samples.rounds,
            "noise": samples.noise,
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


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, default=False, help="measure peers too"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="contestants whose name holds NAME")
    parser.add_argument("--store", action="append", metavar="STORE", help="memory, sqlite or postgresql")
    parser.add_argument("--measure", action="append", choices=list(MEASURES), help="default: all of them")
    parser.add_argument("--rounds", type=positive)
    parser.add_argument("--jobs", type=positive, help="jobs in a drain and in a bulk enqueue")
    parser.add_argument("--probes", type=positive, help="jobs in a latency measurement")
    parser.add_argument("--memory-jobs", type=positive, help="jobs in the drain whose memory is measured")
    parser.add_argument("--poll-seconds", type=float, help="how often peers that poll look for work")
    parser.add_argument(
        "--against",
        type=checkout,
        metavar="PATH",
        help="run TaskHarbor also with the code of another checkout, in turn, and show the ratios",
    )
    parser.add_argument("--quick", action="store_true", help="one small round: does it run, not how fast")
    parser.add_argument("--growth", action="store_true", help="drain beside many jobs against an empty store")
    parser.add_argument("--growth-rows", type=positive, default=1_000_000, metavar="N")
    parser.add_argument(
        "--processes",
        type=positives,
        metavar="N,N",
        help="drain one store with this many worker processes: 1,2,4",
    )
    parser.add_argument(
        "--durations",
        action="store_true",
        help="handlers that sleep 0, 1, 10 and 100 ms: peak, cost, and the wait of a job, idle and at half the peak",
    )
    parser.add_argument(
        "--telemetry",
        action="store_true",
        help="what metrics, roll-ups and tracing cost a drain, and a scrape",
    )
    parser.add_argument(
        "--snapshot-seconds", type=float, metavar="S", help="load while a snapshot is held open for S seconds"
    )
    parser.add_argument(
        "--postgres-url",
        default=os.environ.get("BENCH_POSTGRES_URL"),
        metavar="URL",
        help="a server to make databases on; default: $BENCH_POSTGRES_URL, else one of the run's own",
    )
    parser.add_argument(
        "--publish",
        type=Path,
        metavar="FILE",
        help="measure every section of docs/benchmarks.md that is not in FILE, keep it there, and write the page",
    )
    parser.add_argument(
        "--load",
        type=Path,
        metavar="FILE",
        help="the same for docs/scaling.md: worker processes, idle workers, and the load model fitted to them",
    )
    parser.add_argument(
        "--section", action="append", metavar="NAME", help="with --publish: measure only this one"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="with --publish: another page to write")
    parser.add_argument("--directory", type=Path, help="where the stores are made; must be on a disk")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every sample, for other tools")
    return parser


def checkout(text: str) -> Path:
    if not (Path(text) / "src/taskharbor").is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no checkout of TaskHarbor: it has no src/taskharbor")
    return Path(text).resolve()


def positives(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value
