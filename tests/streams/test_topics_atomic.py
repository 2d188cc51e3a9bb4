"""kill -9 between any two writes of a move: the record and the offset of a message are one transaction."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.streams.log import PATIENCE_SECONDS, Log, until
from tests.streams.test_topics_kills import all_of, retry_topics
from tools.kafka_server import MOCK_LACKS, Broker

MEMBER = Path(__file__).parent / "topics_kill_member.py"
A_MOVE = (1, 2, 3)  # writes: the record, the offset, the commit of both


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_record_and_offset_of_a_message_move_together_whenever_its_worker_is_killed(
    tmp_path: Path, broker: Broker, log: Log
):
    """A message that fails twice: it moves to a retry topic, and then to the dead-letter topic. A member is killed
    after each write of both moves. Where the offset went first the message would be lost, where the record went first
    there would be two of it."""
    if broker.is_mock:
        pytest.skip(f"the mock has no {MOCK_LACKS}")
    executions, errors = tmp_path / "executions", tmp_path / "errors"

    def start(dies_after: int) -> subprocess.Popen[bytes]:
        command = [log.bootstrap, log.topic, log.group, str(executions), str(dies_after)]
        with errors.open("ab") as file:
            return subprocess.Popen([sys.executable, str(MEMBER), *command], stdout=file, stderr=file)

    log.put_calls("note", [0], partition=0)
    for dies_after in (*A_MOVE, *A_MOVE):
        member = start(dies_after)
        try:
            ended = await asyncio.to_thread(member.wait, PATIENCE_SECONDS)
        finally:
            member.kill()
            member.wait()
        assert ended == -signal.SIGKILL, errors.read_text()
    log.put_calls("note", [1], partition=0)
    last = start(0)
    try:
        await until(log.is_committed)
        await until(lambda: "[1, 0]" in executions.read_text())
    finally:
        last.kill()
        last.wait()
    # Each attempt was repeated until its transaction was committed, and not after that.
    executed = [json.loads(line) for line in executions.read_text().splitlines()]
    assert executed == [*[[0, 0]] * len(A_MOVE), *[[0, 1]] * len(A_MOVE), [1, 0]]
    [retried] = [each for tier in retry_topics(log) for each in all_of(log, tier)]
    assert dict(retried.headers())["taskharbor-retry-attempts"] == b"1"
    assert _committed(log, retried) > retried.offset()
    [dead] = all_of(log, log.dead_letter_topic)
    assert dict(dead.headers())["taskharbor-attempts"] == b"2"
    assert [row["number"] for row in json.loads(dict(dead.headers())["taskharbor-history"])] == [1, 2]


def _committed(log: Log, retried: Any) -> int:
    """How far the members have read the partition of a retry record."""
    asked = [TopicPartition(retried.topic(), retried.partition())]
    [known] = log.committed_by(f"{log.group}-retry", asked)
    return int(known.offset)
