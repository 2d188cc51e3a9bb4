"""The records that messages become: in a retry topic, or in the dead-letter topic."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from taskharbor.drivers.base import Claimed, Transition
from taskharbor.records import Reason, read_options
from taskharbor.streams.dead_letters import Letter, headers_of_unreadable, letter_headers
from taskharbor.streams.messages import SHOWN_BYTES, TASK_HEADER, Place, Unreadable
from taskharbor.streams.topics.moves import Record
from taskharbor.streams.topics.tiers import Tiers
from taskharbor.streams.topics.trails import Headers, Trail, headers_of

# Says that the header `taskharbor-task` is the message's own, and its body the bare payload.
FORM_HEADER, FORM_PAYLOAD = "taskharbor-form", "payload"
HISTORY_HEADER = "taskharbor-history"
SHORTENED_HEADER = "taskharbor-shortened"  # how many bytes the body had


class Message(Protocol):
    """A message with what has happened to it so far."""

    claimed: Claimed
    message: Any
    headers: Headers
    is_committed: bool


class Records:
    def __init__(self, tiers: Tiers, dead_letter_topic: str, group: str) -> None:
        self._tiers = tiers
        self._dead_letter_topic = dead_letter_topic
        self._group = group

    def later(self, held: Message, trail: Trail, now: int) -> Record | None:
        """The retry record of a message; None if its remaining delay is shorter than every tier."""
        tier = self._tiers.best(trail.due_at - now)
        return None if tier is None else self._retry(held, trail, tier, now)

    def soon(self, held: Message, trail: Trail, now: int) -> Record:
        """The retry record of a message that cannot stay, however soon it is due."""
        return self._retry(held, trail, self._tiers.smallest, now)

    def _retry(self, held: Message, trail: Trail, tier: tuple[str, int], now: int) -> Record:
        topic, wait = tier
        trail = replace(trail, due_at=max(trail.due_at, now), wait_until=now + wait)
        correlation = read_options(held.claimed.options)[0].correlation_id
        headers = headers_of(trail, self._group, held.headers, correlation)

        def instead(why: str) -> Record:
            error = f"{topic} does not take its retry record: {why}"
            return self._letter(held, replace(trail, error=error), Reason.INVALID_PAYLOAD, None)

        return Record(topic, held.message.key(), held.message.value(), headers, instead)

    def dead(self, held: Message, trail: Trail, t: Transition) -> Record:
        """The dead letter of a message: as its producer wrote it, and why it is dead."""
        return self._letter(held, trail, t.reason, t.traceback)

    def _letter(self, held: Message, trail: Trail, reason: Reason | None, traceback: str | None) -> Record:
        first, claimed = trail.first, held.claimed
        letter = Letter(
            topic=first.topic,
            partition=str(first.partition),
            offset=str(first.offset),
            timestamp=str(first.timestamp),
            group=self._group,
            task=claimed.task,
            job=claimed.id,
            attempts=trail.attempts,
            error=trail.error,
            traceback=traceback,
            first_failed_at=trail.first_failed_at,
            correlation_id=read_options(claimed.options)[0].correlation_id,
            reason=reason,
            fingerprint=trail.fingerprint,
            is_once=held.is_committed,
        )
        own: Headers = [*letter_headers(letter), (HISTORY_HEADER, trail.rows_json)]
        if any(name == TASK_HEADER for name, _ in held.headers):
            own.append((FORM_HEADER, FORM_PAYLOAD.encode()))
        names = {name for name, _ in own}
        given = [each for each in held.headers if each[0] not in names]
        body, key = held.message.value(), held.message.key()
        return self._with_shorter(key, body, [*given, *own], own)

    def unreadable(self, first: Place, message: Any, why: Unreadable) -> Record:
        """The dead letter of a message that no job can be made of: all of its bytes."""
        own: Headers = [*headers_of_unreadable(first, why, self._group)]
        names = {name for name, _ in own}
        given = [each for each in message.headers() or () if each[0] not in names]
        return self._with_shorter(message.key(), message.value(), [*given, *own], own)

    def _with_shorter(self, key: bytes | None, body: bytes | None, headers: Headers, own: Headers) -> Record:
        """A dead letter; should the brokers refuse it, its beginning; should they refuse that, what it is about."""
        whole = body or b""
        about: Headers = [
            (SHORTENED_HEADER, str(len(whole)).encode()),
            ("taskharbor-sha256", hashlib.sha256(whole).hexdigest().encode()),
        ]
        few = [(name, value) for name, value in own if name.startswith("kafka_dlt-original") or name in _FEW]

        def beginning(_: str) -> Record:
            return self._dead(None, whole[:SHOWN_BYTES], [*own, *about], headers_alone)

        def headers_alone(_: str) -> Record:
            return self._dead(None, b"", [*few, *about], None)

        return self._dead(key, body, headers, beginning)

    def _dead(
        self,
        key: bytes | None,
        body: bytes | None,
        headers: Headers,
        instead: Callable[[str], Record] | None,
    ) -> Record:
        return Record(self._dead_letter_topic, key, body, headers, instead)


_FEW = frozenset({TASK_HEADER, "taskharbor-job", "taskharbor-reason", "taskharbor-fingerprint"})
