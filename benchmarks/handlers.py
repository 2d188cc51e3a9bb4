"""Handlers that run in a process of their own: it finds them by importing this module."""

from __future__ import annotations

import os
import time

from benchmarks.worker_process import REPORT, REPORT_VARIABLE


def sleep(milliseconds: float) -> None:
    if milliseconds:
        time.sleep(milliseconds / 1_000)


def report_start(number: int) -> None:
    """Tell the producer when a probe began, through the pipe that the worker process holds."""
    started_ns = time.time_ns()
    with open(os.environ[REPORT_VARIABLE], "wb", buffering=0) as pipe:
        pipe.write(REPORT.pack(number, started_ns))
