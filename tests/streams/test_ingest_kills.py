"""kill -9 of members that store messages: there is exactly one job for each message."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskharbor import Harbor
from tests.streams.log import Log

MEMBER = Path(__file__).parent / "ingest_member.py"
MESSAGES = int(os.environ.get("TASKHARBOR_FAULT_MESSAGES", "3000"))
KILLS = max(3, int(os.environ.get("TASKHARBOR_FAULT_STREAM_KILLS", "4")) - 1)
PATIENCE_SECONDS = 240.0 + MESSAGES / 50


class Members:
    def __init__(self, folder: Path, log: Log) -> None:
        self.folder = folder
        self.log = log
        self.url = f"sqlite:///{folder}/harbor.db"
        self.harbor = Harbor(self.url)
        self.harbor.migrate()
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with (self.folder / "stderr").open("ab") as errors:
            command = [self.url, self.log.bootstrap, self.log.topic, self.log.group]
            self.running.append(
                subprocess.Popen([sys.executable, str(MEMBER), *command], stdout=errors, stderr=errors)
            )

    def kill_one(self, chance: random.Random) -> None:
        process = self.running.pop(chance.randrange(len(self.running)))
        process.kill()
        process.wait()

    def stored(self) -> int:
        return sum(self.harbor.jobs.counts().values())

    def numbers(self) -> Counter[int]:
        page = self.harbor.jobs.list(limit=1_000)
        found = Counter(job.payload["n"] for job in page)
        while page.next_cursor is not None:
            page = self.harbor.jobs.list(limit=1_000, cursor=page.next_cursor)
            found.update(job.payload["n"] for job in page)
        return found

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self.harbor.close()


@pytest.fixture
def members(tmp_path: Path, log: Log) -> Iterator[Members]:
    members = Members(tmp_path, log)
    yield members
    members.close()


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_killed_members_store_each_message_exactly_once(members: Members):
    chance, log = random.Random(6), members.log
    for _ in range(2):
        members.start()
    give_up_at = time.monotonic() + PATIENCE_SECONDS

    def told() -> str:
        return f"{members.stored()} are stored\n{(members.folder / 'stderr').read_text()[-2_000:]}"

    cuts = [MESSAGES * n // (KILLS + 1) for n in range(KILLS + 2)]
    for begin, end in itertools.pairwise(cuts):
        log.put_calls("note", range(begin, end))
        if end == MESSAGES:
            break
        while members.stored() <= begin:  # so that the kill comes while this slice is being stored
            assert time.monotonic() < give_up_at, told()
            time.sleep(0.005)
        members.kill_one(chance)
        members.start()
    while members.stored() < MESSAGES or not log.is_committed():
        assert time.monotonic() < give_up_at, told()
        time.sleep(0.2)
    assert members.numbers() == Counter(range(MESSAGES))
