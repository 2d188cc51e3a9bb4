"""`taskharbor stream --processes`: static members, their replacement, and messages that kill their process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.records import AttemptStatus, Reason
from tests.streams.log import Log
from tools.kafka_server import MOCK_LACKS, Broker

APP = """
import asyncio, json, os, signal
from taskharbor import Harbor

harbor = Harbor()
told = os.open(os.environ["TOLD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@harbor.task(name="note")
async def note(n: int) -> None:
    await asyncio.sleep(0.01)
    os.write(told, (json.dumps({"n": n, "pid": os.getpid()}) + "\\n").encode())


@harbor.task(name="kills")
async def kills(n: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""
PATIENCE_SECONDS = 150.0

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Supervised:
    """`taskharbor stream --processes` as a process."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.log = log
        self._folder = folder
        self._url = f"sqlite:///{folder}/harbor.db"
        self._told = folder / "told"
        self._errors = folder / "stderr"
        (folder / "streamed_app.py").write_text(APP)
        self.harbor = Harbor(self._url)
        self.harbor.migrate()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        log = self.log
        command = [sys.executable, "-m", "taskharbor.cli", "stream", "-A", "streamed_app:harbor"]
        command += ["--brokers", log.bootstrap, "--topic", log.topic, "--group", log.group, *options]
        environment = os.environ | {"TASKHARBOR_URL": self._url, "TOLD": str(self._told)}
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdout=errors, stderr=errors
            )

    def executions(self) -> list[dict[str, Any]]:
        if not self._told.exists():
            return []
        return [json.loads(line) for line in self._told.read_text().splitlines()]

    def noted(self) -> set[int]:
        return {each["n"] for each in self.executions()}

    def until(self, condition: Any) -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < give_up_at, self.errors()
            assert self.process is None or self.process.poll() is None, self.errors()
            time.sleep(0.1)

    def errors(self) -> str:
        return self._errors.read_text()[-6_000:]

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.harbor.close()


@pytest.fixture
def supervised(tmp_path: Path, broker: Broker, log: Log) -> Iterator[Supervised]:
    if broker.is_mock:
        pytest.skip(f"a mock of a broker has no {MOCK_LACKS}")
    supervised = Supervised(tmp_path, log)
    yield supervised
    supervised.close()


def test_message_that_kills_its_process_ends_as_poison_and_holds_up_nothing(supervised: Supervised):
    log, harbor = supervised.log, supervised.harbor
    log.put_calls("note", range(100))
    log.put_calls("kills", [-1], partition=0)
    log.put_calls("note", range(100, 200))
    supervised.start("--processes", "2")
    supervised.until(lambda: supervised.noted() == set(range(200)))
    supervised.until(lambda: harbor.jobs.counts()["dead"] == 1)
    supervised.until(log.is_committed)
    [dead] = harbor.dlq.list()
    assert (dead.task, dead.reason, dead.attempts) == ("kills", Reason.POISON, 0)
    first = harbor.jobs.history(dead.id)[-1]
    assert (first.number, first.status) == (1, AttemptStatus.LOST)
    assert "was killed by SIGKILL" in (first.error or "")
    # What had begun beside it is a job of the store, and begins with the same loss; the other messages never were.
    beside = harbor.jobs.list(task="note", limit=200)
    assert len(beside) < 200
    assert {harbor.jobs.history(job.id)[-1].status for job in beside} <= {AttemptStatus.LOST}
    # The supervisor records what its children read.
    supervised.until(lambda: [len(each.partitions) for each in harbor.streams.list()] == [2])
    supervised.until(lambda: [each.lag for each in harbor.streams.list()] == [0])
    assert supervised.stop() == 0, supervised.errors()
    assert harbor.streams.list() == []


def test_child_that_retires_leaves_the_group_before_its_replacement_joins(supervised: Supervised):
    log = supervised.log
    log.put_calls("note", range(150))
    supervised.start("--processes", "1", "--max-jobs", "50", "--concurrency", "10")
    supervised.until(lambda: supervised.noted() == set(range(150)))
    supervised.until(log.is_committed)
    assert len({each["pid"] for each in supervised.executions()}) >= 3
    assert len(supervised.executions()) == 150  # nothing came twice
    assert supervised.stop() == 0, supervised.errors()
    assert "instance" not in supervised.errors().lower()
