"""kill -9 of members of a group: no message is lost, and only those are repeated that were not committed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
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
MEMBERS = int(os.environ.get("TASKHARBOR_FAULT_STREAM_MEMBERS", "2"))
PARTITIONS = int(os.environ.get("TASKHARBOR_FAULT_STREAM_PARTITIONS", "2"))
ORDERS = os.environ.get("TASKHARBOR_FAULT_STREAM_ORDERS", "key").split()
KEYS = 21  # with no common factor with what fails and what is poisonous
PATIENCE_SECONDS = 240.0 + MESSAGES / 50

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Members:
    """Processes that read one topic."""

    def __init__(self, folder: Path, log: Log, order: str) -> None:
        self.order = order
        self.folder = folder
        self.log = log
        self.url = f"sqlite:///{folder}/harbor.db"
        self.harbor = Harbor(self.url)
        self.harbor.migrate()
        self.file = folder / "executions"
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self.folder / "stderr").open("ab") as errors:
            command = [
                self.url,
                self.log.bootstrap,
                self.log.topic,
                self.log.group,
                str(self.file),
                self.order,
            ]
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


@pytest.fixture(params=ORDERS)
def members(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Members]:
    log = Log(broker.bootstrap, f"tasks-{uuid.uuid4().hex[:10]}", partitions=PARTITIONS)
    members = Members(tmp_path, log, request.param)
    yield members
    members.close()


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_killed_members_lose_no_message_and_repeat_only_what_was_not_committed(members: Members):
    chance = random.Random(17)
    log, good = members.log, {n for n in range(MESSAGES) if not _is_poisonous(n)}
    for _ in range(MEMBERS):
        members.start()
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    # A slice of the messages before each kill and one after the last, so that each kill finds messages to interrupt.
    slices = [range(MESSAGES * n // (KILLS + 1), MESSAGES * (n + 1) // (KILLS + 1)) for n in range(KILLS + 1)]
    for each in slices[:-1]:
        log.put_keyed("note", each, KEYS)
        while members.ended().isdisjoint(each):
            assert time.monotonic() < give_up_at, _told(members, good)
            time.sleep(0.02)
        members.kill_one(chance)
        members.start()
    log.put_keyed("note", slices[-1], KEYS)
    while members.ended() < good or not log.is_committed():
        assert time.monotonic() < give_up_at, _told(members, good)
        time.sleep(0.2)
    while members.harbor.jobs.counts()["dead"] < MESSAGES // 100 or _unfinished(members):
        assert time.monotonic() < give_up_at, _told(members, good)
        time.sleep(0.1)
    # Every message that failed has its job with all of its attempts; the poisonous ones are dead.
    dead = _jobs(members, "dead")
    assert sorted(job.payload["n"] for job in dead) == list(range(99, MESSAGES, 100))
    retried = _jobs(members, "succeeded")
    failed_once = {n for n in good if n % 20 == 7}
    assert {job.payload["n"] for job in retried} >= failed_once
    assert all(job.attempts == 1 for job in retried if job.payload["n"] in failed_once)
    # Repeated are only messages that were in flight at a kill, or ended since the last commit before it.
    executions = members.executions()
    ends = Counter(each["n"] for each in executions if each["at"] == "end")
    repeated = sum(count - 1 for count in ends.values())
    assert repeated <= KILLS * 400, repeated
    if members.order != "none":
        assert _overtakers(executions, KEYS if members.order == "key" else PARTITIONS) == []


def _is_poisonous(n: int) -> bool:
    return n % 100 == 99


def _line_of(n: int, lines: int) -> int:
    return n % KEYS % lines


def _overtakers(executions: list[dict[str, Any]], lines: int) -> list[tuple[int, int]]:
    """Messages that began before the one before them of their line had succeeded (or had begun, if it is poisonous).

    By the handlers' own log. A message that a kill repeats began again later than that, so the first begin counts.
    """
    begun: dict[int, int] = {}
    over: dict[int, int] = {}
    for at, each in enumerate(executions):
        n = each["n"]
        if each["at"] == "begin":
            begun.setdefault(n, at)
        if each["at"] == "end" or _is_poisonous(n):
            over.setdefault(n, at)
    last: dict[int, int] = {}
    found = []
    for n in range(MESSAGES):
        before = last.get(_line_of(n, lines))
        if before is not None and begun[n] < over[before]:
            found.append((before, n))
        last[_line_of(n, lines)] = n
    return found


def _jobs(members: Members, state: Any) -> list[Any]:
    """All jobs of this state, page by page."""
    found: list[Any] = []
    cursor = None
    while True:
        page = members.harbor.jobs.list(task="note", state=state, limit=1_000, cursor=cursor)
        found += page
        cursor = page.next_cursor
        if cursor is None:
            return found


def _unfinished(members: Members) -> int:
    counts = members.harbor.jobs.counts()
    return counts["ready"] + counts["scheduled"] + counts["running"] + counts["waiting"]


def _told(members: Members, good: set[int]) -> str:
    errors = (members.folder / "stderr").read_text()[-2_000:]
    return f"missing {sorted(good - members.ended())[:10]}; {members.harbor.jobs.counts()}\n{errors}"
