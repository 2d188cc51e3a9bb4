"""A consumer in a thread of its own. The thread polls, commits and hands messages over; it never waits for a handler.

The client library calls back during a poll: when partitions are assigned or revoked, and when a commit is answered. So
whatever happens to the consumer happens in this one thread, and the loop of the worker asks it by messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from taskharbor.errors import StreamError
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

AT_ONCE = 500  # messages of one call: more bring nothing
POLL_SECONDS = 0.1
ROOM_SECONDS = 0.002  # how often it looks for room while there is none
PAUSE_AFTER_SECONDS = (
    1.0  # without room for this long, the partitions are paused: pausing at once costs far more
)
COMMIT_SECONDS = 5.0  # how long a commit that must be answered may take
CONNECT_SECONDS = 10.0
AGAIN_SECONDS = 0.5  # before a question that the brokers did not answer is asked again

# Errors after which polling goes on: the client connects again by itself.
_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._PARTITION_EOF,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
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


class Listener(Protocol):
    """What the consumer's thread tells. Every call comes from that thread."""

    def assigned(self, partitions: Sequence[Assigned]) -> None:
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

    def to_commit(self) -> Sequence[Commit]: ...

    def failed(self, error: Exception) -> None:
        """The thread has ended because of this."""


class PolledConsumer:
    def __init__(
        self, config: Mapping[str, Any], topic: str, listener: Listener, commit_seconds: float = 0.1
    ) -> None:
        self._topic = topic
        self._listener = listener
        self._commit_seconds = commit_seconds
        self._config = dict(config)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"taskharbor-stream-{topic}", daemon=True)
        self._paused: set[int] = set()
        self._assigned: set[int] = set()
        self._in_flight: Sequence[Commit] = ()  # a commit that is not answered yet
        self._full_since: float | None = None
        self._next_commit = 0.0
        self._consumer: Any = None

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._assigned)

    @property
    def paused(self) -> int:
        return len(self._paused)

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
            self._consumer = Consumer({**self._config, "on_commit": self._on_commit}, logger=logger)
            self._consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._stopping.is_set():
                self._round()
            self._leave()
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker has to learn of it
            self._listener.failed(explained(error, self._topic))
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
                self._listener.arrived(messages)
        else:
            self._wait_for_room()
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + self._commit_seconds
            self._commit()

    def _poll(self, room: int) -> list[Any]:
        """Wait for the first message, and take what else is there."""
        first = self._consumer.poll(min(POLL_SECONDS, self._commit_seconds))
        if first is None:
            return []
        rest = self._consumer.consume(room - 1, 0) if room > 1 else []
        return [message for message in (first, *rest) if self._is_message(message)]

    def _is_message(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.fatal() or not passes(error):
            raise KafkaException(error)
        if error.code() != KafkaError._PARTITION_EOF:
            log_line(
                logger, logging.WARNING, "the broker cannot be read from: {error}", {"error": str(error)}
            )
        return False

    def _wait_for_room(self) -> None:
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < PAUSE_AFTER_SECONDS:
            time.sleep(ROOM_SECONDS)
            return
        # The client wants to be polled even now, or it counts as gone: with all partitions paused, nothing comes.
        running = self._assigned - self._paused
        if running:
            self._consumer.pause([TopicPartition(self._topic, each) for each in running])
            self._paused |= running
        messages = [each for each in self._consumer.consume(1, ROOM_SECONDS * 10) if self._is_message(each)]
        if messages:  # taken from the log before the pause
            self._listener.arrived(messages)

    def _resume(self) -> None:
        if self._paused:
            there = self._paused & self._assigned
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
        commits, self._in_flight = self._in_flight, ()
        if error is not None:
            self._complain(error)  # the next one has all of it
            return
        refused = {each.partition for each in offsets if each.error is not None}
        self._listener.committed([each for each in commits if each.partition not in refused])

    def _commit_now(self, commits: Sequence[Commit]) -> None:
        """Commit, and wait for the answer; what is not committed comes again."""
        if not commits:
            return
        try:
            self._consumer.commit(offsets=self._offsets(commits), asynchronous=False)
        except KafkaException as error:
            self._complain(error.args[0])
        else:
            self._listener.committed(commits)

    def _complain(self, error: Any) -> None:
        log_line(
            logger,
            logging.WARNING,
            "offsets of {topic} could not be committed; they go with the next commit: {error}",
            {"topic": self._topic, "error": str(error)},
        )

    def _offsets(self, commits: Sequence[Commit]) -> list[Any]:
        return [TopicPartition(self._topic, each.partition, each.offset, each.metadata) for each in commits]

    # -- rebalances --

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        given = [
            Assigned(each.partition, each.offset if each.offset >= 0 else None, each.metadata)
            for each in self._read_committed(consumer, partitions)
        ]
        self._listener.assigned(given)
        self._assigned |= {each.partition for each in partitions}
        log_line(
            logger,
            logging.INFO,
            "partitions of {topic} came to this worker: {partitions}",
            {"topic": self._topic, "partitions": sorted(each.partition for each in partitions)},
        )

    def _read_committed(self, consumer: Any, partitions: list[Any]) -> list[Any]:
        """Ask what the group has committed, until the brokers answer; nothing if the worker stops meanwhile."""
        while not self._stopping.is_set():
            try:
                known: list[Any] = consumer.committed(partitions, timeout=CONNECT_SECONDS)
                error = next((each.error for each in known if each.error is not None), None)
            except KafkaException as raised:
                known, error = [], raised.args[0]
            if error is None:
                return known
            if error.fatal() or not passes(error):
                raise KafkaException(error)
            log_line(
                logger,
                logging.WARNING,
                "the committed offsets of {topic} cannot be read; they are asked for again: {error}",
                {"topic": self._topic, "error": str(error)},
            )
            self._stopping.wait(AGAIN_SECONDS)
        return []

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
        self._assigned.difference_update(gone)
        self._paused.difference_update(gone)

    def _leave(self) -> None:
        """Commit the rest. (Closing the consumer revokes its partitions.)"""
        self._in_flight = ()
        self._commit_now([each for each in self._listener.to_commit() if each.partition in self._assigned])


def passes(error: Any) -> bool:
    """Whether the same may succeed later, without anyone doing something about it."""
    return error.code() in _PASSING or bool(error.retriable())


def is_refused(error: BaseException) -> bool:
    """Whether the brokers refused a message for what it is: it would be refused again."""
    cause: Any = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    )


def explained(error: Exception, topic: str) -> Exception:
    """Say what to do about an error of the client."""
    if not isinstance(error, KafkaException):
        return error
    cause: Any = error.args[0]
    advice = next((advice for codes, advice in _ADVICE.items() if cause.code() in codes), None)
    said = f"topic {topic!r}: {cause.str()}"
    told = StreamError(said if advice is None else f"{said}; {advice}")
    told.__cause__ = error
    return told


_ADVICE: dict[tuple[int, ...], str] = {
    (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC): "create it, or start with --create-topic",
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ): "this user may not: the operator of the brokers has to permit it to read the topic and to join the group",
    (
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    ): "the group has members with another assignment strategy: stop them, or choose another group",
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    ): "the brokers refuse these credentials",
}
