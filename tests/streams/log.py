"""A topic as tests see it: what they put there, what the group has committed, what came out at the other end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from taskharbor.streams.client_errors import passes_for_member

PATIENCE_SECONDS = 60.0
T = TypeVar("T")
QUICK_BEATS = {"heartbeat.interval.ms": 300}  # members learn of a rebalance by them


class Log:
    def __init__(self, bootstrap: str, topic: str, partitions: int = 2) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.group = f"{topic}-group"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.create(topic, partitions)

    @property
    def dead_letter_topic(self) -> str:
        return f"{self.topic}-dlq"

    def create(self, topic: str, partitions: int, config: dict[str, str] | None = None) -> None:
        [created] = self.admin.create_topics([NewTopic(topic, partitions, config=config or {})]).values()
        created.result(PATIENCE_SECONDS)
        # It is created, and on a busy machine the broker may not know of it for a moment.
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while (
            len(self.admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions)
            != partitions
        ):
            assert time.monotonic() < give_up_at, f"the broker does not know of {topic}"
            time.sleep(0.02)

    def delete(self) -> None:
        [deleted] = self.admin.delete_topics([self.topic]).values()
        deleted.result(PATIENCE_SECONDS)

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete messages, as retention does."""
        [deleted] = self.admin.delete_records([TopicPartition(self.topic, partition, offset)]).values()
        deleted.result(PATIENCE_SECONDS)

    def put(self, *bodies: Any, key: str | None = None, **more: Any) -> None:
        """Put messages there, and return when the broker has them. What is no bytes is written as JSON."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for body in bodies:
            value = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            while True:
                try:
                    producer.produce(self.topic, value, key, **more)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def put_calls(self, task: str, arguments: Iterable[int], **more: Any) -> None:
        self.put(*({"task": task, "payload": {"n": n}} for n in arguments), **more)

    def put_keyed(self, task: str, arguments: Iterable[int], keys: int) -> None:
        """Put calls there whose key is the remainder of their argument; a key is always in the same partition."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for n in arguments:
            body = json.dumps({"task": task, "payload": {"n": n}}).encode()
            key = n % keys
            while True:
                try:
                    producer.produce(self.topic, body, str(key), partition=key % self.partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def committed(self) -> list[Any]:
        """What the group has committed of each partition. A transaction that is open is not waited for."""
        return self.committed_by(
            self.group, [TopicPartition(self.topic, number) for number in range(self.partitions)]
        )

    def committed_by(self, group: str, partitions: list[TopicPartition]) -> list[Any]:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": group}
        consumer = Consumer({**settings, "isolation.level": "read_uncommitted"})
        try:
            known = _answer(lambda: consumer.committed(partitions, timeout=PATIENCE_SECONDS))
            assert all(each.error is None for each in known), known
            return known
        finally:
            consumer.close()

    def commit(self, offsets: list[TopicPartition]) -> None:
        """Set what the group has committed, while it has no members."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        finally:
            consumer.close()

    def ends(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.group}-looks"})
        try:
            asked = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            return [
                _answer(partial(consumer.get_watermark_offsets, each, timeout=PATIENCE_SECONDS))[1]
                for each in asked
            ]
        finally:
            consumer.close()

    def is_committed(self) -> bool:
        """Whether the group has committed everything."""
        return [max(each.offset, 0) for each in self.committed()] == self.ends()

    def read(self, topic: str, count: int) -> Sequence[Any]:
        """The first messages of a topic."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{self.group}-reads-{topic}-{time.monotonic_ns()}",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])
        messages: list[Any] = []
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        try:
            while len(messages) < count:
                assert time.monotonic() < give_up_at, f"{len(messages)} of {count} messages came"
                messages += [each for each in consumer.consume(count, 0.2) if each.error() is None]
        finally:
            consumer.close()
        return messages


def _answer(ask: Callable[[], T]) -> T:
    """Ask until a broker answers that has just begun, or learned of the topic."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if not passes_for_member(error.args[0]) or time.monotonic() > give_up_at:
                raise
        time.sleep(0.05)


async def until(condition: Callable[[], Any], told: str = "") -> None:
    """Wait for a condition, however busy the machine is."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < give_up_at, f"it never came to this: {told or condition}"
        await asyncio.sleep(0.02)
