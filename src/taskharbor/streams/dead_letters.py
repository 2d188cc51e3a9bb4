"""The dead-letter topic: a copy of each dead message, with headers that say where it came from and why it is dead.

The job that sends a copy is stored in the settle that makes the message dead, so no copy is forgotten. It may be sent
twice: headers name the message that it is a copy of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from taskharbor.clock import from_micros
from taskharbor.errors import JobNotFound
from taskharbor.failure_tasks import DEAD_LETTER_TASK
from taskharbor.records import FAILURES, AttemptRecord, Delivery, JobRecord, NewJob, Reason
from taskharbor.rules.meta import read_meta
from taskharbor.rules.retry import RetryPolicy
from taskharbor.streams.messages import (
    CORRELATION_HEADER,
    KEY_ENTRY,
    OFFSET_ENTRY,
    PARTITION_ENTRY,
    REPLAY_ENTRY,
    REPLAY_HEADER,
    TASK_HEADER,
    TOPIC_ENTRY,
    Place,
    Unreadable,
    bytes_of_entry,
)
from taskharbor.streams.producer import Headers, Sender, message_of

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

HEADER_MAX = 16_000  # bytes of a header's text
# The headers by which a dead letter is sent back.
ORIGINAL_TOPIC, ORIGINAL_GROUP = "kafka_dlt-original-topic", "kafka_dlt-original-consumer-group"
ERROR_TYPE, ERROR_TEXT = "kafka_dlt-exception-fqcn", "kafka_dlt-exception-message"
REASON_HEADER, FINGERPRINT_HEADER = "taskharbor-reason", "taskharbor-fingerprint"
DELIVERY_HEADER = "taskharbor-delivery"
# A topic that is missing or brokers that are away do not make the copy superfluous.
PATIENT = RetryPolicy(max_attempts=50, initial=1.0, maximum=60.0, multiplier=2.0, jitter=0.1)

_senders: WeakKeyDictionary[Harbor, dict[str, Sender]] = WeakKeyDictionary()


def declare(harbor: Harbor, source: str, sender: Sender) -> None:
    """Let this process send the copies of one topic's dead messages."""
    _senders.setdefault(harbor, {})[source] = sender
    if DEAD_LETTER_TASK in harbor.tasks:
        return

    @harbor.task(name=DEAD_LETTER_TASK, retry=PATIENT, max_attempts=PATIENT.max_attempts)
    async def send_dead_letter(job: str, source: str, topic: str, group: str) -> str:
        """Send the copy of a dead message."""
        return await _send(harbor, job, source, topic, group)


async def _send(harbor: Harbor, job_id: str, source: str, topic: str, group: str) -> str:
    try:
        job = await harbor.jobs.aget(job_id)
    except JobNotFound:
        return "the job is no longer kept"
    attempts = await harbor.driver.history(job_id, 100)
    record: JobRecord = job.record
    meta = read_meta(record.meta)
    key = bytes_of_entry(meta.get(KEY_ENTRY))
    known = harbor._known(record.task)
    is_once = record.delivery is Delivery.AT_MOST_ONCE or (known is not None and known.is_at_most_once)
    headers = headers_of(record, attempts, meta, group, is_once=is_once)
    sent = await asyncio.wrap_future(_senders[harbor][source].send(topic, _body(record), key, headers))
    return f"{sent.topic}[{sent.partition}]@{sent.offset}"


def _body(record: JobRecord) -> bytes:
    """The message as it was understood: a worker takes it as it is."""
    options = msgspec.structs.replace(
        record.options, retry=msgspec.UNSET, tags=(), failure_task=None, dead_copy=None
    )
    return message_of(NewJob(record.id, record.task, record.payload, options=options))


