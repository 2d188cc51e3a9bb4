"""Kill the process groups that a dead worker leaves behind.

A process of its own, because the handlers may not notice that their worker is gone: a handler may hold the GIL in C
code for minutes, and a program that it has started does not know the worker. It runs as a script and imports little,
so it stays small. The worker writes a line `+group` or `-group` when a group begins or ends; the end of the input means
that the worker is gone.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the worker, which gets time to shut down
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line[1:])
        if line.startswith(b"+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
