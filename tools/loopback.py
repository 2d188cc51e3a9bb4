"""What every server that a run starts on loopback needs: a free port, and an end even if the run is killed."""

from __future__ import annotations

import ctypes
import signal
import socket
import sys


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_with_the_run(how: signal.Signals = signal.SIGINT) -> None:
    """Ask the kernel, where it can, to end this process when the run is killed: a killed run cleans up nothing."""
    if sys.platform.startswith("linux"):
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, how)
