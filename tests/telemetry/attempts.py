"""Attempts for the tests of metrics: jobs as they were claimed, how they ended, and what the store answered."""

from __future__ import annotations

from typing import Any

from taskharbor.drivers.base import Claimed, SettleAnswer, SettleResult, Transition
from taskharbor.records import AttemptStatus, State
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.catalogue import Metric
from taskharbor.telemetry.metrics.cells import JOB_METRICS, PROCESS_METRICS, Cells
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.telemetry.metrics.totals import Snapshot, Totals

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND

Attempt = tuple[Claimed, Transition, SettleResult]


def new_meter(declared: Any = lambda task: True) -> Meter:
    return Meter(Cells(), declared)


def job(task: str = "send", queue: str = "default", *, number: int = 1, run_at: int = NOW) -> Claimed:
    return Claimed(f"{queue}-{task}-{number}", task, "{}", queue, 0, number, 0, 1, run_at, run_at)


def attempt(
    status: AttemptStatus = AttemptStatus.SUCCEEDED,
    to: State = State.SUCCEEDED,
    *,
    of: Claimed | None = None,
    waited: int = 0,
    took: int = 0,
    begun: bool = True,
    answer: SettleAnswer = SettleAnswer.DONE,
    state: State | None = None,
    run_at: int | None = None,
    **more: Any,
) -> Attempt:
    claimed = of or job()
    began = claimed.run_at + waited
    transition = Transition(
        "token", claimed.id, claimed.number, status, to, started_at=began if begun else None, **more
    )
    return claimed, transition, SettleResult(answer, state, run_at, at=began + took)


def settle(meter: Meter, *attempts: Attempt, seconds: float | None = None) -> None:
    jobs, transitions, answers = (list(column) for column in zip(*attempts, strict=True))
    meter.settled(jobs, transitions, answers, seconds)


def read(meter: Meter) -> Snapshot:
    totals = Totals()
    totals.add(meter.cells)
    return totals.snapshot()


def words_of(snapshot: Snapshot, metric: Metric, queue: str = "default", task: str = "send") -> list[int]:
    """Return the words of one metric."""
    if metric in JOB_METRICS:
        metrics, words = JOB_METRICS, snapshot.jobs[queue, task]
    else:
        metrics, words = PROCESS_METRICS, snapshot.process
    start = catalogue.offsets(metrics)[metric.name]
    return words[start : start + metric.words]


def count_of(snapshot: Snapshot, metric: Metric, queue: str = "default", task: str = "send") -> int:
    """Return the value of a counter, or how often a histogram was observed."""
    words = words_of(snapshot, metric, queue, task)
    return sum(words[:-1]) if metric.kind == "histogram" else words[0]


def sum_of(snapshot: Snapshot, metric: Metric, queue: str = "default", task: str = "send") -> int:
    return words_of(snapshot, metric, queue, task)[-1]


def counters(snapshot: Snapshot, queue: str = "default", task: str = "send") -> dict[str, int]:
    """Return the counters of a series that are not 0."""
    found = {
        metric.name: count_of(snapshot, metric, queue, task)
        for metric in JOB_METRICS
        if metric.kind == "counter"
    }
    return {name: value for name, value in found.items() if value}
