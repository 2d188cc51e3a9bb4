from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.client.handle import Job
from tests.faults.processes import wait_until
from tests.postgres import store

HERE = Path(__file__).parent
COMMAND = [sys.executable, "-P", "-m", "patient_command", "worker", "-A", "shop:harbor"]


class Shop:
    """A store, and supervised workers on it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.harbor = Harbor(url)
        self.harbor.migrate()
        self.parents: list[subprocess.Popen[bytes]] = []

        @self.harbor.task(name="note")
        def note(n: int, seconds: float = 0.0) -> int:
            raise AssertionError("it is only enqueued here")

        self._note = note

    # -- processes --

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "SHOP_FOLDER": str(self.folder), "TASKHARBOR_URL": self.url, "PYTHONPATH": path}

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        """A supervisor; options as the command line has them, with underscores."""
        words = [
            f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not True
        ]
        words += [f"--{name.replace('_', '-')}" for name, value in options.items() if value is True]
        with open(self.folder / "stderr", "ab") as errors:
            parent = subprocess.Popen(
                [*COMMAND, *words],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )
        self.parents.append(parent)
        return parent

    def started(self, processes: int = 2, **options: Any) -> subprocess.Popen[bytes]:
        """A supervisor whose children have all started."""
        before = len(self.lines("workers"))
        parent = self.start(processes=processes, **options)
        self.wait(lambda: len(self.lines("workers")) >= before + processes, "the workers")
        return parent

    def wait(self, condition: Any, what: str = "it", seconds: float = 100.0) -> Any:
        try:
            return wait_until(condition, seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.counts()}\n{self.errors()}") from None

    def children(self) -> list[int]:
        """Of all processes that began to work, those that are there."""
        return [pid for pid in map(int, self.lines("workers")) if is_alive(pid)]

    def close(self) -> None:
        for parent in self.parents:
            if parent.poll() is None:
                parent.send_signal(signal.SIGCONT)
                parent.kill()
            parent.wait()
        for pid in map(int, self.lines("workers")):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self.harbor.close()

    # -- what they wrote --

    def lines(self, file: str) -> list[str]:
        try:
            return (self.folder / file).read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []

    def errors(self) -> str:
        return "\n".join(self.lines("stderr")[-60:])

    def executions(self) -> Counter[int]:
        return Counter(int(line.split()[0]) for line in self.lines("executions"))

    def executors(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines("executions")]

    # -- the store --

    def enqueue_notes(self, numbers: Iterable[int], **more: Any) -> list[Job[Any]]:
        return self._note.enqueue_many([{"n": n, **more} for n in numbers])

    def counts(self) -> dict[str, int]:
        return self.harbor.jobs.counts()

    def is_done(self) -> bool:
        counts = self.counts()
        return sum(counts.values()) == counts["succeeded"] + counts["dead"] + counts["cancelled"]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """On each store that many processes can share."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/harbor.db"
        else:
            url = stack.enter_context(store.database())
        shop = Shop(tmp_path, url)
        stack.callback(shop.close)
        yield shop


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Shop]:
    """For what does not depend on the store."""
    shop = Shop(tmp_path, f"sqlite:///{tmp_path}/harbor.db")
    yield shop
    shop.close()
