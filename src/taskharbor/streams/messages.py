"""Messages of a topic: what a job is made of, and what is wrong with a message that none can be made of.

A message says its task in one of three ways: as JSON `{"task": …, "payload": {…}}`; by the header `taskharbor-task`,
and its body is the payload; or by its key, if that is the name of a task, and its body is the payload.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import msgspec
from msgspec import Raw, Struct

from taskharbor.codec import PAYLOAD_LIMIT, checked_name, clean_text, counted, shorten
from taskharbor.errors import ConfigurationError
from taskharbor.records import NO_OPTIONS, Options, encode_options
from taskharbor.rules.meta import BYTES_MAX as META_BYTES_MAX
from taskharbor.rules.meta import ENTRIES_MAX, checked_meta, with_inherited

TASK_HEADER = "taskharbor-task"
CORRELATION_HEADER = "taskharbor-correlation-id"
TRACE_HEADERS = ("traceparent", "tracestate")
# Entries of the meta of a message's job: where the message stands.
TOPIC_ENTRY, PARTITION_ENTRY, OFFSET_ENTRY = "stream-topic", "stream-partition", "stream-offset"
KEY_ENTRY, ID_ENTRY = "stream-key", "stream-message-id"
# Of a message that was dead and is sent back: which replay sent it. Should it die again, its copy says so.
REPLAY_HEADER, REPLAY_ENTRY = "taskharbor-replay", "stream-replay"
_PLACE_NAMES = tuple(f'"{name}"' for name in (TOPIC_ENTRY, PARTITION_ENTRY, OFFSET_ENTRY, KEY_ENTRY))
_text = msgspec.json.Encoder().encode
KEY_SHOWN_MAX = 300  # characters; a longer key is left out
_BASE64 = "base64:"  # before a key that is no text
BYTES_MAX = PAYLOAD_LIMIT + 64 * 1024  # of a message: a payload and what is around it
SHOWN_BYTES = 4_096  # of a message that cannot be read

Headers = Sequence[tuple[str, bytes | None]] | None


# The first digit of a UUID's fourth group has two bits of its own.
_VARIANT = {digit: f"{int(digit, 16) & 3 | 8:x}" for digit in "0123456789abcdef"}
_COUNTED = (1 << 48) - 1  # the bits of an id that count on with the offset
_ABOVE = 1 << 48  # added, so that `hex` writes all their digits


@lru_cache(4_096)
def _first_id(log: bytes, partition: int) -> tuple[str, int]:
    """Where the ids of a partition begin, at random: what they all have after the version, and what counts on."""
    hashed = hashlib.blake2b(b"%d" % partition, digest_size=10, key=log).hexdigest()
    return f"{hashed[1:4]}-{_VARIANT[hashed[4]]}{hashed[5:8]}-", int(hashed[8:], 16)


@lru_cache(1_024)
def _begin_of_id(timestamp: int) -> str:
    """The time and the version of an id. Many messages have the same millisecond."""
    time = f"{max(timestamp, 0) & 0xFFFF_FFFF_FFFF:012x}"
    return f"{time[:8]}-{time[8:]}-7"


class Place(Struct, frozen=True, gc=False):
    """Where a message stands: in which log, for which group."""

    log: bytes  # a digest of the cluster, the topic and the group
    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds, as the broker has it

    @property
    def job_id(self) -> str:
        """The id of the message's job: the same each time the message comes, and it begins with the message's time.

        Put together here, since every message passes through: a UUID of version 7. Two messages have one id only if
        they are of the same millisecond and their partitions, which begin at random, meet in the other 74 bits.
        """
        common, first = _first_id(self.log, self.partition)
        return _begin_of_id(self.timestamp) + common + hex(_ABOVE | (first + self.offset) & _COUNTED)[3:]

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


def log_digest(cluster: str, topic: str, group: str) -> bytes:
    """Name the log that a group reads, in few bytes."""
    return hashlib.blake2b(f"{cluster}\0{topic}\0{group}".encode(), digest_size=16).digest()


class Envelope(Struct, rename="camel", gc=False):
    """A message that says everything itself. What else it holds is left alone: its producer may be newer."""

    task: str
    payload: Raw = Raw(b"{}")
    id: str | None = None
    correlation_id: str | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    meta: dict[str, str] | None = None


class Readable(Struct, gc=False):
    """What a message asks for."""

    task: str
    payload: str
    options: str | None = None  # as a store keeps them
    meta: str | None = None
    given_id: str | None = None  # the producer's own; handlers find it in the meta


class Unreadable(Struct):
    """Why no job can be made of a message, and what is shown of it."""

    why: str
    sha256: str
    beginning: str


_NO_HEADERS: Mapping[str, str] = {}
_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode


def read_message(
    body: bytes | None, key: bytes | None, headers: Headers, is_task: Callable[[str], bool]
) -> Readable | Unreadable:
    """Read a message. It never raises: a message that cannot be read must not hold up its partition."""
    if body is None:
        return unreadable("it has no body (a tombstone)", b"")
    if len(body) > BYTES_MAX:
        return unreadable(f"it has {counted(len(body), 'byte')}; at most {BYTES_MAX:,} can be taken", body)
    given = _texts(headers) if headers else _NO_HEADERS
    try:
        if TASK_HEADER in given:
            return _of_payload(given[TASK_HEADER], body, given)
        try:
            envelope = _decode_envelope(body)
        except msgspec.ValidationError as error:
            if (named := _named_by(key, is_task)) is not None:
                return _of_payload(named, body, given)
            return unreadable(_why_no_envelope(str(error)), body)
        return _of_envelope(envelope, given, len(body))
    except Exception as error:  # noqa: BLE001 - a number that no store keeps, too deep a nesting, and what else there is
        return unreadable(clean_text(str(error), 400), body)


def _why_no_envelope(error: str) -> str:
    is_about_another_field = "`$." in error and "`$.task`" not in error
    return f"{'a field of it is wrong' if is_about_another_field else 'it does not say its task'}: {error}"


def _of_envelope(envelope: Envelope, given: Mapping[str, str], size: int) -> Readable:
    task = _task_name(envelope.task)
    payload = str(envelope.payload, "utf-8")
    if payload[0] != "{":
        raise ConfigurationError(f"a payload is a JSON object, not {shorten(payload)}")
    says_no_more = (
        envelope.id is None
        and envelope.correlation_id is None
        and envelope.max_attempts is None
        and envelope.timeout is None
        and envelope.meta is None
    )
    if says_no_more and not given and size <= PAYLOAD_LIMIT:
        return Readable(task, payload)  # nearly every message
    return _readable(
        task,
        bytes(envelope.payload),
        given,
        correlation_id=envelope.correlation_id,
        max_attempts=_positive(envelope.max_attempts),
        timeout=_positive(envelope.timeout),
        meta=envelope.meta,
        given_id=envelope.id,
    )


@lru_cache(1_024)
def _task_name(name: str) -> str:
    return checked_name("task", name)


def _of_payload(task: str, body: bytes, given: Mapping[str, str]) -> Readable:
    _decode_object(body)  # all of it is JSON, and an object
    return _readable(_task_name(task), body, given)


def _readable(
    task: str,
    payload: bytes,
    given: Mapping[str, str],
    *,
    correlation_id: str | None = None,
    max_attempts: int | None = None,
    timeout: float | None = None,
    meta: dict[str, str] | None = None,
    given_id: str | None = None,
) -> Readable:
    if len(payload) > PAYLOAD_LIMIT:
        raise ConfigurationError(
            f"its payload has {counted(len(payload), 'byte')}; at most {PAYLOAD_LIMIT:,} can be taken"
        )
    traced = {name: given[name] for name in TRACE_HEADERS if name in given}
    entries = {**traced, **(meta or {})}
    if REPLAY_HEADER in given:
        entries[REPLAY_ENTRY] = clean_text(given[REPLAY_HEADER], 100)
    if given_id is not None:
        entries[ID_ENTRY] = clean_text(given_id, 200)
    correlation = correlation_id or given.get(CORRELATION_HEADER)
    options = NO_OPTIONS
    if correlation is not None or max_attempts is not None or timeout is not None:
        options = Options(
            max_attempts=max_attempts,
            timeout=timeout,
            correlation_id=None if correlation is None else checked_name("correlation_id", correlation),
        )
    return Readable(
        task,
        payload.decode(),
        encode_options(options),
        checked_meta(entries) if entries else None,
        given_id,
    )


def with_place(meta: str | None, place: Place, key: bytes | None) -> str | None:
    """Return the meta with where the message stands, as far as it fits.

    Every message passes through here, so the text is put together, and read again only where that could go wrong.
    """
    entry = ""
    if key is not None and (shown := entry_of_bytes(key)) is not None:
        entry = f',"{KEY_ENTRY}":{_text(shown).decode()}'
    own = f'{_partition_text(place.topic, place.partition)}{place.offset}"{entry}}}'
    if meta is None:
        return own
    is_simple = (
        meta.isascii()
        and own.isascii()
        and len(own) + len(meta) <= META_BYTES_MAX
        and meta.count('":"') + 4 <= ENTRIES_MAX
        and not any(name in meta for name in _PLACE_NAMES)
    )
    return f"{own[:-1]},{meta[1:]}" if is_simple else with_inherited(own, meta)


@cache
def _partition_text(topic: str, partition: int) -> str:
    named = f'"{TOPIC_ENTRY}":{_text(topic).decode()},"{PARTITION_ENTRY}":"{partition}"'
    return f'{{{named},"{OFFSET_ENTRY}":"'


def entry_of_bytes(key: bytes) -> str | None:
    """A key as an entry of the meta: text if it is printable; None if it is too long."""
    try:
        text = key.decode()
        if not text.isprintable() or text.startswith(_BASE64):
            raise ValueError(text)
    except ValueError:
        text = _BASE64 + base64.b64encode(key).decode()
    return text if len(text) <= KEY_SHOWN_MAX else None


def bytes_of_entry(entry: str | None) -> bytes | None:
    if entry is None:
        return None
    if entry.startswith(_BASE64):
        return base64.b64decode(entry.removeprefix(_BASE64))
    return entry.encode()


def _positive(value: Any) -> Any:
    if value is not None and value <= 0:
        raise ConfigurationError(f"maxAttempts and timeout must be above 0, not {value}")
    return value


def _named_by(key: bytes | None, is_task: Callable[[str], bool]) -> str | None:
    if key is None:
        return None
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return None
    return name if is_task(name) else None


def _texts(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    """The headers that are text; of several with one name, the last one counts."""
    texts = {}
    for name, value in headers:
        if value is not None and len(value) <= 4_096:
            texts[name] = value.decode(errors="replace")
    return texts


def unreadable(why: str, body: bytes) -> Unreadable:
    return Unreadable(
        why,
        hashlib.sha256(body).hexdigest(),
        clean_text(body[:SHOWN_BYTES].decode(errors="replace"), SHOWN_BYTES),
    )
