"""Measure how much memory this process uses."""

from __future__ import annotations

import os
import sys

MIB = 1024 * 1024


def resident_mib() -> int:
    """Return the resident memory of this process in MiB, or its peak where the system reports only that."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // MIB if sys.platform == "darwin" else peak // 1024
