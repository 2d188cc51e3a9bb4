"""Replaying a dead-letter topic: its messages go back to the topics that they came from, with a brake.

They are sent in slices of 1, 10, 100 and then 1,000, like dead jobs of a store. A slice and how far the topic was read
are one transaction, so a replay that is interrupted goes on where it was and sends nothing twice.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from msgspec import Struct, field

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError, StreamError
from taskharbor.records import Delivery
from taskharbor.rules.replaying import BRAKE, PENDING, SUCCEEDED, Tally, size_of
from taskharbor.streams.brokers import ANSWER_SECONDS, Brokers
from taskharbor.streams.client_errors import explained, passes
from taskharbor.streams.client_log import MET
from taskharbor.streams.dead_letters import (
    DELIVERY_HEADER,
    ERROR_TYPE,
    FINGERPRINT_HEADER,
    ORIGINAL_GROUP,
    ORIGINAL_TOPIC,
    REASON_HEADER,
)
from taskharbor.streams.messages import CORRELATION_HEADER, REPLAY_HEADER, TASK_HEADER
from taskharbor.streams.offsets import decode
from taskharbor.streams.topic_names import checked_topic, is_topic_name
from taskharbor.streams.topics.records import FORM_HEADER, FORM_PAYLOAD

POLL_SECONDS = 0.2
QUIET_SECONDS = 10.0  # that a slice is watched after its messages were executed: some may be retried first
IF_MISSING = (
    "check its name: dead messages of TOPIC are in TOPIC-dlq, unless its workers were given another topic"
)
IF_NOT_BACK = "dead messages go back to it, so create it again"
_OURS = ("kafka_dlt-", "taskharbor-")  # headers that a dead letter has and its message has not

Headers = dict[str, bytes]


class TopicReplayed(Struct):
    """What a replay of a dead-letter topic did."""

    total: int = 0  # messages that it read, up to the end that the topic had when it began
    sent: int = 0  # back to their topics
    failed_same: int = 0  # that came back dead, for the same cause
    failed_other: dict[str, int] = field(default_factory=dict)  # how many for each other cause
    skipped: int = 0  # of at_most_once tasks, or without a topic to go back to
    left: int = 0  # of other causes than the one that was asked for
    slices: int = 0
    stopped: bool = False  # by the brake


class _Letter(Struct):
    message: Any
    headers: Headers
    cause: str
    topic: str  # that it goes back to
    place: tuple[str, int, int] | None = None  # where it was put


class TopicReplay:
    """Replays a dead-letter topic, ours or one with Spring's headers.

    `fingerprint` takes only the messages of one cause: the fingerprint, else the reason, else the type of the error.
    `brake` is the share of a slice that may come back dead for the same cause; more stops the replay. `tell` is called
    with a line about the progress.
    """

    def __init__(
        self,
        brokers: str | list[str],
        topic: str,
        *,
        fingerprint: str | None = None,
        brake: float = BRAKE,
        quiet_seconds: float = QUIET_SECONDS,
        settings: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        if isinstance(brake, bool) or not isinstance(brake, int | float) or not 0 <= brake <= 1:
            raise ConfigurationError(f"brake is a share from 0 to 1, such as 0.2, not {shorten(brake)}")
        self._brokers = Brokers(brokers, settings)
        self.topic = checked_topic(topic)
        self._fingerprint = fingerprint
        self._brake = float(brake)
        self._quiet_seconds = quiet_seconds
        self._tell = tell
        name = f"taskharbor-replay-{topic}"
        self.group = (
            name if fingerprint is None else f"{name}-{fingerprint}"
        )  # it records how far the replay got

    # -- what a caller asks --

    def count(self) -> dict[str, int]:
        """Count the messages that a replay would send, by cause. Nothing is sent or recorded."""
        with _Reader(self._brokers, self.topic, self.group) as reader:
            found = [self._letter(message) for message in reader.messages()]
        return dict(Counter(each.cause for each in found if isinstance(each, _Letter)).most_common())

    def run(self) -> TopicReplayed:
        """Send the messages back that were dead when this began, slice by slice, until the end or until the brake."""
        done = TopicReplayed()
        with (
            _Reader(self._brokers, self.topic, self.group) as reader,
            _Reader(self._brokers, self.topic, self.group, from_end=True) as returned,
        ):
            producer = self._producer()
            messages = reader.messages()
            mark = os.urandom(8).hex()
            while not done.stopped:
                letters = self._slice(messages, size_of(done.slices), done)
                self._send(producer, reader, letters, mark, done.sent)
                if not letters:
                    return done
                done.sent, done.slices = done.sent + len(letters), done.slices + 1
                tally = self._judge(letters, returned, mark, done.sent - len(letters))
                self._count(done, tally, len(letters))
        return done

    # -- slices --

    def _slice(self, messages: Iterator[Any], size: int, done: TopicReplayed) -> list[_Letter]:
        """Read on until this many messages are to be sent, or the end."""
        letters: list[_Letter] = []
        while len(letters) < size and (message := next(messages, None)) is not None:
            done.total += 1
            letter = self._letter(message)
            if isinstance(letter, _Letter):
                letters.append(letter)
            elif letter == "left":
                done.left += 1
            else:
                done.skipped += 1
        return letters

    def _letter(self, message: Any) -> _Letter | str:
        headers = _headers_of(message)
        cause = cause_of(headers)
        if self._fingerprint is not None and cause != self._fingerprint:
            return "left"
        topic = headers.get(ORIGINAL_TOPIC, b"").decode(errors="replace")
        is_once = headers.get(DELIVERY_HEADER) == str(Delivery.AT_MOST_ONCE).encode()
        if is_once or not is_topic_name(topic):
            return "skipped"
        return _Letter(message, headers, cause, topic)

    def _producer(self) -> Any:
        # A second replay of the same messages ends the first one: their transactions have one name.
        settings = {**self._brokers.producer_settings(), "transactional.id": self.group}
        producer = Producer(settings, logger=MET)
        self._ask(lambda: producer.init_transactions(ANSWER_SECONDS))
        return producer

    def _send(
        self, producer: Any, reader: _Reader, letters: Sequence[_Letter], mark: str, first: int
    ) -> None:
        """Put messages back, and note how far the topic was read, in one transaction."""
        positions = reader.positions()
        if not letters and not positions:
            return

        undelivered: list[tuple[Any, str]] = []  # an error of the client, and the topic

        def placed(letter: _Letter) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                if error is None:
                    letter.place = message.topic(), message.partition(), message.offset()
                else:
                    undelivered.append((error, letter.topic))

            return delivered

        def transaction() -> None:
            producer.begin_transaction()
            for index, letter in enumerate(letters, first):
                headers = [*_own_headers(letter), (REPLAY_HEADER, f"{mark}:{index}".encode())]
                message = letter.message
                while True:
                    try:
                        producer.produce(
                            letter.topic,
                            message.value(),
                            message.key(),
                            headers=headers,
                            on_delivery=placed(letter),
                        )
                        break
                    except BufferError:
                        producer.poll(POLL_SECONDS)
                    except KafkaException as error:
                        undelivered.append((error.args[0], letter.topic))
                        raise
            self._ask(
                lambda: producer.send_offsets_to_transaction(positions, reader.member(), ANSWER_SECONDS)
            )
            self._ask(lambda: producer.commit_transaction(ANSWER_SECONDS))

        try:
            transaction()
        except KafkaException as error:
            # (Before the abort, after which all that was not sent is undelivered as well.)
            cause, topic = undelivered[0] if undelivered else (error.args[0], self.topic)
            if error.args[0].txn_requires_abort():
                self._ask(lambda: producer.abort_transaction(ANSWER_SECONDS))
            if error.args[0].code() == KafkaError._FENCED:
                raise StreamError(f"another replay of {self.topic} has begun, and this one ends") from error
            raise explained(KafkaException(cause), topic, if_missing=IF_NOT_BACK) from error

    def _ask(self, ask: Callable[[], None]) -> None:
        """Ask again while the brokers do not answer, for a while."""
        give_up_at = time.monotonic() + 4 * ANSWER_SECONDS
        while True:
            try:
                return ask()
            except KafkaException as error:
                cause = error.args[0]
                is_final = cause.fatal() or cause.txn_requires_abort() or time.monotonic() > give_up_at
                if is_final or not (cause.retriable() or passes(cause)):
                    raise

    # -- how a slice fared --

    def _judge(self, letters: Sequence[_Letter], returned: _Reader, mark: str, first: int) -> Tally:
        """Watch the dead-letter topic until it is decided how the slice fared.

        A message that does not come back within a while after its group has finished with it counts as succeeded.
        """
        causes: dict[int, str] = {}
        quiet_since: float | None = None
        while True:
            before = len(causes)
            for message in returned.new_messages():
                headers = _headers_of(message)
                sent_by, _, index = headers.get(REPLAY_HEADER, b"").decode(errors="replace").partition(":")
                if sent_by == mark:
                    causes[int(index) - first] = cause_of(headers)
            is_quiet = quiet_since is not None and time.monotonic() - quiet_since >= self._quiet_seconds
            tally = Tally()
            for number, letter in enumerate(letters):
                tally.add(causes.get(number, SUCCEEDED if is_quiet else PENDING), letter.cause)
            if tally.is_decided(len(letters), self._brake):
                return tally
            if len(causes) != before or not self._are_finished(letters, causes):
                quiet_since = None
            elif quiet_since is None:
                quiet_since = time.monotonic()

    def _are_finished(self, letters: Sequence[_Letter], causes: Mapping[int, str]) -> bool:
        """Whether the groups that the messages died in have finished with all that are not dead again."""
        waiting: dict[str, list[tuple[str, int, int]]] = {}
        for number, letter in enumerate(letters):
            group = letter.headers.get(ORIGINAL_GROUP, b"").decode(errors="replace")
            if number not in causes and group and letter.place is not None:
                waiting.setdefault(group, []).append(letter.place)
        return all(self._is_finished(group, places) for group, places in waiting.items())

    def _is_finished(self, group: str, places: Sequence[tuple[str, int, int]]) -> bool:
        client: Any = Consumer(
            {**self._brokers.consumer_settings(group), "enable.auto.commit": False}, logger=MET
        )
        try:
            asked = {(topic, number) for topic, number, _ in places}
            known = client.committed(
                [TopicPartition(*each) for each in sorted(asked)], timeout=ANSWER_SECONDS
            )
        except KafkaException as error:
            if passes(error.args[0]):
                return False
            raise explained(error, self.topic) from error
        finally:
            client.close()
        committed = {(each.topic, each.partition): each for each in known}
        for topic, number, offset in places:
            found = committed[topic, number]
            if offset >= found.offset and offset not in decode(max(found.offset, 0), found.metadata):
                return False
        return True

    def _count(self, done: TopicReplayed, tally: Tally, size: int) -> None:
        done.failed_same += tally.same
        for cause, count in tally.others.items():
            done.failed_other[cause] = done.failed_other.get(cause, 0) + count
        done.stopped = tally.must_stop(size, self._brake)
        line = f"{done.sent:,} sent back: {done.failed_same:,} are dead again for the same cause"
        if others := sum(done.failed_other.values()):
            line += f", {others:,} for another"
        if done.stopped:
            line += f"; stopped: {tally.same:,} of the last {size:,} are more than {self._brake:.0%}"
        self._tell(line)


def cause_of(headers: Mapping[str, bytes]) -> str:
    """What a message died of: its fingerprint, else the reason, else the type of its error."""
    for name in (FINGERPRINT_HEADER, REASON_HEADER, ERROR_TYPE):
        if headers.get(name):
            return headers[name].decode(errors="replace")
    return "unknown"


def _headers_of(message: Any) -> Headers:
    return {name: value for name, value in message.headers() or () if value is not None}


def _own_headers(letter: _Letter) -> list[tuple[str, bytes | None]]:
    """The headers that the message had before it died."""
    kept = (
        {TASK_HEADER, CORRELATION_HEADER}
        if letter.headers.get(FORM_HEADER) == FORM_PAYLOAD.encode()
        else set()
    )
    return [
        (name, value)
        for name, value in letter.message.headers() or ()
        if name in kept or not name.startswith(_OURS)
    ]


class _Reader:
    """Reads a topic, as no member of any group: it takes all partitions by itself."""

    def __init__(self, brokers: Brokers, topic: str, group: str, *, from_end: bool = False) -> None:
        settings = {**brokers.consumer_settings(group), "isolation.level": "read_committed"}
        self._topic = topic
        self._group = group
        self._next: dict[int, int] = {}  # the offset after the last message that was read
        numbers = range(brokers.topic(topic, if_missing=IF_MISSING).partitions)
        self._consumer: Any = Consumer({**settings, "enable.partition.eof": True}, logger=MET)
        try:
            self._partitions = [TopicPartition(topic, number) for number in numbers]
            self._ends = {
                each.partition: self._consumer.get_watermark_offsets(each, timeout=ANSWER_SECONDS)[1]
                for each in self._partitions
            }
            self._open = {number for number, end in self._ends.items() if end > 0}
            self._consumer.assign([self._begin(each, from_end) for each in self._partitions])
        except KafkaException as error:
            self._consumer.close()
            raise explained(error, topic, if_missing=IF_MISSING) from error
        except BaseException:
            self._consumer.close()
            raise

    def _begin(self, partition: Any, from_end: bool) -> Any:
        if from_end:
            return TopicPartition(self._topic, partition.partition, self._ends[partition.partition])
        [known] = self._consumer.committed([partition], timeout=ANSWER_SECONDS)
        begin = known.offset if known.offset >= 0 else OFFSET_BEGINNING
        return TopicPartition(self._topic, partition.partition, begin)

    def messages(self) -> Iterator[Any]:
        """The messages up to the end that the topic had, each when it is asked for."""
        while self._open:
            message = self._consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            number = message.partition()
            if not self._is_message(message):
                if message.error().code() == KafkaError._PARTITION_EOF:
                    self._open.discard(number)
                continue
            if message.offset() + 1 >= self._ends[number]:
                self._open.discard(number)
            if message.offset() < self._ends[number]:
                self._next[number] = message.offset() + 1
                yield message

    def new_messages(self) -> Iterator[Any]:
        """What has come since this was asked before, as far as it is there within a moment."""
        while (message := self._consumer.poll(POLL_SECONDS)) is not None:
            if self._is_message(message):
                yield message

    def _is_message(self, message: Any) -> bool:
        error = message.error()
        if error is not None and (error.fatal() or not passes(error)):
            raise explained(KafkaException(error), self._topic, if_missing=IF_MISSING)
        return error is None

    def positions(self) -> list[Any]:
        """How far the topic was read, for a commit."""
        return [TopicPartition(self._topic, number, offset) for number, offset in self._next.items()]

    def member(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
