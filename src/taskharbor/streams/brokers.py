"""The brokers: their address, the settings of clients, and whether a topic is there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from msgspec import Struct

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError, StreamError
from taskharbor.streams.asking import AGAIN_SECONDS
from taskharbor.streams.client_errors import CREATE_TOPIC, explained, passes
from taskharbor.streams.client_log import MET, ClientLog
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

ANSWER_SECONDS = 15.0
CREATED_SECONDS = 0.1  # before a topic that was just created is looked for again
SLICE_SECONDS = 0.5
WATCH_SECONDS = 30.0  # between two looks at the id of a topic
PARTITIONS = 4  # of a topic that a worker creates
# The client waits longer after each try to connect, by default for up to 10 s: as long as messages would wait after the
# brokers are back.
RECONNECT_MS_MAX = 2_000
# How long a producer takes a missing topic for one that was just created and is not known to every broker.
NEW_TOPIC_MS = 4_000
PORT_MAX = 65_535
_PROTOCOLS = ("", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MESSAGE_BYTES_MAX = 16 * 1_048_576  # that a producer sends: the brokers have a limit of their own

# Older brokers cannot describe topics.
_NO_IDS = (KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION, KafkaError._NOT_IMPLEMENTED)
_NO_ID = str(Uuid(0, 0))  # what brokers answer that can, and give topics no ids
# What a worker must decide itself. A user who sets one of these would lose messages.
_OURS = frozenset(
    {"enable.auto.commit", "enable.auto.offset.store", "group.id", "bootstrap.servers", "transactional.id"}
)


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
        return {
            "bootstrap.servers": self.addresses,
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            **self._settings,
        }

    def consumer_settings(self, group: str) -> dict[str, Any]:
        # In the new protocol of groups the brokers assign the partitions.
        is_new = self._settings.get("group.protocol") == "consumer"
        return {
            **({} if is_new else {"partition.assignment.strategy": "cooperative-sticky"}),
            "auto.offset.reset": "earliest",
            **self.client_settings(),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }

    def producer_settings(self) -> dict[str, Any]:
        return {
            "linger.ms": 5,
            "topic.metadata.propagation.max.ms": NEW_TOPIC_MS,
            "message.max.bytes": MESSAGE_BYTES_MAX,
            **self.client_settings(),
            "enable.idempotence": True,
            "acks": "all",
        }

    def topic(
        self,
        name: str,
        *,
        create: bool = False,
        is_unwanted: Callable[[], bool] = lambda: False,
        if_missing: str = CREATE_TOPIC,
    ) -> Topic:
        """Find a topic, or create it; `StreamError` if the brokers do not answer or the topic is missing.

        Once the answer `is_unwanted`, it ends within a second, with the same error. `if_missing` says what to do about
        a topic that is missing.
        """
        try:
            errors: list[Any] = []
            settings = self.client_settings()
            settings["error_cb"] = errors.append
            log = ClientLog(has_met=False)
            admin = AdminClient(settings, logger=log)
        except KafkaException as error:
            raise ConfigurationError(
                f"a setting of the Kafka client is wrong: {error.args[0].str()}"
            ) from error
        known = self._asked(admin, name, errors, log, is_unwanted)
        found = known.topics[name]
        if found.error is not None:
            if found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART or not create:
                raise explained(KafkaException(found.error), name, if_missing=if_missing)
            self._create(admin, name)
            return self._known_to_all(name, is_unwanted)
        return Topic(known.cluster_id or "", self._id_of(admin, name), len(found.partitions))

    def _known_to_all(self, name: str, is_unwanted: Callable[[], bool]) -> Topic:
        """Find a topic that was just created: a moment later, every broker knows of it."""
        give_up_at = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self.topic(name, is_unwanted=is_unwanted)
            except StreamError:
                if time.monotonic() >= give_up_at or is_unwanted():
                    raise
            time.sleep(CREATED_SECONDS)

    def _asked(
        self, admin: Any, name: str, errors: list[Any], log: ClientLog, is_unwanted: Callable[[], bool]
    ) -> Any:
        """Ask for a topic until the brokers answer, in short slices, so that a worker can be stopped meanwhile."""
        give_up_at = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return admin.list_topics(topic=name, timeout=min(SLICE_SECONDS, ANSWER_SECONDS))
            except KafkaException as error:
                admin.poll(0)  # the client says only now why it could not connect
                if refused := [each for each in errors if each.code() == KafkaError._AUTHENTICATION]:
                    told = explained(KafkaException(refused[0]), name)
                    raise told from told.__cause__  # which does not pass, as `error` may
                if time.monotonic() < give_up_at and not is_unwanted() and passes(error.args[0]):
                    continue
                raise StreamError(
                    f"no broker answers at {self.addresses}: {error.args[0].str()}{log.because()}; "
                    "check the address and whether it runs"
                ) from error

    def find_all(self, names: Sequence[str], *, create: bool, instead: str) -> None:
        """Find all of these topics, or create them; `instead` says what to do about one that is missing."""
        admin = AdminClient(self.client_settings(), logger=MET)
        missing = self._missing(admin, names)
        if missing and not create:
            raise StreamError(f"topic {missing[0]!r} is missing; {instead}")
        if missing:
            self._create(admin, *missing)
            self._wait_for(admin, missing)

    def _wait_for(self, admin: Any, names: Sequence[str]) -> None:
        """Wait until the brokers know topics that were just created."""
        give_up_at = time.monotonic() + ANSWER_SECONDS
        while missing := self._missing(admin, names):
            if time.monotonic() > give_up_at:
                raise StreamError(f"topic {missing[0]!r} was created, and the brokers do not know it")
            time.sleep(AGAIN_SECONDS)

    def _missing(self, admin: Any, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        try:
            topics = admin.list_topics(timeout=ANSWER_SECONDS).topics
        except KafkaException as error:
            raise StreamError(
                f"no broker answers at {self.addresses}: {error.args[0].str()}; check the address and whether it runs"
            ) from error
        return [name for name in names if name not in topics or topics[name].error is not None]

    def _create(self, admin: Any, *names: str) -> None:
        for name, creation in admin.create_topics([NewTopic(name, PARTITIONS) for name in names]).items():
            try:
                creation.result(ANSWER_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise explained(error, name) from error
            log_line(logger, logging.INFO, "created the topic {topic}", {"topic": name})

    def _id_of(self, admin: Any, name: str) -> str:
        try:
            return _id_in(_described(admin, name), name)
        except KafkaException as error:
            raise explained(error, name) from error


class TopicWatch:
    """Asks for the id of a topic, by one connection. A topic that was deleted and made anew has another id."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._client: Any = None
        self._asked: Any = None
        self._next_at = 0.0

    def find(self) -> str:
        """Ask, and wait for the answer; KafkaException if there is none."""
        return _id_in(_described(self._admin, self._topic), self._topic)

    def look(self) -> str | None:
        """Return an id if an answer has come; never wait. It asks every `WATCH_SECONDS`."""
        now = time.monotonic()
        if self._asked is None:
            if now >= self._next_at:
                self._next_at = now + WATCH_SECONDS
                self._asked = _described(self._admin, self._topic)
            return None
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        try:
            return _id_in(asked, self._topic)
        except KafkaException:  # it is asked again
            return None

    @property
    def _admin(self) -> Any:
        if self._client is None:
            self._client = AdminClient(self._brokers.client_settings(), logger=MET)
        return self._client


