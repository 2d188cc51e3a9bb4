"""Waits: what a store knows of a job that has not finished, beyond its record."""

from __future__ import annotations

from msgspec import Struct


class WorkerLoad(Struct, frozen=True):
    """What a worker holds under leases that have not expired."""

    held: int = 0  # jobs that are not settled yet
    running: int = (
        0  # of these, how many its latest heartbeat named: they had been running for longer than a beat
    )
