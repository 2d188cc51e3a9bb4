"""Real processes on a real store: started, paused and killed by the fault tests, and watched by what they write."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from taskharbor import Harbor
from taskharbor.client.handle import Job
from taskharbor.client.options import new_job
from taskharbor.sync import run_inline, run_on_loop_thread
from tests.faults.audit import Execution

T = TypeVar("T")

# What a machine may take on top of a limit of ours: it may be busy, and its disk may stand still for a while.
BUSY_MACHINE_SECONDS = 20.0
CREW = Path(__file__).parent / "crew.py"
ENQUEUED_AT_ONCE = 500


def wait_until(condition: Callable[[], Any], seconds: float = 100.0, what: str = "it") -> Any:
    """What is true of real processes comes about in real time: look again and again, until a deadline."""
    give_up_at = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < give_up_at, f"{what} did not come about within {seconds:g} s"
        time.sleep(0.01)
    return answer


def called(harbor: Harbor, coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine on this store gives, for a test that is not asynchronous."""
    return (run_inline if harbor.driver.inline else run_on_loop_thread)(coroutine)


def pause(process: subprocess.Popen[bytes], url: str) -> None:
    """SIGSTOP, but not in the middle of a write to a SQLite file: nobody else could write before it goes on."""
    with ExitStack() as stack:
        if url.startswith("sqlite:///"):
            holder = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60, isolation_level=None)
            stack.callback(holder.close)
            holder.execute("BEGIN IMMEDIATE")  # while we have the lock, it does not
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: _state_of(process.pid) == "T", what="the pause")


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Crew:
    """A store and the processes that work on it; what they tell, they tell in files of a folder."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/harbor.db"
        self.harbor = Harbor(self.url)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._files: dict[str, _Lines] = {}
        self._executions: list[Execution] = []

    # -- processes --

    def start(self, role: str, *, url: str | None = None, **options: Any) -> subprocess.Popen[bytes]:
        with open(self.folder / "stderr", "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, str(CREW), role, url or self.url, str(self.folder), json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
        self.processes.append(process)
        return process

    def worker(self, **options: Any) -> subprocess.Popen[bytes]:
        """A worker that has started."""
        process = self.start("work", **options)
        wait_until(
            lambda: str(process.pid) in self.lines("workers") or process.poll() is not None, what="a worker"
        )
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    # -- what they tell --

    def lines(self, file: str) -> list[str]:
        """The whole lines of a file: the last one may be cut off by a kill."""
        if file not in self._files:
            self._files[file] = _Lines(self.folder / file)
        return self._files[file].read()

    def executions(self) -> list[Execution]:
        lines = self.lines("executions")
        self._executions += [Execution.of(line) for line in lines[len(self._executions) :]]
        return self._executions

    def executions_of(self) -> Counter[int]:
        """How often each number was executed."""
        return Counter(execution.n for execution in self.executions())

    def executed_by(self, process: subprocess.Popen[bytes]) -> int:
        return sum(execution.pid == process.pid for execution in self.executions())

    def errors(self) -> str:
        return "\n".join(self.lines("stderr")[-40:])

    # -- the store --

    def enqueue_notes(
        self, numbers: Iterable[int], task: str = "note", queue: str = "default", **more: Any
    ) -> list[Job[Any]]:
        """A job for each number, by name: this process has none of the handlers."""
        new = [new_job(task, json.dumps({"n": n, **more}), {"queue": queue}) for n in numbers]
        return [
            job
            for start in range(0, len(new), ENQUEUED_AT_ONCE)
            for job in called(self.harbor, self.harbor._store(new[start : start + ENQUEUED_AT_ONCE]))
        ]

    def is_done(self) -> bool:
        counts = self.counts()
        return sum(counts.values()) == counts["succeeded"] + counts["dead"] + counts["cancelled"]

    def counts(self) -> dict[str, int]:
        return self.harbor.jobs.counts()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.harbor.close()


class _Lines:
    """A file that only grows: what was read once is not read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._rest = b""
        self._offset = 0

    def read(self) -> list[str]:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            self._offset += len(new)
            *whole, self._rest = (self._rest + new).split(b"\n")
            self._lines += [line.decode() for line in whole]
        return self._lines