def _described(admin: Any, topic: str) -> Any:
    """Ask for the description of a topic; return the future of the answer."""
    [asked] = admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_SECONDS).values()
    return asked


def _id_in(asked: Any, topic: str) -> str:
    """Read a topic's id from the answer: its name, where the brokers give topics no ids."""
    try:
        return str(asked.result(2 * ANSWER_SECONDS).topic_id)
    except KafkaException as error:
        if error.args[0].code() in _NO_IDS:
            return topic
        raise


def is_another(known: str, seen: str, topic: str) -> bool:
    """Whether two ids that were found under the name of a topic are of two topics.

    A topic that had none gets one when its brokers are upgraded, and is the same.
    """
    return known != seen and not {known, seen} & {topic, _NO_ID}


def _checked(brokers: object) -> str:
    if isinstance(brokers, str) and brokers.strip():
        return _usable(brokers.strip())
    if isinstance(brokers, list | tuple) and brokers and all(isinstance(each, str) for each in brokers):
        return _usable(",".join(brokers))
    raise ConfigurationError(f'brokers are addresses such as "localhost:9092", not {shorten(brokers)}')


def _usable(addresses: str) -> str:
    """Refuse what the client does not: it would pass over another protocol, and cut a port that is too large."""
    for each in addresses.split(","):
        protocol, _, rest = each.strip().rpartition("://")
        port = rest.rpartition(":")[2]
        if protocol.upper() not in _PROTOCOLS or (port.isdecimal() and int(port) > PORT_MAX):
            raise ConfigurationError(f'brokers are addresses such as "localhost:9092", not {shorten(each)}')
    return addresses
