"""Errors of the Kafka client: which pass by themselves, which refuse a message, and what to do about the others."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from taskharbor.errors import StreamError

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
# What a member of a group meets on its way: the client joins again, and a topic that was deleted may come back.
_PASSING_FOR_MEMBERS = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
# There is no such topic.
MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
CREATE_TOPIC = "create it, or start with --create-topic"
CREATE_OWN_TOPIC = "create it, or leave out --no-create-topics"
# A message that the brokers refuse with one of these would be refused again.
REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)


def passes(error: Any) -> bool:
    """Whether the same may succeed later, without anyone doing something about it."""
    return error.code() in _PASSING or bool(error.retriable())


def passes_for_member(error: Any) -> bool:
    """Whether the same may pass for a member of a group: it joins again, and a topic that was deleted may come back."""
    return passes(error) or error.code() in _PASSING_FOR_MEMBERS


def is_refused(error: BaseException) -> bool:
    """Whether the brokers refused a message for what it is: it would be refused again."""
    cause: Any = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in REFUSED


def explained(
    error: Exception,
    topic: str,
    group: str | None = None,
    *,
    if_missing: str = CREATE_TOPIC,
    what: str = "topic",
) -> Exception:
    """Say what to do about an error of the client; `if_missing`, if there is no such topic.

    `what` is what `topic` names, where that is no topic.
    """
    if not isinstance(error, KafkaException):
        return error
    cause: Any = error.args[0]
    if cause.code() in MISSING and what == "topic":
        told = StreamError(f"topic {topic!r} is missing; {if_missing}")
    else:
        advice = next((advice for codes, advice in _ADVICE.items() if cause.code() in codes), None)
        said = f"{what} {topic!r}: " if group is None else f"{what} {topic!r}, group {group!r}: "
        said += cause.str().rstrip(".")
        told = StreamError(said if advice is None else f"{said}; {advice}")
    told.__cause__ = error
    return told


_ADVICE: dict[tuple[int, ...], str] = {
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ): "this user may not: the operator of the brokers has to permit it to read the topic and to join the group",
    (
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ): "this user may not: the operator of the brokers has to permit it to write under this transactional id",
    (
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    ): "the group has members with another assignment strategy: stop them, or choose another group",
    (
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.UNRELEASED_INSTANCE_ID,
    ): "another process is the same static member: give each its own group.instance.id",
    (
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
    ): "these brokers do not have what a setting asks for, such as group.protocol=consumer: leave it out",
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    ): "the brokers refuse these credentials",
}
