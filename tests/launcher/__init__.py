"""Starts Python programs in forks of a warm process: most of a cold start is imports.

    subprocess.run([*launcher.python(), "-P", "-m", "taskharbor.cli", "list"])

The warm process (`server.py`) has imported what our commands use. What follows is run as Python runs it, with the
streams, folder and environment of the caller. What the caller starts is a small process (`client.py`), which passes
SIGINT and SIGTERM on and ends as the program ends, also by a signal.

So the program is not the process that the caller has started. A test of the start itself starts Python, and so does
one that watches, stops or kills the process.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

TASKHARBOR = (
    "asyncpg",
    "taskharbor.cli.session",
    "taskharbor.cli.supervise",
    "taskharbor.drivers.memory",
    "taskharbor.drivers.postgres",
    "taskharbor.drivers.sqlite",
    "taskharbor.schedule",
    "taskharbor.views.job_documents",
    "taskharbor.worker",
    "taskharbor.worker.supervisor.child_main",
    "taskharbor.workflow",
)
# No models: they need a project.
DJANGO = (
    *TASKHARBOR,
    "django.core.management.commands.check",
    "django.core.management.commands.migrate",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.db.models",
    "django.http",
    "django.test",
    "django.views.debug",
)
HERE = Path(__file__).parent


def python(
    imported: tuple[str, ...] = TASKHARBOR, *, executable: str = sys.executable, path: str | None = None
) -> list[str]:
    """The words before the arguments of Python. Where the system cannot wait for a fork, they are Python itself.

    `path` is the PYTHONPATH by which the warm process finds what it imports; by default it is that of this process.
    """
    if not hasattr(os, "pidfd_open"):
        return [executable]
    path = os.environ.get("PYTHONPATH", "") if path is None else path
    return [sys.executable, "-I", "-S", str(HERE / "client.py"), _address(imported, executable, path)]


@cache
def _address(imported: tuple[str, ...], executable: str, path: str) -> str:
    """Start a warm process; return where it takes requests. One that comes early waits for the imports."""
    address = str(Path(tempfile.mkdtemp(prefix="launcher-")) / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        number = listener.fileno()
        warm = subprocess.Popen(
            [executable, "-P", str(HERE / "server.py"), str(number), *imported],
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
    atexit.register(_end, warm)
    return address


def _end(warm: subprocess.Popen[bytes]) -> None:
    warm.kill()
    warm.wait()
