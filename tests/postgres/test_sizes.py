"""Many bytes at once: a worker's memory is bounded."""

from __future__ import annotations

import subprocess
import sys

from tests.postgres import memory

JOBS = 200
PEAK_MEBIBYTES = 150  # 32 wait to be settled, and each batch of 4 is copied some times


def test_memory_of_a_worker_does_not_grow_with_the_number_of_large_results(dsn: str) -> None:
    ran = subprocess.run(
        [sys.executable, memory.__file__, dsn, str(JOBS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < PEAK_MEBIBYTES
