"""`Totals`: what all processes have counted, those that run and those that have ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from msgspec import Struct

from taskharbor.telemetry.metrics.cells import JOB_WORDS, OTHER, PAIRS, PROCESS_WORDS, Cells, Pair


class Snapshot(Struct, frozen=True):
    """What has been counted so far, in the order of `cells.JOB_METRICS` and `cells.PROCESS_METRICS`."""

    process: list[int]
    jobs: dict[Pair, list[int]]


class Totals:
    """Adds up cells. A process counts once at every moment: while its cells are here, and after they have ended.

    A scrape reads from a thread of its own, so every method takes the lock. It is held for a copy of some words.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Cells] = []
        self._process = [0] * PROCESS_WORDS
        # A pair that once had room keeps it, and one that had none stays with `OTHER`: otherwise counts would move from
        # one series to another when their process ends.
        self._jobs: dict[Pair, list[int]] = {}

    def add(self, cells: Cells) -> None:
        """Count what this process has counted, and will."""
        with self._lock:
            self._running.append(cells)

    def end(self, cells: Cells) -> None:
        """Keep what a process has counted that counts no more. Its memory may be closed afterwards."""
        with self._lock:
            self._running.remove(cells)
            self._process = _sum([self._process, cells.process()])
            for pair, words in self._of(cells):
                self._jobs[pair] = _sum([self._jobs[pair], words])

    def knows(self, task: str) -> bool:
        """Say whether a process has counted under this task: a supervisor does not know what tasks are declared."""
        with self._lock:
            for cells in self._running:
                for _ in self._of(cells):
                    pass
            return any(pair[1] == task for pair in self._jobs)

    def snapshot(self) -> Snapshot:
        with self._lock:
            process = _sum([self._process, *(cells.process() for cells in self._running)])
            found = [each for cells in self._running for each in self._of(cells)]
            jobs = dict(self._jobs)
            for pair, words in found:
                jobs[pair] = _sum([jobs[pair], words])
            return Snapshot(process, jobs)

    def _of(self, cells: Cells) -> Iterable[tuple[Pair, list[int]]]:
        """Read the pairs of a process, those that there is no room for as `OTHER`."""
        for pair, words in cells.jobs():
            if pair not in self._jobs and len(self._jobs) - (OTHER in self._jobs) >= PAIRS:
                pair = OTHER  # noqa: PLW2901
            self._jobs.setdefault(pair, [0] * JOB_WORDS)
            yield pair, words


def _sum(columns: Iterable[list[int]]) -> list[int]:
    return [sum(words) for words in zip(*columns, strict=True)]
