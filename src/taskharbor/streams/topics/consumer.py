"""A consumer of a topic, or of its retry topics, in a thread of its own. It commits nothing: transactions do.

It holds a partition of a retry topic by pausing it, for as long as the record at its head has to wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from taskharbor.drivers.contract.reading import StreamPartition
from taskharbor.streams.asking import until_answered
from taskharbor.streams.brokers import is_another
from taskharbor.streams.client_errors import explained, passes, passes_for_member
from taskharbor.streams.client_log import MET
from taskharbor.streams.complaints import Complaint
from taskharbor.streams.consumer import (
    AT_ONCE,
    CONNECT_SECONDS,
    PAUSE_AFTER_SECONDS,
    POLL_SECONDS,
    READ_AGAIN,
    ROOM_SECONDS,
    SEEK_LATER,
    Watch,
    assign,
)
from taskharbor.streams.ends import Ends
from taskharbor.streams.topics.moves import Partition
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

T = TypeVar("T")

GROUP_SECONDS = 0.05  # how long the member's generation is believed; the brokers refuse an old one
BEGUN_ANEW = (
    "{topic}[{partition}] was made anew, or cut before the offset to which this worker had come; "
    "it is read from its begin"
)
FLUSH_SECONDS = 5.0  # for what is finished when a partition goes away


class TopicAssigned(Struct, frozen=True):
    """A partition that this consumer has been given, and what the group has committed of it."""

    partition: Partition
    committed: int | None  # None: the group has committed nothing yet
    metadata: str | None


class TopicsListener(Protocol):
    """What the consumer's thread tells. Every call comes from that thread."""

    def assigned(self, partitions: Sequence[TopicAssigned]) -> None:
        """Get ready for these, before their first message."""

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """End what is under way of these; a transaction follows."""

    def forget(self, partitions: Sequence[Partition]) -> None:
        """Forget these: another consumer has them, or may have them."""

    def arrived(self, messages: Sequence[Any]) -> None: ...

    def room(self) -> int:
        """How many more messages may come."""
        ...

    def to_rewind(self, assigned: Collection[Partition]) -> Sequence[tuple[Partition, int]]:
        """Which of these partitions are to be read again, and from which offset on."""
        ...

    def rewind(self, partition: Partition, offset: int) -> None:
        """Ask for this again: the client could not do it."""

    def to_hold(self) -> frozenset[Partition]:
        """The partitions of which no more is wanted for now."""
        ...

    def in_doubt(self) -> Sequence[tuple[Partition, int]]:
        """The partitions of which an older message came, and where they had been. Nothing of them is taken."""
        ...

    def trust(self, partition: Partition) -> None:
        """Take messages of this partition again, from where it had been."""

    def failed(self, error: Exception) -> None:
        """The thread has ended because of this."""


