"""The search box: what a person types is read as a filter, and written again in the same words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.server.dashboard.search_box import read_search, suggestions, write_search

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TASKS, QUEUES = ["send_email", "report:daily"], ["mail"]


def read(text: str) -> dict[str, Any]:
    found = read_search(text, now=NOW, tasks=TASKS, queues=QUEUES)
    assert found.problems == []
    return found.where


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", {}),
        ("state:dead task:send_email", {"state": "dead", "task": "send_email"}),
        ('error:"connection refused"', {"error": "connection refused"}),
        (r'error:"a \"quoted\" word"', {"error": 'a "quoted" word'}),
        ("send_email", {"task": "send_email"}),
        ("mail", {"queue": "mail"}),
        ("dead", {"state": "dead"}),
        ("payload.x:" + "[" * 1_500, {"payload": {"x": "[" * 1_500}}),
        ("timeout", {"error": "timeout"}),
        ("01a1edac", {"ids": ["01a1edac"]}),
        ("id:01a1 id:01a2", {"ids": ["01a1", "01a2"]}),
        ("group:b4eba7ca67e1af14", {"fingerprint": "b4eba7ca67e1af14"}),
        ("correlation:order-7", {"correlation_id": "order-7"}),
        ("task:report:daily", {"task": "report:daily"}),
        ("after:2h", {"enqueued_after": NOW - timedelta(hours=2)}),
        ("ended-before:2026-02-01", {"finished_before": datetime(2026, 2, 1, tzinfo=UTC)}),
        ("payload.user_id:42", {"payload": {"user_id": 42}}),
        ('payload.user.name:"Ada L" payload.ok:true', {"payload": {"user.name": "Ada L", "ok": True}}),
        ("payload.id:042", {"payload": {"id": "042"}}),
    ],
)
def test_what_is_typed_is_a_filter(text: str, where: dict[str, Any]):
    assert read(text) == where


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("foo:bar", "foo: is not searched for; the names are state, queue"),
        ("state:dead state:ready", "state: was given twice"),
        (
            "after:yesterday",
            "after: takes a time such as 2026-03-01T12:00 or 2h for two hours ago, not 'yesterday'",
        ),
        ("payload.:1", "payload. needs the name of a value"),
        ("x" * 2_001, "at most 2,000 characters, not 2,001"),
        ("after:999999999999d", "after: takes a time"),
        ("after:0001-01-01T00:00+14:00", "after: takes a time"),
    ],
)
def test_what_is_not_understood_is_said(text: str, problem: str):
    found = read_search(text, now=NOW)
    assert len(found.problems) == 1
    assert problem in found.problems[0]


_PLAIN = st.text(max_size=30).filter(
    lambda text: text.strip() and not any(c < " " or c == "\x7f" for c in text)
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "state": st.sampled_from(["dead", "ready"]),
            "task": _PLAIN,
            "error": _PLAIN,
            "ids": st.lists(st.from_regex(r"[0-9a-f]{8}", fullmatch=True), min_size=1, max_size=3),
            "enqueued_after": st.just(NOW),
            "payload": st.dictionaries(
                st.from_regex(r"[a-z_]{1,8}(\.[a-z]{1,4})?", fullmatch=True),
                st.one_of(
                    st.booleans(),
                    st.none(),
                    st.integers(-9, 9),
                    st.from_regex(r"[a-z\" \\:]{1,9}x", fullmatch=True),
                ),
                min_size=1,
                max_size=3,
            ),
        },
    )
)
def test_a_filter_that_is_written_is_read_the_same(where: dict[str, Any]):
    found = read_search(write_search(where), now=NOW)
    assert (found.where, found.problems) == (where, [])


@given(st.text(max_size=200))
def test_no_text_breaks_it(text: str):
    found = read_search(text, now=NOW, tasks=TASKS, queues=QUEUES)
    assert found.where or found.problems or not text.strip() or text.strip(' ":') == ""
    suggestions(text, tasks=TASKS, queues=QUEUES)


def test_completion_knows_names_states_tasks_and_queues():
    def completed(text: str) -> list[str]:
        return suggestions(text, tasks=TASKS, queues=QUEUES)

    assert completed("st") == ["state:"]
    assert completed("state:de") == ["state:dead", "state:succeeded"]
    assert completed("state:dead ema") == ["state:dead task:send_email"]
    assert completed("task:daily") == ['task:"report:daily"']
    assert completed("queue:") == ["queue:mail"]
