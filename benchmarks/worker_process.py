"""The worker of a latency measurement: a second process that reports each handler's start through a pipe."""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.processes import end_with_parent
from benchmarks.settings import Settings
from benchmarks.work import Work

REPORT = struct.Struct("<qq")
"""Number of the probe, and the wall clock in nanoseconds when its handler started."""
REPORT_VARIABLE = "BENCH_REPORT_PIPE"
"""For handlers in processes of their own: where they find the pipe of the worker process."""
ANSWER_SECONDS = 60.0
STOP_SECONDS = 10.0


class WorkerProcess:
    """Starts `contestant.serve` in a process of its own; `with` ends that process."""

    def __init__(
        self, module: str, name: str, directory: Path, settings: Settings, work: Work | None = None
    ) -> None:
        self._seen: dict[int, int] = {}
        self._reading, writing = os.pipe()
        command = child_command("serve", module, name, settings)
        command += ["--directory", str(directory), "--report", str(writing)]
        command += [] if work is None else ["--work", str(work)]
        self._process = subprocess.Popen(
            command,
            pass_fds=[writing],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one call of the system
        )
        os.close(writing)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        self._signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._reading)

    def _signal(self, which: signal.Signals) -> None:
        """To all of its group: a worker that is killed leaves the processes that it started behind."""
        try:
            os.killpg(self.pid, which)
        except ProcessLookupError:
            return

    def wait_started(self, number: int) -> int:
        """When this probe's handler started. Blocks on the pipe: a poll would take from the worker's core."""
        while number not in self._seen:
            seen, started_ns = self._read()
            self._seen[seen] = started_ns
        return self._seen.pop(number)

    def _read(self) -> tuple[int, int]:
        readable, _, _ = select.select([self._reading], [], [], ANSWER_SECONDS)
        if not readable:
            raise TimeoutError(f"the worker process said nothing for {ANSWER_SECONDS:.0f} s")
        report = os.read(self._reading, REPORT.size)
        if not report:
            raise RuntimeError(f"the worker process ended with code {self._process.wait()}")
        number, started_ns = REPORT.unpack(report)
        return number, started_ns


def fill_in_other_process(
    module: str, name: str, directory: Path, settings: Settings, count: int, work: Work
) -> None:
    """Enqueue `count` jobs without the memory of doing so staying in this process."""
    command = child_command("fill", module, name, settings)
    subprocess.run(
        [*command, "--directory", str(directory), "--count", str(count), "--work", str(work)],
        check=True,
        preexec_fn=end_with_parent,
    )


def child_command(verb: str, module: str, name: str, settings: Settings) -> list[str]:
    as_json = json.dumps(settings.as_dict())
    return [sys.executable, "-m", "benchmarks.child", verb, module, name, "--settings", as_json]