class TopicsConsumer:
    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        listener: TopicsListener,
        watch: Watch | None = None,
        topic_id: str = "",
    ) -> None:
        self._config = dict(config)
        self._watch = watch  # on the id of its one topic: one that was deleted and made anew has another
        self._topic_id = topic_id
        self.topics: Sequence[str] = list(topics)
        self._listener = listener
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"taskharbor-stream-{topics[0]}", daemon=True)
        self._assigned: set[Partition] = set()
        self._paused: set[Partition] = set()
        self._came: set[Partition] = set()  # since the last message was polled
        self._to_begin_anew: set[Partition] = set()  # as soon as the client can
        self._has_joined = False  # partitions came to it at least once
        self._unread = Complaint(
            "{topic} cannot be read: {error}", "{topic} is read again, after {seconds} s"
        )
        self._ends = Ends()
        self._full_since: float | None = None
        self._consumer: Any = None
        self._group: Any = None
        self._group_known_at = 0.0
        self.flush: Callable[[float], bool] = lambda seconds: True  # makes a transaction, and waits for it

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Commit what is finished, leave the group and end the thread."""
        self._stopping.set()

    def has_stopped(self, seconds: float) -> bool:
        """Wait until the thread has ended; False if it takes longer."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def seen(self, topic: str, of: Sequence[StreamPartition]) -> list[StreamPartition]:
        """Add what only the consumer knows: where the log ends, and whether it reads on."""
        return self._ends.seen(topic, of, {number for name, number in list(self._paused) if name == topic})

    # -- what transactions ask, in their own thread --

    def group(self) -> Any:
        """The member's id and generation, for the brokers to check; None while it is no member of the group."""
        return self._group

    def committed(self, partitions: list[Any]) -> list[Any]:
        """Ask what the group has committed, by another client: this one belongs to its thread."""
        client = Consumer(self._config, logger=MET)
        try:
            answer: list[Any] = client.committed(partitions, timeout=CONNECT_SECONDS)
            return answer
        finally:
            client.close()

    # -- the thread --

    def _run(self) -> None:
        try:
            self._consumer = Consumer(self._config, logger=MET)
            self._consumer.subscribe(
                list(self.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._stopping.is_set():
                self._round()
            self._give_up(sorted(self._assigned))
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker has to learn of it
            self._listener.failed(explained(error, self.topics[0]))
        finally:
            if self._consumer is not None:
                self._consumer.close()

    def _learn_group(self) -> None:
        """Note under which generation offsets are committed.

        Only this thread does it, in which partitions also come and go: offsets of a lost partition never go with the
        generation after. A consumer that has lost its membership has no generation, and the brokers would accept
        anything under it.
        """
        self._group_known_at = time.monotonic()
        member = self._consumer.memberid()
        metadata = self._consumer.consumer_group_metadata()
        self._group = metadata if member and self._consumer.memberid() == member else None

    def _round(self) -> None:
        if time.monotonic() - self._group_known_at >= GROUP_SECONDS:
            self._learn_group()
        room = min(AT_ONCE, self._listener.room())
        if room > 0:
            self._full_since = None
            rewind = self._listener.to_rewind(self._assigned)
            self._pause_only(self._listener.to_hold())
            for partition, offset in rewind:
                self._seek(partition, offset)
            messages = self._poll(room)
        else:
            messages = self._wait_for_room()
        if messages:
            self._unread.succeeded({"topic": self.topics[0]})
            self._listener.arrived(messages)
        self._read_elsewhere()
        self._ends.look(self._consumer, self._assigned)

    def _poll(self, room: int) -> list[Any]:
        """Wait for the first message, and take what else is there."""
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return []
        self._came.clear()
        messages = [first, *(self._consumer.consume(room - 1, 0) if room > 1 else ())]
        if (first.topic(), first.partition()) in self._came and first.error() is None:
            # Its partition went away and came back during the second call: it is of the time before. Taken now, it
            # would hide those between the commit and itself.
            del messages[0]
        return [message for message in messages if self._is_message(message)]

    def _wait_for_room(self) -> list[Any]:
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < PAUSE_AFTER_SECONDS:
            time.sleep(ROOM_SECONDS)
            return []
        # The client wants to be polled even now, or it counts as gone: with all partitions paused, nothing comes.
        self._pause_only(frozenset(self._assigned))
        return [each for each in self._consumer.consume(1, ROOM_SECONDS * 10) if self._is_message(each)]

    def _is_message(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if not self._passes(error):
            raise KafkaException(error)
        if error.code() != KafkaError._PARTITION_EOF:
            self._unread.failed(error.str(), {"topic": self.topics[0]})
        return False

    def _passes(self, error: Any) -> bool:
        if error.fatal():
            return False
        return passes_for_member(error) if self._has_joined else passes(error)

    def _pause_only(self, wanted: frozenset[Partition]) -> None:
        """Pause these partitions, and read on in all others."""
        wanted &= self._assigned
        if new := wanted - self._paused:
            self._consumer.pause([TopicPartition(*each) for each in new])
        if done := self._paused - wanted:
            self._consumer.resume([TopicPartition(*each) for each in done])
        self._paused = set(wanted)

    def _read_elsewhere(self) -> None:
        """Read on where the log wants it, if that is not where the client reads."""
        for partition, position in self._listener.in_doubt():
            if partition in self._assigned:
                self._look_into(partition, position)
        if self._watch is not None and self._assigned:
            seen = self._watch.look()
            if seen is not None and self._is_of_another(seen):
                self._answer(self._learns_of_another_topic, "the id of {topic}")
        for partition in sorted(self._to_begin_anew):
            self._begin_anew(partition)

    def _seek(self, partition: Partition, offset: int) -> None:
        try:
            self._consumer.seek(TopicPartition(*partition, offset))
        except KafkaException as error:  # the client does not fetch from it yet
            self._listener.rewind(partition, offset)
            log_line(
                logger,
                logging.WARNING,
                "{topic} cannot be read from offset {offset} on; it is tried again: {error}",
                {"topic": f"{partition[0]}[{partition[1]}]", "offset": offset, "error": error.args[0].str()},
            )

    def _look_into(self, partition: Partition, position: int) -> None:
        """Find out why an older message came, and go on where this worker had been, unless the log is another one.

        After rebalances in quick succession the client may read from an older place than the given one.
        """
        place = TopicPartition(*partition, position)
        try:
            end = self._consumer.get_watermark_offsets(place, timeout=CONNECT_SECONDS)[1]
            # Of brokers that cannot be asked for ids, it is the name of the topic, which may have been made anew.
            is_anew = self._learns_of_another_topic() or self._topic_id == partition[0] or end < position
            if not is_anew:
                self._consumer.seek(place)
        except KafkaException as error:
            if error.args[0].code() not in SEEK_LATER:
                if not self._passes(error.args[0]):
                    raise
                self._unread.failed(error.args[0].str(), {"topic": partition[0]})
            return  # it is looked into again
        if is_anew:
            self._to_begin_anew.add(partition)
            return
        self._listener.trust(partition)
        told = {"topic": partition[0], "partition": partition[1], "offset": position}
        log_line(logger, logging.WARNING, READ_AGAIN, told)

    def _is_of_another(self, topic_id: str) -> bool:
        return is_another(self._topic_id, topic_id, self.topics[0])

    def _learns_of_another_topic(self) -> bool:
        """Ask for the id of the topic; whether it was deleted and made anew since this was asked before."""
        topic_id = self._topic_id if self._watch is None else self._watch.find()
        if not self._is_of_another(topic_id):
            return False
        self._topic_id = topic_id
        self._to_begin_anew |= self._assigned  # all of them are of another log now
        return True

    def _begin_anew(self, partition: Partition) -> None:
        """Read a partition from its begin, as soon as the client can. Nothing of it is taken before."""
        self._listener.forget([partition])
        try:
            self._consumer.seek(TopicPartition(*partition, OFFSET_BEGINNING))
        except KafkaException as error:
            if error.args[0].code() not in SEEK_LATER:
                raise
            return
        self._to_begin_anew.discard(partition)
        self._listener.assigned([TopicAssigned(partition, None, None)])
        told = {"topic": partition[0], "partition": partition[1]}
        log_line(logger, logging.WARNING, BEGUN_ANEW, told)

    # -- rebalances --

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        known = self._read_committed(consumer, partitions)
        if (
            known
            and self._watch is not None
            and self._answer(self._learns_of_another_topic, "the id of {topic}")
        ):
            # What the group has committed may be of the topic that was: a commit may come after its end.
            known = [TopicPartition(each.topic, each.partition, OFFSET_BEGINNING) for each in known]
        given = [
            TopicAssigned(
                (each.topic, each.partition), each.offset if each.offset >= 0 else None, each.metadata
            )
            for each in known
        ]
        self._listener.assigned(given)
        if known or not partitions:
            assign(consumer, self._config, known)
        came = {each.partition for each in given}
        self._assigned |= came
        self._came |= came
        self._has_joined = True
        self._tell("partitions came to this worker: {partitions}", [each.partition for each in given])

    def _read_committed(self, consumer: Any, partitions: list[Any]) -> list[Any]:
        """Ask what the group has committed, until the brokers answer; nothing if the worker stops meanwhile.

        They do not while a transaction with offsets of these partitions is open.
        """

        def ask() -> list[Any]:
            known: list[Any] = consumer.committed(partitions, timeout=CONNECT_SECONDS)
            if error := next((each.error for each in known if each.error is not None), None):
                raise KafkaException(error)
            return known

        return (self._answer(ask, "the committed offsets of {topic}") or []) if partitions else []

    def _answer(self, ask: Callable[[], T], what: str) -> T | None:
        """Ask until the brokers answer; None if the worker stops meanwhile."""
        return until_answered(ask, what, self.topics[0], passes=self._passes, stopping=self._stopping)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._give_up([(each.topic, each.partition) for each in partitions])

    def _give_up(self, partitions: Sequence[Partition]) -> None:
        """Let what is under way end, commit it, and forget these partitions."""
        gone = [each for each in partitions if each in self._assigned]
        if not gone:
            return
        self._learn_group()
        self._listener.revoked(gone)
        self._learn_group()
        if not self.flush(FLUSH_SECONDS):
            log_line(
                logger,
                logging.WARNING,
                "offsets of {topic} could not be committed; what they cover comes again",
                {"topic": self.topics[0]},
            )
        self._forget(gone)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        gone = [(each.topic, each.partition) for each in partitions]
        self._group = None
        self._forget(gone)
        self._tell(
            "partitions of {topic} went to another worker without this one: {partitions}. It was away for too long",
            gone,
            logging.WARNING,
        )

    def _forget(self, gone: Sequence[Partition]) -> None:
        self._listener.forget(gone)
        # The client keeps a pause beyond the assignment: the partition would stay paused when it comes back.
        if paused := self._paused.intersection(gone):
            self._consumer.resume([TopicPartition(*each) for each in paused])
        for each in (self._assigned, self._paused, self._to_begin_anew):
            each.difference_update(gone)

    def _tell(self, what: str, partitions: Sequence[Partition], level: int = logging.INFO) -> None:
        shown = [f"{topic}[{number}]" for topic, number in sorted(partitions)]
        log_line(logger, level, what, {"topic": self.topics[0], "partitions": shown})
