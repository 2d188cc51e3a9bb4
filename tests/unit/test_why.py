"""`rules.why`: the order of the reasons, and the words for times and errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.drivers.base import WorkerRecord
from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.records import JobRecord, Reason, State
from taskharbor.rules.why import CHECKS, explain
from taskharbor.rules.why_facts import Facts, Stop, WhyCode
from taskharbor.rules.why_words import ENDINGS, ERROR_MAX, ago, first_line, span

SECOND = 1_000_000
ROOT = Path(__file__).parents[2]
WORKER = WorkerRecord("w", "host", 1, 2, 0, lease=30 * SECOND)


def job(state: State = State.READY, **more: Any) -> JobRecord:
    return JobRecord("id", "send", "{}", "mail", 0, state, 0, 0, **more)


def why(record: JobRecord, **more: Any) -> WhyCode:
    return explain(Facts(job=record, now=100 * SECOND, **more)).code


def test_reasons_are_checked_in_the_documented_order() -> None:
    section = (ROOT / "docs" / "semantics.md").read_text().partition("\n## Why\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)
    assert documented == list(CHECKS) == list(WhyCode)


def test_what_keeps_every_job_of_a_queue_comes_before_what_keeps_this_one() -> None:
    """Each reason hides those after it: taking them away one by one shows the next."""
    stranger = WorkerRecord("w", "host", 1, 2, 0, tasks=())
    hidden: dict[str, Any] = {"loads": {"w": WorkerLoad(2, 2)}, "before": 5}
    suspect = job(suspect=True)
    stops = {"pause": Stop("mail"), "hold": Stop("send")}
    assert why(suspect, workers=[], **stops, **hidden) == "queue_paused"
    assert why(suspect, workers=[], hold=stops["hold"], **hidden) == "held"
    assert why(suspect, workers=[], **hidden) == "no_worker"
    assert why(suspect, workers=[stranger], **hidden) == "unknown_task"
    assert why(suspect, workers=[WORKER], **hidden) == "suspect"
    assert why(job(), workers=[WORKER], **hidden) == "slots_busy"
    assert why(job(), workers=[WORKER], before=5) == "in_line"


def test_what_keeps_a_running_job_comes_in_its_order() -> None:
    lease = {"worker": "w", "lease_expires_at": 125 * SECOND, "cancel_requested": True}
    running = job(State.RUNNING, **lease)
    assert why(job(State.RUNNING, **lease, lease_expired=True), workers=[], begun_at=1) == "lease_expired"
    assert why(running, workers=[], begun_at=1) == "worker_gone"
    assert why(running, workers=[WORKER], begun_at=1) == "cancel_requested"
    calm = job(State.RUNNING, **{**lease, "cancel_requested": False})
    assert why(calm, workers=[WORKER], begun_at=1) == "running"
    assert why(calm, workers=[WORKER]) == "claimed"


def test_worker_is_gone_when_it_missed_a_heartbeat() -> None:
    """A third of the lease is the time of one; it may be late by another."""
    for left, code in ((20, "claimed"), (11, "claimed"), (10, "worker_gone"), (1, "worker_gone")):
        held = job(State.RUNNING, worker="w", lease_expires_at=(100 + left) * SECOND)
        assert why(held, workers=[WORKER]) == code


@pytest.mark.parametrize(
    ("loads", "before", "code"),
    [
        ({"w": WorkerLoad(9, 2)}, 5, "slots_busy"),
        ({"w": WorkerLoad(9, 1)}, 5, "in_line"),  # short jobs: the line moves
        ({"w": WorkerLoad(2, 0)}, 0, "slots_busy"),
        ({"w": WorkerLoad(1, 0)}, 0, "in_line"),
        ({}, 0, "in_line"),
    ],
)
def test_slots_are_busy_with_what_runs_or_for_the_next_job_with_what_is_claimed(
    loads: dict[str, WorkerLoad], before: int, code: str
) -> None:
    assert why(job(), workers=[WORKER], loads=loads, before=before) == code


@given(st.sampled_from(State), st.booleans(), st.one_of(st.none(), st.integers(0, 20_000)))
def test_every_job_has_a_reason(state: State, known: bool, before: int | None) -> None:
    workers = [WORKER] if known else None
    found = explain(Facts(job=job(state, reason=None), now=0, workers=workers, before=before))
    assert found.sentence
    assert "\n" not in found.sentence
    assert str(found) == found.sentence


def test_every_ending_has_words() -> None:
    assert {str(reason) for reason in Reason} <= ENDINGS.keys()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0.2 s"), (1, "1 s"), (42.4, "42 s"), (119, "119 s"), (120, "2 min"), (3_600, "60 min"),
        (7_200, "2 h"), (86_400, "24 h"), (172_800, "2 d"), (86_400 * 3_650, "3,650 d"),
    ],
)  # fmt: skip
def test_span(seconds: float, text: str) -> None:
    assert span(round(seconds * SECOND)) == text


def test_time_from_now() -> None:
    assert [ago(seconds * SECOND) for seconds in (0, 42, -180)] == ["now", "in 42 s", "3 min ago"]


def test_error_is_shown_by_its_first_line() -> None:
    assert first_line("\n  ValueError: no\n  at x") == "ValueError: no"
    assert first_line(None) == first_line(" \n") == "none was recorded"
    assert len(first_line("x" * 5_000)) == ERROR_MAX


@pytest.mark.parametrize(("before", "per_second"), [(0, None), (5, None), (5, 2.0)])
def test_what_rests_on_the_records_of_workers_says_so(before: int, per_second: float | None) -> None:
    """The only worker may have been killed since: then its record is all that is left of it."""
    found = explain(
        Facts(job=job(), now=100 * SECOND, workers=[WORKER], before=before, per_second=per_second)
    )
    assert "records" in str(found)
    assert "last 50 s" in str(found)
