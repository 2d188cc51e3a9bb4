"""Retention: how long finished jobs are kept, and what pruning never touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskharbor import ConfigurationError, Harbor, JobNotFound, Worker
from taskharbor.clock import ManualClock

DAY = 86_400


def all_endings(harbor: Harbor) -> dict[str, Any]:
    @harbor.task(name="t", retry=None)
    def t(fails: bool) -> None:
        if fails:
            raise ValueError

    jobs = {
        "succeeded": t.enqueue(False),
        "dead": t.enqueue(True),
        "cancelled": t.using(delay=10).enqueue(False),
        "scheduled": t.using(delay=365 * DAY).enqueue(False),
    }
    harbor.jobs.cancel(jobs["cancelled"].id)
    Worker(harbor).drain_sync()
    jobs["ready"] = t.enqueue(False)
    assert {state: str(job.refresh().state) for state, job in jobs.items()} == {s: s for s in jobs}
    return jobs


def kept(harbor: Harbor) -> set[str]:
    return {state for state, count in harbor.jobs.counts().items() if count}


def test_by_default_finished_jobs_are_kept_for_a_week_and_dead_ones_without_limit(
    timed: Harbor, clock: ManualClock
):
    jobs = all_endings(timed)
    clock.advance(7 * DAY - 1)
    assert timed.prune() == 0
    clock.advance(2)
    assert timed.prune() == 2
    assert kept(timed) == {"dead", "scheduled", "ready"}
    with pytest.raises(JobNotFound):
        jobs["succeeded"].refresh()
    clock.advance(300 * DAY)
    assert timed.prune() == 0


def test_retention_is_set_state_by_state(url: str, clock: ManualClock):
    with Harbor(url, clock=clock, retention={"dead": DAY, "succeeded": None, "cancelled": 0}) as harbor:
        all_endings(harbor)
        clock.advance(DAY + 1)
        assert harbor.prune() == 2
        assert kept(harbor) == {"succeeded", "scheduled", "ready"}


def test_pruning_can_be_limited(timed: Harbor, clock: ManualClock):
    @timed.task
    def t() -> None: ...

    t.enqueue_many([{}] * 12)
    Worker(timed).drain_sync()
    clock.advance(8 * DAY)
    assert timed.prune(limit=5) == 5
    assert timed.prune(limit=0) == 0
    assert timed.prune() == 7


async def test_pruning_by_the_async_form(timed: Harbor):
    assert await timed.aprune() == 0


@pytest.mark.parametrize("limit", [-1, True, 1.5, "5"])
def test_a_limit_of_pruning_is_a_whole_number(timed: Harbor, limit: Any):
    with pytest.raises(ConfigurationError, match="limit must be a whole number"):
        timed.prune(limit=limit)


@pytest.mark.parametrize(
    "retention",
    [
        {"ready": 5},
        {"gone": 5},
        {"dead": -1},
        {"dead": float("nan")},
        {"dead": "5"},
        {"dead": True},
        5,
        "dead",
    ],
)
def test_retention_that_makes_no_sense_is_refused_at_once(url: str, retention: Any):
    with pytest.raises(ConfigurationError):
        Harbor(url, retention=retention)


def test_a_pruned_key_is_free_again(timed: Harbor, clock: ManualClock, work: Callable[[Harbor], None]):
    @timed.task
    def t() -> None: ...

    first = t.using(idempotency_key="k").enqueue()
    work(timed)
    clock.advance(8 * DAY)
    timed.prune()
    assert t.using(idempotency_key="k").enqueue().id != first.id
