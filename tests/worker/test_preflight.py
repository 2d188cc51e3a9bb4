"""The checks before a begin: pure questions, asked without an event loop."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import Harbor
from taskharbor.clock import MICROS_PER_SECOND, ManualClock
from taskharbor.drivers.base import Claimed
from taskharbor.rules.aside import hold_label
from taskharbor.rules.outcome import CancelledOnRequest, Expired, HandedBack, Held, Missed, Unrunnable
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.leases import HeldLease, StoreTime
from taskharbor.worker.pipeline.preflight import (
    PREFLIGHT,
    NotOurs,
    is_routine,
    payload_does_not_fit,
    preflight,
)

NOW = 1_000 * MICROS_PER_SECOND
LATER = NOW + 60 * MICROS_PER_SECOND
SKIPPING = '{"recurrence":{"name":"daily","schedule":"0 0 * * *","misfire":"skip","misfire_grace":5.0}}'
CLAIMED = Claimed(
    id="1",
    task="add",
    payload='{"n":1}',
    queue="default",
    priority=0,
    enqueued_at=NOW,
    run_at=NOW,
    attempts=0,
    number=1,
    first_number=1,
)


def execution(
    claimed: Claimed = CLAIMED,
    *,
    is_closing: bool = False,
    lease: HeldLease | None = None,
    holds: frozenset[str] = frozenset(),
) -> Execution:
    harbor, clock = Harbor("memory://"), ManualClock()

    @harbor.task(name="add")
    async def add(n: int) -> int:
        return n

    pipeline: Any = SimpleNamespace(is_closing=is_closing, holds=holds)
    return Execution.of(claimed, lease or HeldLease("token", LATER), harbor, StoreTime(clock), pipeline)


def lost() -> HeldLease:
    lease = HeldLease("token", LATER)
    lease.lost = True
    return lease


def cancelled(**facts: Any) -> Execution:
    asked = execution(**facts)
    asked.ask_to_stop("cancel")
    return asked


UNKNOWN = replace(CLAIMED, task="nothing")
EXPIRED = replace(CLAIMED, expires_at=NOW)
UNREADABLE = replace(CLAIMED, options="{")
UNFIT = replace(CLAIMED, payload='{"n":"one"}')
MISSED = replace(
    CLAIMED, options=SKIPPING, due_at=NOW - 6 * MICROS_PER_SECOND, run_at=NOW - 6 * MICROS_PER_SECOND
)

IN_THEIR_ORDER = [
    (lambda: execution(lease=lost()), NotOurs),
    (lambda: execution(is_closing=True), HandedBack),
    (lambda: execution(lease=HeldLease("token", NOW)), HandedBack),
    (lambda: execution(holds=frozenset({hold_label("task", "add")})), Held),
    (lambda: execution(UNKNOWN), Unrunnable),
    (lambda: execution(EXPIRED), Expired),
    (lambda: execution(UNREADABLE), Unrunnable),
    (lambda: execution(UNFIT), Unrunnable),
    (lambda: execution(MISSED), Missed),
    (cancelled, CancelledOnRequest),
]


@pytest.mark.parametrize("position", range(len(PREFLIGHT)), ids=lambda position: PREFLIGHT[position].__name__)
def test_each_check_objects_to_what_it_is_named_after_and_no_earlier_one_does(position: int):
    make, objection = IN_THEIR_ORDER[position]
    refused = make()
    assert [type(check(refused, NOW)) for check in PREFLIGHT[:position]] == [type(None)] * position
    assert isinstance(preflight(refused, NOW), objection)


def test_job_without_any_objection_begins_with_its_arguments():
    ready = execution()
    assert preflight(ready, NOW) is None
    assert ready.arguments == {"n": 1}


def test_routine_job_passes_every_check_but_that_of_its_payload():
    jobs = [CLAIMED, UNKNOWN, EXPIRED, UNREADABLE, UNFIT, MISSED]
    leases = [lambda: HeldLease("token", LATER), lambda: HeldLease("token", NOW), lost]
    routine = 0
    for claimed, lease, is_closing, make in itertools.product(
        jobs, leases, (False, True), (execution, cancelled)
    ):
        found = make(claimed=claimed, lease=lease(), is_closing=is_closing)
        if is_routine(found, NOW):
            routine += 1
            assert [
                check for check in PREFLIGHT if check is not payload_does_not_fit and check(found, NOW)
            ] == []
    assert routine == 2  # CLAIMED and UNFIT


@pytest.mark.parametrize(
    ("has_begun", "objection"), [(None, type(None)), (True, type(None)), (False, Missed)]
)
def test_late_occurrence_is_dropped_only_when_no_attempt_of_it_can_have_begun(
    has_begun: Any, objection: type
):
    late = execution(replace(MISSED, number=2))
    late.run_has_begun = has_begun
    assert isinstance(preflight(late, NOW), objection)
