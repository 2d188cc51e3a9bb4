"""Outlives a worker for a moment, to kill the process groups that it leaves behind.

Run as a file of its own, so that it is small: a handler may hold the interpreter's lock in C code for minutes,
and what a handler has started does not know the worker at all; neither can notice that the worker is gone. The
worker writes a line `+group` or `-group` whenever one begins or ends; the end of its input is the worker's.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the worker, which is given time to end
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
