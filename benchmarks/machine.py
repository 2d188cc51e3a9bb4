"""On what the figures were measured: a rate without its machine says nothing."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

IN_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}


def describe(directory: Path) -> dict[str, str]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{processor_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem_of(directory),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
    }


def processor_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def filesystem_of(directory: Path) -> str:
    """The type of the filesystem a directory is on: the mount with the longest matching path."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except FileNotFoundError:
        return sys.platform
    resolved = directory.resolve()
    holding = [mount for mount in mounts if resolved.is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2] if holding else "unknown"


def scratch_directory(wanted: Path | None) -> Path:
    """Where the stores are made. Never in memory: a sync that costs nothing would measure another product."""
    candidates = [wanted] if wanted else [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    for candidate in candidates:
        if candidate.is_dir() and filesystem_of(candidate) not in IN_MEMORY_FILESYSTEMS:
            return candidate
    tried = ", ".join(str(candidate) for candidate in candidates)
    raise SystemExit(f"no directory on a real disk among {tried}: give one with --directory")
