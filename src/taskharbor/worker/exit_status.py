"""Describe how a process ended."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Say in words how a process ended: `was killed by SIGSEGV (signal 11)`, `ended with exit code 3`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    return f"was killed by {name} (signal {-code})"
