"""A consumer in a thread of its own. The thread polls, commits and hands messages over; it never waits for a handler.

The client library calls back during a poll: when partitions are assigned or revoked, and when a commit is answered. So
whatever happens to the consumer happens in this one thread, and the loop of the worker asks it by messages.
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
from taskharbor.streams.ends import Ends
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

T = TypeVar("T")

AT_ONCE = 500  # messages of one call: more bring nothing
POLL_SECONDS = 0.1
ROOM_SECONDS = 0.002  # how often it looks for room while there is none
PAUSE_AFTER_SECONDS = (
    1.0  # without room for this long, the partitions are paused: pausing at once costs far more
)
CONNECT_SECONDS = 10.0

# Errors of a seek in a partition of which the client does not fetch just now.
SEEK_LATER = frozenset(
    {
        KafkaError._STATE,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._TIMED_OUT,
    }
)
READ_AGAIN = (
    "messages of {topic}[{partition}] from before {offset} came, which this worker had behind it; "
    "it reads on from {offset}"
)


class Assigned(Struct, frozen=True):
    """A partition that this consumer has been given, and what the group has committed of it."""

    partition: int
    committed: int | None  # None: the group has committed nothing yet
    metadata: str | None


class Commit(Struct, frozen=True):
    partition: int
    offset: int
    metadata: str


class Jump(Struct, frozen=True):
    """A place where the offsets of a partition do not follow each other."""

    partition: int
    expected: int
    found: int


class Listener(Protocol):
    """What the consumer's thread tells. Every call comes from that thread."""

    def assigned(self, topic_id: str, partitions: Sequence[Assigned]) -> None:
        """Get ready for these, before their first message."""

    def revoked(self, partitions: Sequence[int]) -> Sequence[Commit]:
        """End what is under way of these; return what is to be committed before they go to another consumer."""

    def lost(self, partitions: Sequence[int]) -> None:
        """Forget these: another consumer may have them already."""

    def arrived(self, messages: Sequence[Any]) -> None: ...

    def committed(self, commits: Sequence[Commit]) -> None: ...

    def room(self) -> int:
        """How many more messages may come."""
        ...

    def full(self) -> Collection[int]:
        """Partitions of which no more messages may come for now."""
        ...

    def disowned(self) -> Collection[int]:
        """Partitions to be taken again from their commits, since the last call: the store had forgotten this owner."""
        ...

    def to_commit(self) -> Sequence[Commit]: ...

    def jumps(self) -> Sequence[Jump]:
        """Where offsets were left out, since the last call."""
        ...

    def in_doubt(self) -> Sequence[tuple[int, int]]:
        """The partitions of which an older message came, and where they had been. Nothing of them is taken."""
        ...

    def trust(self, partition: int) -> None:
        """Take messages of this partition again, from where it had been."""

    def failed(self, error: Exception) -> None:
        """The thread has ended because of this."""


class Watch(Protocol):
    """What knows the id of the topic: one that was deleted and made anew has another."""

    def find(self) -> str:
        """Ask, and wait for the answer; KafkaException if there is none."""
        ...

    def look(self) -> str | None:
        """Return the id if an answer has come; never wait."""


