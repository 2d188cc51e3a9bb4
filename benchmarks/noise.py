"""The machine's noise: the same fixed work again and again, between the rounds of a run.

Where these figures spread by a factor, so may any other of the run.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

LOOPS = 500_000
SYNCS = 50
PAGE = b"\0" * 4096


def measure_noise(scratch: Path) -> dict[str, float]:
    return {"processor, ms": reference_loop(), "disk, µs": reference_sync(scratch)}


def reference_loop() -> float:
    """Milliseconds for a fixed number of turns of a loop in Python."""
    begun = time.perf_counter()
    total = 0
    for number in range(LOOPS):
        total += number & 7
    return (time.perf_counter() - begun) * 1e3


def reference_sync(scratch: Path) -> float:
    """Microseconds to write a page into a file that is long enough and to sync it."""
    with tempfile.TemporaryFile(dir=scratch) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, PAGE * SYNCS, 0)
        os.fsync(descriptor)
        begun = time.perf_counter()
        for number in range(SYNCS):
            os.pwrite(descriptor, PAGE, number * len(PAGE))
            os.fsync(descriptor)
        return (time.perf_counter() - begun) / SYNCS * 1e6
