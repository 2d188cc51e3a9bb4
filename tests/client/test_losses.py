"""Verbs that come upon an expired lease tell of what was lost, as a worker would."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Any

import pytest

from taskharbor import Event, Harbor
from taskharbor.clock import ManualClock
from tests.worker.stage import said

VERBS: dict[str, Callable[[Harbor, str], Any]] = {
    "one": lambda harbor, job_id: harbor.dlq.discard(job_id),
    "all": lambda harbor, _: harbor.jobs.cancel_all(queue="none"),
    "requeue_all": lambda harbor, _: harbor.dlq.requeue_all(queue="none"),
    "discard_all": lambda harbor, _: harbor.dlq.discard_all(queue="none"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_at_most_once_job_that_a_verb_finds_lost_is_told_of(
    timed: Harbor, clock: ManualClock, claim: Any, verb: str, caplog: pytest.LogCaptureFixture
):
    events: queue.Queue[Event] = queue.Queue()
    timed.on("lost")(events.put)
    timed.on("dead")(events.put)
    job = timed.enqueue("t", delivery="at_most_once", correlation_id="c")
    claim(timed)
    clock.advance(31)
    with caplog.at_level(logging.INFO, "taskharbor"):
        VERBS[verb](timed, job.id)
    timed.events.close()
    lost, dead = events.get_nowait(), events.get_nowait()
    assert (lost.name, dead.name, dead.reason) == ("lost", "dead", "lost")
    for event in (lost, dead):
        assert (event.job_id, event.attempt, event.worker) == (job.id, 1, "vanishing")
        assert event.correlation_id == "c"
    [line] = [record for record in caplog.records if said(record).endswith(" is dead, reason lost")]
    assert line.levelno == logging.ERROR
    assert line.fields["job"] == job.id  # type: ignore[attr-defined]
    assert line.fields["reason"] == "lost"  # type: ignore[attr-defined]


def test_a_job_that_runs_again_is_told_of_as_lost(
    timed: Harbor, clock: ManualClock, claim: Any, caplog: pytest.LogCaptureFixture
):
    events: queue.Queue[Event] = queue.Queue()
    for name in ("lost", "dead", "cancelled"):
        timed.on(name)(events.put)
    job = timed.enqueue("t")
    claim(timed)
    clock.advance(31)
    with caplog.at_level(logging.INFO, "taskharbor"):
        timed.jobs.update(job.id, priority=3)
    timed.events.close()
    assert [event.name for event in events.queue] == ["lost"]
    told = [said(record) for record in caplog.records]
    assert f"Job {job.id} was lost with its worker and runs again" in told


def test_a_job_that_was_asked_to_end_is_told_of_as_lost_and_cancelled(
    timed: Harbor, clock: ManualClock, claim: Any
):
    events: queue.Queue[Event] = queue.Queue()
    for name in ("lost", "dead", "cancelled"):
        timed.on(name)(events.put)
    job = timed.enqueue("t")
    claim(timed)
    timed.jobs.cancel(job.id)
    clock.advance(31)
    timed.jobs.delete(job.id)
    timed.events.close()
    assert [event.name for event in events.queue] == ["lost", "cancelled"]
