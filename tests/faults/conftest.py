from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.calling import step_to_end
from taskharbor.client.handle import Job
from taskharbor.client.options import new_job

CREW = Path(__file__).parent / "crew.py"


def wait_until(condition: Callable[[], Any], seconds: float = 25.0, what: str = "it") -> Any:
    """What is true of real processes comes about in real time: look again and again, until a deadline."""
    give_up_at = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < give_up_at, f"{what} did not come about within {seconds:g} s"
        time.sleep(0.01)
    return answer


class Crew:
    """A store on disk and the processes that work on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/harbor.db"
        self.harbor = Harbor(self.url)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, **options: Any) -> subprocess.Popen[bytes]:
        with open(self.folder / "stderr", "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, str(CREW), role, self.url, str(self.folder), json.dumps(options)],
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

    def lines(self, file: str) -> list[str]:
        """The whole lines of a file: the last one may be cut off by a kill."""
        try:
            return (self.folder / file).read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []

    def executions(self) -> Counter[int]:
        return Counter(int(line.split()[0]) for line in self.lines("executions"))

    def executed_by(self, process: subprocess.Popen[bytes]) -> int:
        return sum(line.endswith(f" {process.pid}") for line in self.lines("executions"))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def enqueue_notes(self, numbers: Iterable[int], task: str = "note", **more: Any) -> list[Job[Any]]:
        """A job for each number, by name: this process has none of the handlers."""
        jobs = [new_job(task, json.dumps({"n": n, **more}), {}) for n in numbers]
        return step_to_end(self.harbor._store(jobs))

    def is_done(self) -> bool:
        counts = self.counts()
        return sum(counts.values()) == counts["succeeded"] + counts["dead"] + counts["cancelled"]

    def counts(self) -> dict[str, int]:
        return self.harbor.jobs.counts()

    def errors(self) -> str:
        return "\n".join(self.lines("stderr")[-40:])

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.harbor.close()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(tmp_path)
    yield crew
    crew.close()
