"""kill -9 of members that retry by topics: none is lost, and what fails ends dead or succeeded, once."""

from __future__ import annotations

import json
import random
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from taskharbor.streams.offsets import decode
from tests.streams.crew import (
    MEMBERS,
    MESSAGES,
    PARTITIONS,
    PATIENCE_SECONDS,
    Crew,
    fails_once,
    is_poisonous,
)
from tests.streams.log import Log
from tools.kafka_server import MOCK_LACKS, Broker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture
def crew(tmp_path: Path, broker: Broker) -> Iterator[Crew]:
    if broker.is_mock:
        pytest.skip(f"the mock has no {MOCK_LACKS}")
    log = Log(broker.bootstrap, f"tasks-{uuid.uuid4().hex[:10]}", partitions=PARTITIONS)
    crew = Crew(tmp_path, log, broker, "memory://", "topics")
    yield crew
    crew.close()


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_killed_members_neither_lose_nor_double_a_message_that_moves(crew: Crew):
    """One of them has a name that it keeps, the others are other ones after each kill."""
    good = {n for n in range(MESSAGES) if not is_poisonous(n)}
    crew.run(["steady", *[""] * (MEMBERS - 1)], random.Random(17))
    crew.wait_until(lambda: crew.ended >= good and crew.log.is_committed())
    # Every poisonous message is dead, once, with all of its attempts, when nothing waits for another one any more.
    crew.wait_until(lambda: are_executed(crew.log))
    dead = all_of(crew.log, crew.log.dead_letter_topic)
    crew.note_committed()
    assert sorted(json.loads(each.value())["payload"]["n"] for each in dead) == list(range(99, MESSAGES, 100))
    for each in dead:
        headers = dict(each.headers())
        assert (headers["taskharbor-attempts"], headers["taskharbor-reason"]) == (b"3", b"exhausted")
        assert [row["number"] for row in json.loads(headers["taskharbor-history"])] == [1, 2, 3]
    # What failed once succeeded as its second attempt.
    assert {each.retry for each in crew.events if each.at == "end" and fails_once(each.n)} == {1}
    crew.check_repeats()


def are_executed(log: Log) -> bool:
    """Whether the members have finished with every record of the retry topics."""
    records = [each for topic in retry_topics(log) for each in all_of(log, topic)]
    places = {(each.topic(), each.partition()) for each in records}
    known = log.committed_by(f"{log.group}-retry", [TopicPartition(*each) for each in sorted(places)])
    finished = {(each.topic, each.partition): each for each in known}
    return all(
        each.offset() < of.offset or each.offset() in decode(of.offset, of.metadata)
        for each in records
        for of in [finished[each.topic(), each.partition()]]
    )


def retry_topics(log: Log) -> list[str]:
    return [
        name for name in log.admin.list_topics(timeout=30).topics if name.startswith(f"{log.topic}-retry-")
    ]


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
