"""kill -9 of members of a group: no message is lost, and only those are repeated that were not committed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from tests.streams.log import Log
from tools.kafka_server import Broker

MEMBER = Path(__file__).parent / "member.py"
MESSAGES = int(os.environ.get("TASKHARBOR_FAULT_MESSAGES", "3000"))
KILLS = int(os.environ.get("TASKHARBOR_FAULT_STREAM_KILLS", "4"))
PATIENCE_SECONDS = 240.0 + MESSAGES / 50

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Members:
    """Processes that read one topic."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.folder = folder
        self.log = log
        self.url = f"sqlite:///{folder}/harbor.db"
        self.harbor = Harbor(self.url)
        self.harbor.migrate()
        self.file = folder / "executions"
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self.folder / "stderr").open("ab") as errors:
            command = [self.url, self.log.bootstrap, self.log.topic, self.log.group, str(self.file)]
            self.running.append(
                subprocess.Popen([sys.executable, str(MEMBER), *command], stdout=errors, stderr=errors)
            )

    def kill_one(self, chance: random.Random) -> None:
        process = self.running.pop(chance.randrange(len(self.running)))
        process.kill()
        process.wait()

    def executions(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def ended(self) -> set[int]:
        return {each["n"] for each in self.executions() if each["at"] == "end"}

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self.harbor.close()


@pytest.fixture
def members(tmp_path: Path, broker: Broker, log: Log) -> Iterator[Members]:
    members = Members(tmp_path, log)
    yield members
    members.close()


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_killed_members_lose_no_message_and_repeat_only_what_was_not_committed(members: Members):
    chance = random.Random(17)
    log, good = members.log, {n for n in range(MESSAGES) if n % 100 != 99}
    for _ in range(2):
        members.start()
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    # A slice of the messages before each kill and one after the last, so that each kill finds messages to interrupt.
    slices = [range(MESSAGES * n // (KILLS + 1), MESSAGES * (n + 1) // (KILLS + 1)) for n in range(KILLS + 1)]
    for each in slices[:-1]:
        log.put_calls("note", each)
        while members.ended().isdisjoint(each):
            assert time.monotonic() < give_up_at, _told(members, good)
            time.sleep(0.02)
        members.kill_one(chance)
        members.start()
    log.put_calls("note", slices[-1])
    while members.ended() < good or not log.is_committed():
        assert time.monotonic() < give_up_at, _told(members, good)
        time.sleep(0.2)
    while members.harbor.jobs.counts()["dead"] < MESSAGES // 100 or _unfinished(members):
        assert time.monotonic() < give_up_at, _told(members, good)
        time.sleep(0.1)
    # Every message that failed has its job with all of its attempts; the poisonous ones are dead.
    dead = members.harbor.dlq.list(limit=1_000)
    assert sorted(job.payload["n"] for job in dead) == list(range(99, MESSAGES, 100))
    retried = members.harbor.jobs.list(task="note", state="succeeded", limit=1_000)
    failed_once = {n for n in good if n % 20 == 7}
    assert {job.payload["n"] for job in retried} >= failed_once
    assert all(job.attempts == 1 for job in retried if job.payload["n"] in failed_once)
    # Repeated are only messages that were in flight at a kill, or ended since the last commit before it.
    ends = Counter(each["n"] for each in members.executions() if each["at"] == "end")
    repeated = sum(count - 1 for count in ends.values())
    assert repeated <= KILLS * 400, repeated


def _unfinished(members: Members) -> int:
    counts = members.harbor.jobs.counts()
    return counts["ready"] + counts["scheduled"] + counts["running"]


def _told(members: Members, good: set[int]) -> str:
    errors = (members.folder / "stderr").read_text()[-2_000:]
    return f"missing {sorted(good - members.ended())[:10]}; {members.harbor.jobs.counts()}\n{errors}"
