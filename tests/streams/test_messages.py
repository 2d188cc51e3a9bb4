"""Messages: how a task is named, and what becomes of those that cannot be read."""

from __future__ import annotations

import json
import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.codec import PAYLOAD_LIMIT
from taskharbor.records import read_options
from taskharbor.rules.meta import checked_meta, read_meta, with_inherited
from taskharbor.streams.messages import (
    BYTES_MAX,
    KEY_ENTRY,
    OFFSET_ENTRY,
    PARTITION_ENTRY,
    TOPIC_ENTRY,
    Place,
    Readable,
    Unreadable,
    bytes_of_entry,
    entry_of_bytes,
    log_digest,
    read_message,
    with_place,
)

LOG = log_digest("cluster", "topic", "group")


def read(body, key=None, headers=None, tasks=("send",)):
    text = json.dumps(body).encode() if not isinstance(body, bytes | None) else body
    return read_message(text, key, headers, lambda name: name in tasks)


def test_message_that_says_everything_itself():
    found = read(
        {
            "task": "send",
            "payload": {"to": "a@b.c"},
            "id": "m-1",
            "correlationId": "c-1",
            "maxAttempts": 4,
            "timeout": 2.5,
            "meta": {"tenant": "7"},
            "unknown": [1],
        }
    )
    assert isinstance(found, Readable)
    assert (found.task, json.loads(found.payload)) == ("send", {"to": "a@b.c"})
    options, _ = read_options(found.options)
    assert (options.correlation_id, options.max_attempts, options.timeout) == ("c-1", 4, 2.5)
    assert read_meta(found.meta) == {"tenant": "7", "stream-message-id": "m-1"}


def test_task_in_a_header_makes_the_body_the_payload():
    found = read(
        {"task": "not this", "n": 1}, headers=[("taskharbor-task", b"send"), ("traceparent", b"00-1")]
    )
    assert (found.task, json.loads(found.payload)) == ("send", {"task": "not this", "n": 1})
    assert read_meta(found.meta) == {"traceparent": "00-1"}


def test_key_that_is_a_task_makes_the_body_the_payload():
    found = read({"n": 1}, key=b"send")
    assert (found.task, json.loads(found.payload)) == ("send", {"n": 1})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "no body"),
        (b"", "malformed|truncated"),
        (b"not json", "malformed"),
        (b"\xff\xfe", "malformed|UTF-8|invalid"),
        ({"payload": {}}, "does not say its task"),
        ([1, 2], "does not say its task"),
        ({"task": 5}, "does not say its task"),
        ({"task": "send", "maxAttempts": "x"}, "a field of it is wrong: Expected"),
        ({"task": "send", "meta": {"task": 5}}, "a field of it is wrong: Expected"),
        ({"task": ""}, "task"),
        ({"task": "send", "payload": [1]}, "JSON object"),
        ({"task": "send", "maxAttempts": 0}, "above 0"),
        ({"task": "send", "meta": {"a": "\x00"}}, "meta"),
        (b'{"task":"send","payload":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "."),
        (b'{"task":"send","payload":{"x":"' + b"y" * PAYLOAD_LIMIT + b'"}}', "at most"),
        (b"x" * (BYTES_MAX + 1), "at most"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_message_that_cannot_be_read_says_why_and_never_raises(body, why):
    found = read(body)
    assert isinstance(found, Unreadable)
    assert re.search(why, found.why), found.why
    assert len(found.sha256) == 64
    assert len(found.beginning) <= 4_096


def test_job_id_is_the_same_each_time_and_begins_with_the_time():
    place = Place(LOG, "tasks", 3, 12, 1_767_225_600_123)
    assert place.job_id == "019b76da-a87b-7e05-afeb-d0b6de5fd28b"  # in every version
    assert UUID(place.job_id).version == 7
    assert int(place.job_id[:8] + place.job_id[9:13], 16) == 1_767_225_600_123


def test_messages_of_other_places_and_groups_have_other_ids():
    places = [
        Place(log, "tasks", partition, offset, 5)
        for log in (LOG, log_digest("cluster", "topic", "another"))
        for partition in (0, 1)
        for offset in (0, 1, 2)
    ]
    assert len({place.job_id for place in places}) == len(places)


@pytest.mark.parametrize("key", [b"customer-7", b"", b"\x00\x01", "ü".encode(), b"base64:x"])
def test_key_comes_back_from_the_meta(key):
    assert bytes_of_entry(entry_of_bytes(key)) == key


def test_place_is_in_the_meta_and_a_long_key_is_not():
    place = Place(LOG, "tasks", 3, 12, 5)
    assert read_meta(with_place('{"a":"b"}', place, b"k" * 10_000)) == {
        "stream-topic": "tasks",
        "stream-partition": "3",
        "stream-offset": "12",
        "a": "b",
    }


NAMES = st.text("abc-stream", min_size=1, max_size=12) | st.sampled_from([TOPIC_ENTRY, KEY_ENTRY])
VALUES = st.text(st.characters(exclude_categories=["C"]), max_size=40)


@given(
    st.none() | st.dictionaries(NAMES, VALUES, max_size=32),
    st.none() | st.binary(max_size=400),
    st.integers(0, 10**12),
)
def test_meta_with_the_place_is_that_of_the_rules(
    meta: dict[str, str] | None, key: bytes | None, offset: int
):
    """However it is put together: the place wins, and the producer's entries come along as far as they fit."""
    own = {TOPIC_ENTRY: "tasks", PARTITION_ENTRY: "3", OFFSET_ENTRY: str(offset)}
    if key is not None and (shown := entry_of_bytes(key)) is not None:
        own[KEY_ENTRY] = shown
    text = checked_meta(meta or {})
    place = Place(b"log", "tasks", 3, offset, 0)
    assert with_place(text, place, key) == with_inherited(checked_meta(own), text)
