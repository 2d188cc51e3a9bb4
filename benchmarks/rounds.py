"""The method: rounds over all contestants in turn, each measurement in a fresh process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.discovery import Entry
from benchmarks.growth import FILL_STEPS, RACE_STEP, REST_STEP
from benchmarks.settings import Settings
from benchmarks.stores import fresh_store
from benchmarks.worker_process import child_command


@dataclass
class Samples:
    """All figures that were measured: by contestant, then by figure, one for each round."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    cannot: dict[str, set[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, figures: dict[str, float | None]) -> None:
        for figure, value in figures.items():
            if value is None:
                self.cannot.setdefault(name, set()).add(figure)
            else:
                self.values.setdefault(name, {}).setdefault(figure, []).append(value)


def run_rounds(
    entries: Sequence[Entry], measures: Iterable[str], settings: Settings, scratch: Path
) -> Samples:
    """A B C, A B C: a machine that slows down for a minute slows down every contestant."""
    samples = Samples()
    for measure in measures:
        for number in range(1, settings.rounds + 1):
            for entry in entries:
                label = f"{measure} {number}/{settings.rounds} {entry.contestant.name}"
                arguments = ["--measure", measure, "--directory", str(scratch)]
                run_child("measure", entry, arguments, settings, samples, label)
    return samples


def run_growth(entries: Sequence[Entry], rows: int, settings: Settings, scratch: Path) -> Samples:
    """The same race on an empty store and on a grown one, in turn. Growing takes long, so it is done once."""
    samples = Samples()
    for entry in entries:
        with fresh_store(entry.contestant, scratch, prefix="bench-grown-") as grown:
            for step in (*FILL_STEPS, REST_STEP):
                run_growth_child(entry, step, rows, grown, settings, samples, f"growth: {rows} {step}")
            for number in range(1, settings.rounds + 1):
                label = f"growth {number}/{settings.rounds} {entry.contestant.name}"
                with fresh_store(entry.contestant, scratch, prefix="bench-empty-") as empty:
                    run_growth_child(
                        entry, RACE_STEP, settings.jobs, empty, settings, samples, f"{label}, empty"
                    )
                run_growth_child(entry, RACE_STEP, settings.jobs, grown, settings, samples, f"{label}, grown")
    return samples


def run_scaling(
    entries: Sequence[Entry], processes: Sequence[int], settings: Settings, scratch: Path
) -> Samples:
    """1 2 4, 1 2 4: all the numbers of processes in turn."""
    samples = Samples()
    for number in range(1, settings.rounds + 1):
        for entry in entries:
            for count in processes:
                label = f"processes {number}/{settings.rounds} {entry.contestant.name}, {count}"
                arguments = ["--count", str(count), "--directory", str(scratch)]
                run_child("scale", entry, arguments, settings, samples, label)
    return samples


def run_snapshots(entries: Sequence[Entry], seconds: float, settings: Settings, scratch: Path) -> Samples:
    samples = Samples()
    for number in range(1, settings.rounds + 1):
        for entry in entries:
            label = f"snapshot {number}/{settings.rounds} {entry.contestant.name}"
            arguments = ["--seconds", str(seconds), "--directory", str(scratch)]
            run_child("snapshot", entry, arguments, settings, samples, label)
    return samples


def run_growth_child(
    entry: Entry, step: str, count: int, directory: Path, settings: Settings, samples: Samples, label: str
) -> None:
    arguments = ["--step", step, "--count", str(count), "--directory", str(directory)]
    suffix = label.rpartition(", ")[2] if step == RACE_STEP else None
    run_child("growth", entry, arguments, settings, samples, label, suffix=suffix)


def run_child(
    verb: str,
    entry: Entry,
    arguments: list[str],
    settings: Settings,
    samples: Samples,
    label: str,
    *,
    suffix: str | None = None,
) -> None:
    """One measurement with its progress line. A failure is kept and told at the end; the others go on."""
    name = entry.contestant.name
    command = [*child_command(verb, entry.module, name, settings), *arguments]
    print(f"{label} … ", end="", flush=True)
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=settings.timeout_seconds, check=True
        )
        figures: dict[str, float | None] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        samples.failures.append(f"{label}: not done within {settings.timeout_seconds:.0f} s")
        print("timed out", flush=True)
        return
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        stderr = getattr(error, "stderr", None) or str(error)
        samples.failures.append(f"{label}: {stderr.strip().splitlines()[-1]}")
        print(f"FAILED\n{stderr}", flush=True)
        return
    if suffix:
        figures = {f"{figure}_{suffix}": value for figure, value in figures.items()}
    samples.add(name, figures)
    told = ", ".join("cannot" if value is None else f"{value:,.1f}" for value in figures.values()) or "done"
    print(f"{told}  ({time.perf_counter() - begun:.1f} s)", flush=True)
