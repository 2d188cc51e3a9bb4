"""The method: rounds over all contestants in turn, each measurement in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.discovery import Entry
from benchmarks.durations import MILLISECONDS, works
from benchmarks.growth import FILL_STEPS, RACE_STEP, REST_STEP
from benchmarks.noise import measure_noise
from benchmarks.processes import end_with_parent
from benchmarks.settings import CHECKOUT_VARIABLE, Settings
from benchmarks.work import KINDS, Work
from benchmarks.worker_process import child_command


@dataclass
class Samples:
    """All figures that were measured: by contestant, then by figure, one for each round."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    rounds: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Beside each of the values: the round it is of. A measurement that failed has none."""
    cannot: dict[str, set[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    noise: dict[str, list[float]] = field(default_factory=dict)
    """What the machine took for the same fixed work, measured between the rounds."""

    def add(self, name: str, figures: dict[str, float | None], number: int = 1) -> None:
        for figure, value in figures.items():
            if value is None:
                self.cannot.setdefault(name, set()).add(figure)
            else:
                self.values.setdefault(name, {}).setdefault(figure, []).append(value)
                self.rounds.setdefault(name, {}).setdefault(figure, []).append(number)

    def hear(self, noise: Mapping[str, float]) -> None:
        for name, value in noise.items():
            self.noise.setdefault(name, []).append(value)


def run_rounds(
    entries: Sequence[Entry], measures: Iterable[str], settings: Settings, scratch: Path
) -> Samples:
    """A B C, A B C: a machine that slows down for a minute slows down every contestant."""
    samples = Samples()
    for measure in measures:
        for number in rounds(settings, samples, scratch):
            for entry in entries:
                if measure == "drain_sync" and "sync" not in entry.contestant.kinds:
                    continue  # a child that starts only to say so takes a second
                label = f"{measure} {number}/{settings.rounds} {entry.label}"
                arguments = ["--measure", measure, "--directory", str(scratch)]
                run_child("measure", entry, arguments, settings, samples, label, number=number)
    return samples


def run_growth(entries: Sequence[Entry], rows: int, settings: Settings, scratch: Path) -> Samples:
    """The same race on an empty store and on a grown one, in turn. Growing takes long, so it is done once."""
    samples = Samples()
    with ExitStack() as stores:
        grown = {
            entry: stores.enter_context(store_of(entry, settings, samples, scratch)) for entry in entries
        }
        for entry in entries:
            for step in (*FILL_STEPS, REST_STEP):
                label = f"growth: {rows} {step} {entry.label}"
                run_growth_step(entry, step, rows, grown[entry], settings, samples, label)
        for number in rounds(settings, samples, scratch):
            for entry in entries:
                label = f"growth {number}/{settings.rounds} {entry.label}"
                with store_of(entry, settings, samples, scratch) as empty:
                    for name, store in (("empty", empty), ("grown", grown[entry])):
                        run_growth_step(
                            entry,
                            RACE_STEP,
                            settings.jobs,
                            store,
                            settings,
                            samples,
                            f"{label}, {name}",
                            suffix=name,
                            number=number,
                        )
    return samples


def run_scaling(
    entries: Sequence[Entry], processes: Sequence[int], settings: Settings, scratch: Path
) -> Samples:
    """1 2 4, 1 2 4: all the numbers of processes in turn."""
    samples = Samples()
    for number in rounds(settings, samples, scratch):
        for count in processes:
            for entry in entries:
                label = f"processes {number}/{settings.rounds} {entry.label}, {count}"
                arguments = ["--count", str(count), "--directory", str(scratch)]
                run_child("scale", entry, arguments, settings, samples, label, number=number)
    return samples


def run_durations(entries: Sequence[Entry], settings: Settings, scratch: Path) -> Samples:
    """One kind and duration after the other, each by all the contestants that have it."""
    samples = Samples()
    every = [Work(kind, each) for kind in KINDS for each in MILLISECONDS]
    for number in rounds(settings, samples, scratch):
        for work in every:
            for entry in entries:
                if work not in works(entry.contestant):
                    continue
                label = f"durations {number}/{settings.rounds} {entry.label}, {work}"
                arguments = ["--work", str(work), "--directory", str(scratch)]
                run_child("work", entry, arguments, settings, samples, label, number=number)
    return samples


def run_snapshots(entries: Sequence[Entry], seconds: float, settings: Settings, scratch: Path) -> Samples:
    samples = Samples()
    for number in rounds(settings, samples, scratch):
        for entry in entries:
            label = f"snapshot {number}/{settings.rounds} {entry.label}"
            arguments = ["--seconds", str(seconds), "--directory", str(scratch)]
            run_child("snapshot", entry, arguments, settings, samples, label, number=number)
    return samples


def rounds(settings: Settings, samples: Samples, scratch: Path) -> Iterator[int]:
    """Count the rounds, and measure the machine's noise before each of them and after the last."""
    for number in range(1, settings.rounds + 1):
        samples.hear(measure_noise(scratch))
        yield number
    samples.hear(measure_noise(scratch))


@contextmanager
def store_of(entry: Entry, settings: Settings, samples: Samples, scratch: Path) -> Iterator[Path]:
    """A store that stays between several children, made and removed by the code that it is for."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="bench-") as created:
        arguments = ["--directory", created]
        run_child("create", entry, arguments, settings, samples, f"a store of {entry.label}")
        try:
            yield Path(created)
        finally:
            run_child("remove", entry, arguments, settings, samples, f"end of a store of {entry.label}")


def run_growth_step(
    entry: Entry,
    step: str,
    count: int,
    directory: Path,
    settings: Settings,
    samples: Samples,
    label: str,
    *,
    suffix: str | None = None,
    number: int = 1,
) -> None:
    arguments = ["--step", step, "--count", str(count), "--directory", str(directory)]
    run_child("growth", entry, arguments, settings, samples, label, suffix=suffix, number=number)


def run_child(
    verb: str,
    entry: Entry,
    arguments: list[str],
    settings: Settings,
    samples: Samples,
    label: str,
    *,
    suffix: str | None = None,
    number: int = 1,
) -> None:
    """One measurement with its progress line. A failure is kept and told at the end; the others go on."""
    command = [*child_command(verb, entry.module, entry.contestant.name, settings), *arguments]
    print(f"{label} … ", end="", flush=True)
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=settings.timeout_seconds,
            check=True,
            env=environment_of(entry),
            preexec_fn=end_with_parent,
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
    samples.add(entry.label, figures, number)
    told = ", ".join("cannot" if value is None else f"{value:,.1f}" for value in figures.values()) or "done"
    print(f"{told}  ({time.perf_counter() - begun:.1f} s)", flush=True)


def environment_of(entry: Entry) -> dict[str, str] | None:
    """For another checkout: its code first on the path of the child and of all that the child starts."""
    if entry.checkout is None:
        return None
    source = str(entry.checkout / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, CHECKOUT_VARIABLE: source}
