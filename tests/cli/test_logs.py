"""Log lines: one record, one line; nothing forged, no secrets."""

from __future__ import annotations

import io
import json
import logging
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.telemetry.logs import JsonFormatter, KeyValueFormatter, configure, masked_url

TEXT = KeyValueFormatter()
JSON = JsonFormatter()


def record(message: str, *args: object, fields: object = None, **more) -> logging.LogRecord:
    made = logging.LogRecord(
        "taskharbor.worker", logging.INFO, __file__, 1, message, args, more.get("exc_info")
    )
    made.created = 1_767_268_800.123
    if fields is not None:
        made.fields = fields
    return made


def test_a_line_for_people():
    fields = {
        "job": "0197",
        "task": "email:send",
        "attempt": 1,
        "error": 'a "b"',
        "delay": 0.25,
        "none": None,
    }
    assert TEXT.format(record("retry %d of %d", 1, 4, fields=fields)) == (
        "2026-01-01T12:00:00.123Z INFO retry 1 of 4 "
        'job=0197 task=email:send attempt=1 error="a \\"b\\"" delay=0.25'
    )


def test_a_line_for_machines():
    fields = {"job": "0197", "attempt": 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "time": "x", "none": None}
    assert json.loads(JSON.format(record("done", fields=fields))) == {
        "time": "2026-01-01T12:00:00.123Z",
        "level": "INFO",
        "logger": "taskharbor.worker",
        "message": "done",
        "job": "0197",
        "attempt": 1,
        "at": "2026-01-01T00:00:00Z",
        "time_": "x",
    }


@given(st.text(), st.dictionaries(st.text(), st.text() | st.none() | st.floats() | st.lists(st.text())))
def test_nothing_begins_a_line_of_its_own(message, fields):
    for formatter in (TEXT, JSON):
        line = formatter.format(record("%s", message, fields=fields))
        assert len(line.splitlines()) == 1
        assert line.isprintable()
    assert json.loads(JSON.format(record("%s", message, fields=fields)))["level"] == "INFO"


def test_a_traceback_cannot_pass_for_a_record():
    try:
        raise ValueError("no\n2026-01-01T12:00:00.000Z INFO forged\x1b[2J\r")
    except ValueError as error:
        made = record("failed", exc_info=(type(error), error, error.__traceback__))
    first, *rest = TEXT.format(made).split("\n")
    assert first.endswith("INFO failed")
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)
    assert "forged" in json.loads(JSON.format(made))["traceback"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///harbor.db", "sqlite:///harbor.db"),
        ("sqlite:////home/a:b@c/harbor.db", "sqlite:////home/a:b@c/harbor.db"),
        ("memory://", "memory://"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://user:hunter2@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://user:hun@ter/2@host/db", "postgresql://user:***@host/db"),
        ("redis://:hunter2@host/0", "redis://:***@host/0"),
        ("postgresql://host/db?password=hunter2&x=1", "postgresql://host/db?password=***&x=1"),
        ("postgresql://host/db?sslPassword=hunter2", "postgresql://host/db?sslPassword=***"),
    ],
)
def test_passwords_are_masked(url, expected):
    assert masked_url(url) == expected
    assert f"cannot reach {expected} now" in TEXT.format(record("cannot reach %s now", url))
    assert json.loads(JSON.format(record("x", fields={"error": f"at {url}"})))["error"] == f"at {expected}"


@pytest.mark.parametrize(
    "text",
    ["://" + "a" * 300_000, "a://b:" * 50_000, "x@" + "a://b:" * 50_000, "://@" * 75_000, "?a" * 150_000],
    ids=["a long word", "no end", "an early end", "many ends", "many parameters"],
)
def test_masking_takes_no_longer_than_the_text_is_long(text):
    begun = time.process_time()
    assert masked_url(text) == text
    assert time.process_time() - begun < 5  # by the square of the length it would be minutes


def test_fields_that_are_no_mapping_are_left_alone():
    assert TEXT.format(record("x", fields="nonsense")).endswith("INFO x")


def test_configuring_again_replaces_what_was_configured():
    root = logging.getLogger()
    first, second = io.StringIO(), io.StringIO()
    configure("text", "debug", first)
    before = list(root.handlers)
    configure("json", logging.WARNING, second)
    logging.getLogger("taskharbor.worker").warning("careful", extra={"fields": {"job": "1"}})
    logging.getLogger("taskharbor.worker").info("never mind")
    assert first.getvalue() == ""
    [line] = second.getvalue().splitlines()
    assert json.loads(line)["job"] == "1"
    assert len(root.handlers) == len(before)
    assert root.handlers != before
