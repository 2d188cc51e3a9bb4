"""What the kernel knows about a process: its memory and its processor time (Linux only)."""

from __future__ import annotations

import os
from pathlib import Path


def memory_megabytes(pid: int, *, peak: bool) -> float | None:
    """Resident memory now, or its high-water mark.

    VmHWM and not getrusage: ru_maxrss survives exec, so a child would report the size of its parent.
    """
    wanted = "VmHWM:" if peak else "VmRSS:"
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(wanted)), None)


def processor_seconds(pid: int) -> float | None:
    """User and system time that the process has used so far."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None
    after_command = stat.rpartition(")")[2].split()  # the command may itself hold spaces and parentheses
    return (int(after_command[11]) + int(after_command[12])) / os.sysconf("SC_CLK_TCK")
