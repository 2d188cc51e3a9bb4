"""What a test run starts ends with the run: see `tests/guard.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import guard
from tests.faults.processes import wait_until

EVERYTHING = Path(__file__).parent / "everything.py"
ROOT = Path(__file__).parents[2]
KINDS = {"forked", "detached", "supervisor", "supervised", "server", "grandchild"}
PATIENCE_SECONDS = 100.0  # of a machine that is busy; the guard itself takes a few seconds

pytestmark = pytest.mark.timeout(400)


class Run:
    """A run of `everything.py`, in a process of its own."""

    def __init__(self, notes: Path, ends: str, *options: str) -> None:
        self._notes = notes
        self._family: list[guard.Process] = []
        self.mark = "-"
        with (notes / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(EVERYTHING)],
                cwd=ROOT,
                env={**os.environ, "HOW_IT_ENDS": ends, "NOTES": str(notes)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._await("ready", lambda: self.read("ready"))
        outer = os.environ[guard.MARK]
        assert self.read("mark").startswith(f"{outer}.")
        # Of the whole run: that of the controller, if there is one.
        self.mark = outer + "." + self.read("mark").removeprefix(f"{outer}.").partition(".")[0]
        self.started = {kind: self._process(kind) for kind in KINDS}
        self._family = [*self._left(), *self.started.values()]
        (notes / "seen").touch()

    def read(self, kind: str) -> str:
        path = self._notes / kind
        return path.read_text() if path.exists() else ""

    def _process(self, kind: str) -> guard.Process:
        found = guard.process(int(self.read(kind)))
        assert found is not None, f"{kind} is gone already"
        return found

    def wait_until_nothing_is_left(self) -> None:
        self._await("the end of all it started", lambda: not self._left())
        self._await("the removal of its folder", lambda: not Path(self.read("folder")).exists())

    def _left(self) -> list[guard.Process]:
        family = {each.identity for each in self._family}
        marked = guard.left_of(self.mark)
        return [each for each in guard.processes() if each.identity in family or each.pid in marked]

    def _await(self, what: str, condition: Callable[[], object]) -> None:
        try:
            wait_until(condition, PATIENCE_SECONDS, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._left()}\n{self.read('output')}") from None

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def run(ends: str, *options: str) -> Run:
        runs.append(Run(tmp_path, ends, *options))
        return runs[-1]

    yield run
    for each in runs:
        each.end()


def test_nothing_is_left_of_a_run_that_is_killed(run: Callable[..., Run]) -> None:
    killed = run("killed")
    killed.process.kill()
    killed.wait_until_nothing_is_left()


def test_nothing_is_left_of_a_run_whose_xdist_controller_is_killed(run: Callable[..., Run]) -> None:
    killed = run("killed", "-n", "1")
    assert int(killed.read("ready")) != killed.process.pid
    killed.process.kill()
    killed.wait_until_nothing_is_left()


def test_nothing_is_left_of_an_xdist_worker_that_is_killed(run: Callable[..., Run]) -> None:
    """The run itself goes on, and reports it."""
    killed = run("killed", "-n", "1", "--max-worker-restart=0")
    os.kill(int(killed.read("ready")), signal.SIGKILL)
    killed.wait_until_nothing_is_left()
    assert killed.process.wait(PATIENCE_SECONDS) == 1
    assert "crashed" in killed.read("output")


@pytest.mark.parametrize("ends", ["failed", "interrupted"])
def test_nothing_is_left_of_a_run_that_ends_by_itself(run: Callable[..., Run], ends: str) -> None:
    ended = run(ends)
    assert ended.process.wait(PATIENCE_SECONDS) != 0
    ended.wait_until_nothing_is_left()


def test_a_guard_needs_less_than_ten_seconds() -> None:
    """What it waits for by itself; the rest is the machine's."""
    assert guard.SERVER_SECONDS + guard.QUIET_SECONDS < 5
