"""A worker that starts while its server is away waits for it; what an operator got wrong ends it with one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskharbor import Harbor
from taskharbor.records import State
from tests.faults.processes import wait_until
from tests.postgres import store
from tests.postgres.server import Server, free_port, running

COMMAND = [sys.executable, "-P", "-m", "taskharbor.cli", "worker"]
BOTH = pytest.mark.parametrize("processes", [[], ["--processes", "2"]], ids=["alone", "supervised"])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that is stopped and started, so no other test's."""
    with running() as server:
        yield server


class Started:
    def __init__(self, folder: Path, words: list[str]) -> None:
        self._errors = folder / "stderr"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd=folder
            )

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def until_told(self, text: str) -> None:
        wait_until(lambda: text in self.errors or self.process.poll() is not None, 60, text)
        assert text in self.errors

    def ended(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    all_started: list[Started] = []

    def start(*words: str) -> Started:
        all_started.append(Started(tmp_path, list(words)))
        return all_started[-1]

    yield start
    for each in all_started:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(60)


@BOTH
def test_a_worker_that_starts_while_the_store_is_away_waits_and_then_works(server, start, processes):
    with Harbor(server.dsn()) as harbor:
        harbor.migrate()
        job = harbor.enqueue("echo")
    server.stop()
    try:
        worker = start("--url", server.dsn(), "--drain", *processes)
        worker.until_told("waiting for the store: no PostgreSQL server answers")
    finally:
        server.start()
    assert worker.ended() == 0, worker.errors
    assert "the store is back after" in worker.errors
    assert "Traceback" not in worker.errors
    with Harbor(server.dsn()) as harbor:
        assert harbor.jobs.get(job.id).state is State.SUCCEEDED


@BOTH
@pytest.mark.parametrize("host", ["localhost", "no-such-host.invalid"])
def test_a_signal_ends_a_worker_that_waits_for_its_store(start, processes, host):
    worker = start("--url", f"postgresql://{host}:{free_port()}/harbor", "--json", *processes)
    worker.until_told("waiting for the store")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ended() == 0, worker.errors


@BOTH
@pytest.mark.parametrize("mistake", ["database", "schema", "user"])
def test_an_operators_mistake_ends_a_worker_with_one_line(start, processes, mistake):
    dsn = store.server().dsn()
    url, told = {
        "database": (store.server().dsn("nothing_here"), "Create it (createdb)"),
        "schema": (f"{dsn}?schema=never_migrated", "run `taskharbor migrate`"),
        "user": (f"postgresql://unknown@{dsn.rpartition('@')[2]}", "does not let unknown in"),
    }[mistake]
    worker = start("--url", url, *processes)
    assert worker.ended() == 1
    [error] = [line for line in worker.errors.splitlines() if line.startswith("Error: ")]
    assert told in error
    assert "Traceback" not in worker.errors
