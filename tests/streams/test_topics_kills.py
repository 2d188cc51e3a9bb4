"""kill -9 of members that retry by topics: a message and its retry record move together, or not at all."""

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
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.streams.log import Log
from tools.kafka_server import MOCK_LACKS, Broker

MEMBER = Path(__file__).parent / "topics_member.py"
MESSAGES = int(os.environ.get("TASKHARBOR_FAULT_MESSAGES", "3000"))
KILLS = int(os.environ.get("TASKHARBOR_FAULT_STREAM_KILLS", "4"))
PATIENCE_SECONDS = 240.0 + MESSAGES / 50

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Members:
    """Processes that read one topic. One has a name that it keeps, the other is another one after each kill."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.folder = folder
        self.log = log
        self.file = folder / "executions"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with (self.folder / "stderr").open("ab") as errors:
            command = [self.log.bootstrap, self.log.topic, self.log.group, str(self.file), name]
            self.running[name] = subprocess.Popen(
                [sys.executable, str(MEMBER), *command], stdout=errors, stderr=errors
            )

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def executions(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def ended(self) -> set[int]:
        return {each["n"] for each in self.executions() if each["at"] == "end"}

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def members(tmp_path: Path, broker: Broker, log: Log) -> Iterator[Members]:
    if broker.is_mock:
        pytest.skip(f"the mock has no {MOCK_LACKS}")
    members = Members(tmp_path, log)
    yield members
    members.close()


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_killed_members_neither_lose_nor_double_a_message_that_moves(members: Members):
    chance = random.Random(17)
    log, good = members.log, {n for n in range(MESSAGES) if n % 100 != 99}
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    for name in ("steady", ""):
        members.start(name)
    # A slice of the messages before each kill and one after the last, so that each kill finds messages to interrupt.
    slices = [range(MESSAGES * n // (KILLS + 1), MESSAGES * (n + 1) // (KILLS + 1)) for n in range(KILLS + 1)]
    for each in slices[:-1]:
        log.put_calls("note", each)
        while members.ended().isdisjoint(each):
            assert time.monotonic() < give_up_at, _told(members, good)
            time.sleep(0.02)
        name = chance.choice(["steady", ""])
        members.kill(name)
        members.start(name)
    log.put_calls("note", slices[-1])
    while members.ended() < good or not log.is_committed():
        assert time.monotonic() < give_up_at, _told(members, good)
        time.sleep(0.2)
    # Every poisonous message is dead, once, with all of its attempts.
    dead = all_of(log, log.dead_letter_topic)
    while len(dead) < MESSAGES // 100:
        assert time.monotonic() < give_up_at, _told(members, good)
        dead = all_of(log, log.dead_letter_topic)
    assert sorted(json.loads(each.value())["payload"]["n"] for each in dead) == list(range(99, MESSAGES, 100))
    for each in dead:
        headers = dict(each.headers())
        assert (headers["taskharbor-attempts"], headers["taskharbor-reason"]) == (b"3", b"exhausted")
        assert [row["number"] for row in json.loads(headers["taskharbor-history"])] == [1, 2, 3]
    executions = members.executions()
    # What failed once succeeded as its second attempt.
    assert all(each["retry"] == 1 for each in executions if each["at"] == "end" and each["n"] % 20 == 7)
    # Repeated are only messages that were in flight at a kill, or ended since the last commit before it.
    ends = Counter(each["n"] for each in executions if each["at"] == "end")
    repeated = sum(count - 1 for count in ends.values())
    assert repeated <= KILLS * 400, repeated


def all_of(log: Log, topic: str) -> list[Any]:
    """Every message of a topic, up to its end."""
    settings = {
        "bootstrap.servers": log.bootstrap,
        "group.id": f"{log.group}-looks",
        "enable.partition.eof": True,
    }
    consumer: Any = Consumer({**settings, "auto.offset.reset": "earliest"})
    numbers = list(log.admin.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    found: list[Any] = []
    at_end: set[int] = set()
    while len(at_end) < len(numbers):
        for each in consumer.consume(500, 0.2):
            if each.error() is None:
                found.append(each)
            elif each.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(each.partition())
    consumer.close()
    return found


def _told(members: Members, good: set[int]) -> str:
    errors = (members.folder / "stderr").read_text()[-3_000:]
    return f"missing {sorted(good - members.ended())[:10]}\n{errors}"