def headers_of(
    record: JobRecord,
    attempts: Sequence[AttemptRecord],
    meta: dict[str, str],
    group: str,
    *,
    is_once: bool = False,
) -> list[tuple[str, bytes]]:
    """The headers of a dead job's copy."""
    failures = [each for each in attempts if each.status in FAILURES]
    latest = failures[0] if failures else (attempts[0] if attempts else None)
    return letter_headers(
        Letter(
            topic=meta.get(TOPIC_ENTRY, ""),
            partition=meta.get(PARTITION_ENTRY, ""),
            offset=meta.get(OFFSET_ENTRY, ""),
            timestamp=str(record.enqueued_at // 1_000),
            group=group,
            task=record.task,
            job=record.id,
            attempts=record.attempts,
            error=record.error,
            traceback=latest.traceback if latest is not None else None,
            first_failed_at=failures[-1].finished_at if failures else None,
            correlation_id=record.options.correlation_id,
            reason=record.reason,
            fingerprint=record.fingerprint,
            is_once=is_once,
            replay=meta.get(REPLAY_ENTRY),
        )
    )


class Letter(Struct, frozen=True):
    """What the headers of a dead letter say."""

    topic: str
    partition: str
    offset: str
    timestamp: str
    group: str
    task: str
    job: str
    attempts: int
    error: str | None
    traceback: str | None
    first_failed_at: int | None
    correlation_id: str | None
    reason: Reason | None
    fingerprint: str | None
    is_once: bool = False
    replay: str | None = None  # the replay that sent the message back, and its number there


def letter_headers(letter: Letter) -> list[tuple[str, bytes]]:
    """Spring's names, which other tools read, and ours."""
    error, at = letter.error or "", letter.first_failed_at
    return _headers(
        {
            ORIGINAL_TOPIC: letter.topic,
            "kafka_dlt-original-partition": letter.partition,
            "kafka_dlt-original-offset": letter.offset,
            "kafka_dlt-original-timestamp": letter.timestamp,
            ORIGINAL_GROUP: letter.group,
            ERROR_TYPE: error.partition(":")[0],
            ERROR_TEXT: error.partition(": ")[2] or error,
            "kafka_dlt-exception-stacktrace": letter.traceback or "",
            TASK_HEADER: letter.task,
            "taskharbor-job": letter.job,
            "taskharbor-attempts": str(letter.attempts),
            "taskharbor-first-failed-at": "" if at is None else from_micros(at).isoformat(),
            CORRELATION_HEADER: letter.correlation_id or "",
            REASON_HEADER: "" if letter.reason is None else str(letter.reason),
            FINGERPRINT_HEADER: letter.fingerprint or "",
            DELIVERY_HEADER: str(Delivery.AT_MOST_ONCE) if letter.is_once else "",
            REPLAY_HEADER: letter.replay or "",
        }
    )


def headers_of_unreadable(place: Place, read: Unreadable, group: str) -> list[tuple[str, bytes]]:
    return _headers(
        {
            ORIGINAL_TOPIC: place.topic,
            "kafka_dlt-original-partition": str(place.partition),
            "kafka_dlt-original-offset": str(place.offset),
            "kafka_dlt-original-timestamp": str(place.timestamp),
            ORIGINAL_GROUP: group,
            ERROR_TEXT: read.why,
            "taskharbor-job": place.job_id,
            REASON_HEADER: str(Reason.INVALID_PAYLOAD),
            "taskharbor-sha256": read.sha256,
        }
    )


def _headers(texts: dict[str, str]) -> list[tuple[str, bytes]]:
    return [(name, text.encode()[:HEADER_MAX]) for name, text in texts.items() if text]


class UnreadableCopies:
    """Sends the whole bytes of messages that cannot be read: no job of the store could hold them."""

    def __init__(self, sender: Sender, topic: str, group: str) -> None:
        self._sender = sender
        self._topic = topic
        self._group = group

    async def send(self, place: Place, read: Unreadable, message: Any) -> None:
        headers: Headers = headers_of_unreadable(place, read, self._group)
        answer = self._sender.send(self._topic, message.value() or b"", message.key(), headers)
        await asyncio.wrap_future(answer)
