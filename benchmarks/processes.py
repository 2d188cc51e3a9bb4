"""What the kernel knows about a process: its memory and its processor time (Linux only)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
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
    """User and system time that the process has used so far, in all its threads, by the kernel's exact clock."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) makes of a pid
    except OSError:
        return None


def family_seconds(pid: int) -> float | None:
    """Time used by a process, by its children that live, and by those that it has waited for."""
    own, ended = processor_seconds(pid), _seconds_of_ended_children(pid)
    if own is None or ended is None:
        return None
    return own + ended + sum(processor_seconds(child) or 0.0 for child in children_of(pid))


def children_of(pid: int) -> list[int]:
    return [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in _numbers(path)]


def _numbers(path: Path) -> list[int]:
    """The numbers in a file, or none where the thread that it speaks of has ended meanwhile."""
    try:
        return [int(number) for number in path.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return None


def _seconds_of_ended_children(pid: int) -> float | None:
    fields = _stat(pid)
    return None if fields is None else (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command, which may itself hold spaces and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None


def end_with_parent() -> None:
    """For `preexec_fn`: ask the kernel to kill this process when its parent is killed, which cleans up nothing.

    The kernel means the parent's thread: start such a process from one that lasts.
    """
    if sys.platform.startswith("linux"):
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