class PolledConsumer:
    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        group: str,
        listener: Listener,
        watch: Watch,
        commit_seconds: float = 0.1,
    ) -> None:
        self._topic = topic
        self._group = group
        self._watch = watch
        self._topic_id = ""
        self._listener = listener
        self._commit_seconds = commit_seconds
        self._config = dict(config)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"taskharbor-stream-{topic}", daemon=True)
        self._paused: set[int] = set()
        self._held_back: set[int] = set()  # paused because the listener takes no more of them
        self._assigned: set[int] = set()
        self._came: set[int] = set()  # since the last message was polled
        # Partitions that are to be read from elsewhere, as soon as the client can: from their commits, or from the
        # begin of another log. Nothing of them is taken before.
        self._to_take_again: set[int] = set()
        self._to_begin_anew: set[int] = set()
        self._in_flight: Sequence[Commit] = ()  # a commit that is not answered yet
        self._full_since: float | None = None
        self._next_commit = 0.0
        self._ends = Ends()
        self._consumer: Any = None
        self._has_joined = False  # partitions came to it at least once
        self._uncommitted = Complaint(
            "offsets of {topic} could not be committed; they go with the next commit: {error}",
            "offsets of {topic} are committed again, after {seconds} s",
        )
        self._unread = Complaint(
            "{topic} cannot be read: {error}", "{topic} is read again, after {seconds} s"
        )

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._assigned)

    @property
    def paused(self) -> int:
        return len(self._paused | self._held_back)

    def seen(self, of: Sequence[StreamPartition]) -> list[StreamPartition]:
        """Add what only the consumer knows: where the log ends, and whether it reads on."""
        return self._ends.seen(self._topic, of, frozenset(self._paused | self._held_back))

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Commit what is finished, leave the group and end the thread; False if it takes longer."""
        self._stopping.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # -- the thread --

    def _run(self) -> None:
        try:
            self._consumer = Consumer({**self._config, "on_commit": self._on_commit}, logger=MET)
            self._consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._stopping.is_set():
                self._round()
            self._leave()
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker has to learn of it
            self._listener.failed(explained(error, self._topic, self._group))
        finally:
            if self._consumer is not None:
                self._consumer.close()

    def _round(self) -> None:
        room = min(AT_ONCE, self._listener.room())
        if room > 0:
            self._full_since = None
            self._resume()
            messages = self._poll(room)
            if messages:
                self._unread.succeeded({"topic": self._topic})
                self._listener.arrived(messages)
        else:
            self._wait_for_room()
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + self._commit_seconds
            self._hold_back()
            self._commit()
            self._look_at_jumps()
            self._read_elsewhere()
            self._ends.look(self._consumer, [(self._topic, each) for each in self._assigned])

    def _poll(self, room: int) -> list[Any]:
        """Wait for the first message, and take what else is there."""
        first = self._consumer.poll(min(POLL_SECONDS, self._commit_seconds))
        if first is None:
            return []
        self._came.clear()
        messages = [first, *(self._consumer.consume(room - 1, 0) if room > 1 else ())]
        if first.partition() in self._came and first.error() is None:
            # Its partition went away and came back during the second call: it is of the time before. Taken now, it
            # would hide those between the commit and itself.
            del messages[0]
        return [each for each in messages if each.error() is None or self._is_message(each)]

    def _is_message(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if not self._passes(error):
            raise KafkaException(error)
        if error.code() != KafkaError._PARTITION_EOF:
            self._unread.failed(error.str(), {"topic": self._topic})
        return False

    def _passes(self, error: Any) -> bool:
        if error.fatal():
            return False
        return passes_for_member(error) if self._has_joined else passes(error)

    def _look_at_jumps(self) -> None:
        """Log where messages were deleted before this worker had read them. (Compaction leaves gaps as well.)"""
        for jump in self._listener.jumps():
            if self._earliest(jump.partition) > jump.expected:
                log_line(
                    logger,
                    logging.ERROR,
                    "messages from {topic}[{partition}]@{offset} on are no longer in the log; "
                    "it is read from offset {found} on",
                    {
                        "topic": self._topic,
                        "partition": jump.partition,
                        "offset": jump.expected,
                        "found": jump.found,
                    },
                )

    def _read_elsewhere(self) -> None:
        """Read on where the store or the log wants it, if that is not where the client reads."""
        for partition, position in self._listener.in_doubt():
            if partition in self._assigned:
                self._look_into(partition, position)
        self._to_take_again |= self._assigned.intersection(self._listener.disowned())
        if self._to_take_again:
            self._take_again(sorted(self._to_take_again))
        if self._assigned and self._is_another_topic():
            self._to_begin_anew |= self._assigned
        if self._to_begin_anew:
            self._begin_anew(sorted(self._to_begin_anew))

    def _is_another_topic(self) -> bool:
        seen = self._watch.look()
        if seen is None or not self._is_of_another(seen):
            return False
        # The answer may be older than what was learned when partitions came: it is asked again.
        return self._is_of_another(self._answer(self._watch.find, "the id of {topic}") or self._topic_id)

    def _is_of_another(self, topic_id: str) -> bool:
        return is_another(self._topic_id, topic_id, self._topic)

    def _has_sought(self, partition: int, offset: int) -> bool:
        """Let the client read on elsewhere; False if it cannot yet."""
        try:
            self._consumer.seek(TopicPartition(self._topic, partition, offset))
        except KafkaException as error:
            if error.args[0].code() not in SEEK_LATER:
                raise
            return False
        return True

    def _look_into(self, partition: int, position: int) -> None:
        """Find out why an older message came, and go on: in a topic that was made anew, or where this one had been.

        After rebalances in quick succession the client may read from an older place than the given one.
        """
        place = TopicPartition(self._topic, partition, position)
        try:
            topic_id = self._watch.find()
            end = self._consumer.get_watermark_offsets(place, timeout=CONNECT_SECONDS)[1]
            # Of brokers that cannot be asked for ids, it is the name of the topic, which may have been made anew.
            is_anew = self._is_of_another(topic_id) or topic_id == self._topic or end < position
        except KafkaException as error:
            if not self._passes(error.args[0]):
                raise
            self._unread.failed(error.args[0].str(), {"topic": self._topic})
            return  # it is looked into again
        if is_anew:
            self._begin_anew([partition])
            return
        if not self._has_sought(partition, position):
            return
        self._listener.trust(partition)
        log_line(
            logger,
            logging.WARNING,
            READ_AGAIN,
            {"topic": self._topic, "partition": partition, "offset": position},
        )

    def _begin_anew(self, partitions: Sequence[int]) -> None:
        """Read partitions from their begin: the topic was deleted, and another one made under its name."""
        self._in_flight = ()
        self._listener.lost(partitions)
        topic_id = self._read_topic_id()
        self._to_begin_anew.update(partitions)
        sought = [each for each in partitions if self._has_sought(each, OFFSET_BEGINNING)]
        if not sought:
            return
        self._to_begin_anew.difference_update(sought)
        self._to_take_again.difference_update(sought)
        self._listener.assigned(topic_id, [Assigned(each, None, None) for each in sought])
        log_line(
            logger,
            logging.WARNING,
            "{topic} was made anew; its partitions {partitions} are read from their begin",
            {"topic": self._topic, "partitions": sought},
        )

    def _take_again(self, partitions: Sequence[int]) -> None:
        """Read partitions from their commits again, as if they had just come."""
        self._in_flight = ()
        asked = [TopicPartition(self._topic, each) for each in partitions]
        known = self._read_committed(self._consumer, asked)
        sought = [
            each
            for each in known
            if self._has_sought(each.partition, each.offset if each.offset >= 0 else OFFSET_BEGINNING)
        ]
        if sought:
            self._to_take_again.difference_update(each.partition for each in sought)
            self._listener.assigned(self._read_topic_id(), _as_assigned(sought))

    def _earliest(self, partition: int) -> int:
        """The earliest offset in the log, as the last answer of the broker said."""
        earliest: int = self._consumer.get_watermark_offsets(
            TopicPartition(self._topic, partition), cached=True
        )[0]
        return earliest

    def _wait_for_room(self) -> None:
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < PAUSE_AFTER_SECONDS:
            time.sleep(ROOM_SECONDS)
            return
        # The client wants to be polled even now, or it counts as gone: with all partitions paused, nothing comes.
        running = self._assigned - self._paused - self._held_back
        if running:
            self._consumer.pause([TopicPartition(self._topic, each) for each in running])
            self._paused |= running
        messages = [each for each in self._consumer.consume(1, ROOM_SECONDS * 10) if self._is_message(each)]
        if messages:  # taken from the log before the pause
            self._listener.arrived(messages)

    def _hold_back(self) -> None:
        """Pause the partitions of which no more may come, and let the others go on."""
        full = self._assigned.intersection(self._listener.full())
        new, over = full - self._held_back, (self._held_back & self._assigned) - full
        self._held_back = full
        if new - self._paused:
            self._consumer.pause([TopicPartition(self._topic, each) for each in new - self._paused])
        if over - self._paused:
            self._consumer.resume([TopicPartition(self._topic, each) for each in over - self._paused])

    def _resume(self) -> None:
        if self._paused:
            there = (self._paused & self._assigned) - self._held_back
            self._paused.clear()
            if there:
                self._consumer.resume([TopicPartition(self._topic, each) for each in there])

    # -- commits --

    def _commit(self) -> None:
        """Commit what has changed, unless the last commit is not answered yet."""
        if self._in_flight:
            return
        commits = [each for each in self._listener.to_commit() if each.partition in self._assigned]
        if commits:
            self._in_flight = commits
            try:
                self._consumer.commit(offsets=self._offsets(commits), asynchronous=True)
            except KafkaException as error:
                self._in_flight = ()
                self._complain(error.args[0])

    def _on_commit(self, error: Any, offsets: list[Any]) -> None:
        """Note what the broker has. The answer may be to a commit that a rebalance has overtaken."""
        answered = [Commit(each.partition, each.offset, each.metadata or "") for each in offsets]
        if set(answered) >= set(self._in_flight) or not answered:
            self._in_flight = ()
        refused = [each for each in offsets if each.error is not None]
        if error is not None or refused:
            self._complain(error or refused[0].error)  # the next one has all of it
        if error is None:
            failed = {each.partition for each in refused}
            self._acknowledge([each for each in answered if each.partition not in failed])

    def _acknowledge(self, commits: Sequence[Commit]) -> None:
        if commits:
            self._uncommitted.succeeded({"topic": self._topic})
            self._listener.committed(commits)

    def _commit_now(self, commits: Sequence[Commit]) -> None:
        """Commit, and wait for the answer; what is not committed comes again."""
        if not commits:
            return
        try:
            self._consumer.commit(offsets=self._offsets(commits), asynchronous=False)
        except KafkaException as error:
            self._complain(error.args[0])
        else:
            self._acknowledge(commits)

    def _complain(self, error: Any) -> None:
        self._uncommitted.failed(error.str(), {"topic": self._topic})

    def _offsets(self, commits: Sequence[Commit]) -> list[Any]:
        return [TopicPartition(self._topic, each.partition, each.offset, each.metadata) for each in commits]

    # -- rebalances --

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        known = self._read_committed(consumer, partitions)
        if not known:
            return  # the worker stops, or no partition came
        topic_id = self._topic_id
        if self._read_topic_id() != topic_id and topic_id:
            # What the group has committed may be of the topic that was: a commit may come after its end.
            known = [TopicPartition(self._topic, each.partition, OFFSET_BEGINNING) for each in known]
        self._listener.assigned(self._topic_id, _as_assigned(known))
        assign(consumer, self._config, known)
        came = {each.partition for each in partitions}
        self._assigned |= came
        self._came |= came
        self._has_joined = True
        log_line(
            logger,
            logging.INFO,
            "partitions of {topic} came to this worker: {partitions}",
            {"topic": self._topic, "partitions": sorted(each.partition for each in partitions)},
        )

    def _read_committed(self, consumer: Any, partitions: list[Any]) -> list[Any]:
        """Ask what the group has committed; nothing if the worker stops meanwhile."""

        def ask() -> list[Any]:
            known: list[Any] = consumer.committed(partitions, timeout=CONNECT_SECONDS)
            if error := next((each.error for each in known if each.error is not None), None):
                raise KafkaException(error)
            return known

        return self._answer(ask, "the committed offsets of {topic}") or []

    def _read_topic_id(self) -> str:
        """Ask for the topic's id."""
        known = self._topic_id
        found = self._answer(self._watch.find, "the id of {topic}") or known
        if not known:
            self._topic_id = found
        elif self._is_of_another(found):
            self._topic_id = found
            self._to_begin_anew |= self._assigned  # what this worker has of the topic is of the one that was
        return self._topic_id

    def _answer(self, ask: Callable[[], T], what: str) -> T | None:
        """Ask until the brokers answer; None if the worker stops meanwhile."""
        return until_answered(ask, what, self._topic, passes=self._passes, stopping=self._stopping)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        gone = [each.partition for each in partitions]
        self._in_flight = ()
        self._commit_now(self._listener.revoked(gone))
        self._forget(gone)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        gone = [each.partition for each in partitions]
        self._in_flight = ()
        self._listener.lost(gone)
        self._forget(gone)
        log_line(
            logger,
            logging.WARNING,
            "partitions of {topic} went to another worker without this one: {partitions}. It was away for too long",
            {"topic": self._topic, "partitions": sorted(gone)},
        )

    def _forget(self, gone: Sequence[int]) -> None:
        # The client keeps a pause beyond the assignment: the partition would stay paused when it comes back.
        if paused := (self._paused | self._held_back).intersection(gone):
            self._consumer.resume([TopicPartition(self._topic, each) for each in paused])
        self._assigned.difference_update(gone)
        for each in (self._paused, self._held_back, self._to_take_again, self._to_begin_anew):
            each.difference_update(gone)

    def _leave(self) -> None:
        """Commit the rest. (Closing the consumer revokes its partitions.)"""
        self._in_flight = ()
        self._commit_now([each for each in self._listener.to_commit() if each.partition in self._assigned])


def _as_assigned(known: Sequence[Any]) -> list[Assigned]:
    return [
        Assigned(each.partition, each.offset if each.offset >= 0 else None, each.metadata) for each in known
    ]


def is_incremental(config: Mapping[str, Any]) -> bool:
    """Whether the group names to a consumer of these settings what partitions come and go, and not all that it has."""
    strategy = str(config.get("partition.assignment.strategy", ""))
    return "cooperative" in strategy or config.get("group.protocol") == "consumer"


def assign(consumer: Any, config: Mapping[str, Any], partitions: Sequence[Any]) -> None:
    """Let the client read these partitions from the offsets in them.

    Left to itself, it would ask for the committed offsets a second time. If another answer came, it would read
    elsewhere than this worker counts from.
    """
    if is_incremental(config):
        consumer.incremental_assign(list(partitions))
    else:
        consumer.assign(list(partitions))
