"""What the tests of handlers in processes of their own share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskharbor import Harbor, Worker
from tests.worker.stage import soon, until


def apart(harbor: Harbor, function: Callable[..., Any], **options: Any) -> Any:
    """Declare a function of the module `isolated` to run in a process of its own."""
    harbor.made_in.clear()  # nothing that the fixtures' module sets up is needed
    given: dict[str, Any] = {"name": function.__name__, "max_attempts": 1} | options
    declaration: Any = harbor.task(isolation="process", **given)
    return declaration(function)


async def done(harbor: Harbor, **options: Any) -> None:
    await soon(Worker(harbor, **options).drain())


async def begun(path: Path) -> int:
    """Until a handler has told its number, or that of what it started."""
    await until(path.exists)
    return number_in(path)


def number_in(path: Path) -> int:
    return int(path.read_text())


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie, which only waits for being noticed, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def children_of(pid: int) -> set[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return {int(line) for line in found.stdout.split() if os.path.exists(f"/proc/{line}")}
