"""The brokers: their address, the settings of clients, and whether a topic is there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from msgspec import Struct

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError, StreamError
from taskharbor.streams.consumer import explained
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

ANSWER_SECONDS = 15.0
PARTITIONS = 4  # of a topic that a worker creates
MESSAGE_BYTES_MAX = 16 * 1_048_576  # that a producer sends: the brokers have a limit of their own

# What a worker must decide itself. A user who sets one of these would lose messages.
_OURS = frozenset({"enable.auto.commit", "enable.auto.offset.store", "group.id", "bootstrap.servers"})


class Topic(Struct, frozen=True):
    cluster: str
    id: str  # its name, where the brokers give topics no ids
    partitions: int


class Brokers:
    def __init__(self, brokers: object, settings: Mapping[str, Any] | None = None) -> None:
        self.addresses = _checked(brokers)
        self._settings = dict(settings or {})
        if refused := sorted(_OURS & self._settings.keys()):
            raise ConfigurationError(
                f"{', '.join(refused)} cannot be set: the worker decides when an offset is finished; leave it out"
            )

    def client_settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.addresses, **self._settings}

    def consumer_settings(self, group: str) -> dict[str, Any]:
        return {
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            **self.client_settings(),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }

    def producer_settings(self) -> dict[str, Any]:
        return {
            "linger.ms": 5,
            "message.max.bytes": MESSAGE_BYTES_MAX,
            **self.client_settings(),
            "enable.idempotence": True,
            "acks": "all",
        }

    def topic(self, name: str, *, create: bool = False) -> Topic:
        """Find a topic, or create it; `StreamError` if the brokers do not answer or the topic is missing."""
        try:
            admin = AdminClient(self.client_settings(), logger=logger)
        except KafkaException as error:
            raise ConfigurationError(
                f"a setting of the Kafka client is wrong: {error.args[0].str()}"
            ) from error
        try:
            known = admin.list_topics(topic=name, timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise StreamError(
                f"no broker answers at {self.addresses}: {error.args[0].str()}; check the address and whether it runs"
            ) from error
        found = known.topics[name]
        if found.error is not None:
            if found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART or not create:
                raise explained(KafkaException(found.error), name)
            self._create(admin, name)
            return self.topic(name)
        return Topic(known.cluster_id or "", self._id_of(admin, name), len(found.partitions))

    def _create(self, admin: Any, name: str) -> None:
        [creation] = admin.create_topics([NewTopic(name, PARTITIONS)]).values()
        try:
            creation.result(ANSWER_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise explained(error, name) from error
        log_line(logger, logging.INFO, "created the topic {topic}", {"topic": name})

    def _id_of(self, admin: Any, name: str) -> str:
        try:
            [described] = admin.describe_topics(TopicCollection([name])).values()
            return str(described.result(ANSWER_SECONDS).topic_id)
        except (KafkaException, TimeoutError):  # older brokers, and the mock, have no ids
            return name


def _checked(brokers: object) -> str:
    if isinstance(brokers, str) and brokers.strip():
        return brokers.strip()
    if isinstance(brokers, list | tuple) and brokers and all(isinstance(each, str) for each in brokers):
        return ",".join(brokers)
    raise ConfigurationError(f'brokers are addresses such as "localhost:9092", not {shorten(brokers)}')
