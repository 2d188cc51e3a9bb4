"""How much memory a process has."""

from __future__ import annotations

import os
import sys

MIB = 1024 * 1024


def resident_mib() -> int:
    """Of this process, in MiB: now, or where the system does not say, at most so far."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // MIB if sys.platform == "darwin" else peak // 1024
