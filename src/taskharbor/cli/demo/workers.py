"""The demo's workers: real processes of `taskharbor worker`."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

LEASE_SECONDS = 2
STOP_SECONDS = 5.0


class WorkerProcess:
    def __init__(self, number: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = f"worker {number}"
        self.pid = process.pid
        self.process = process
        self.log = log

    def is_named(self, worker: str) -> bool:
        """Whether this process has this worker's name, which contains the process id."""
        return f"-{self.pid}-" in worker

    def kill(self) -> None:
        """Send SIGKILL, so that the worker can neither finish nor hand back its jobs."""
        self.process.kill()
        self.process.wait()

    @property
    def last_log_line(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "nothing"


class Workers:
    """Starts worker processes, and stops them all at the end."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "TASKHARBOR_URL": url}
        self._command = [
            *(sys.executable, "-P", "-m", "taskharbor.cli", "worker"),
            *("--app", "taskharbor.cli.demo.tasks:harbor", "--queues", queue),
            *("--concurrency", "4", "--lease-seconds", str(LEASE_SECONDS)),
        ]
        self._files = ExitStack()
        self.started: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        number = len(self.started) + 1
        log = self._folder / f"worker-{number}.log"
        # A session of its own: Ctrl-C is for the demo, which then stops its workers.
        process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._files.enter_context(log.open("wb")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started.append(WorkerProcess(number, process, log))
        return self.started[-1]

    def name_of(self, worker: str) -> str:
        return next((process.name for process in self.started if process.is_named(worker)), worker)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        alive = [worker.process for worker in self.started if worker.process.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._files.close()
