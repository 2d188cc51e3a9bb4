"""Retry metrics: a readable record of the retries of a job's present run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from taskharbor import Harbor, Job, RetryAfter, RetryMetrics, RetryPolicy, State, Unrecoverable, Worker
from taskharbor.client.retry_metrics import ROWS_MIN, counted_failures
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Transition
from taskharbor.records import AttemptRecord, AttemptStatus, JobRecord
from taskharbor.sync import run_inline

STEADY = RetryPolicy(max_attempts=4, initial=1, maximum=60, multiplier=2, jitter=None)
AT_ONCE = RetryPolicy(max_attempts=4, initial=0, jitter=None)


def work(harbor: Harbor) -> None:
    Worker(harbor, retry=STEADY).drain_sync()


def work_for(harbor: Harbor, clock: ManualClock, seconds: int) -> None:
    """Work for so many seconds of the store's time, with a look in every one of them."""
    work(harbor)
    for _ in range(seconds):
        clock.advance(1)
        work(harbor)


def flaky(harbor: Harbor, *errors: Exception | None, name: str = "flaky", **options: Any) -> Job[None]:
    """A job whose attempts end so, one after the other; the last is for all that follow."""
    ends = list(errors)

    @harbor.task(name=name, **options)
    def handler() -> None:
        error = ends.pop(0) if len(ends) > 1 else ends[0]
        if error is not None:
            raise error

    return handler.enqueue()


def shown(job: Job[Any]) -> str:
    return str(job.refresh().retry_metrics())


# -- the line ------------------------------------------------------------------------------------


def test_metrics_are_shown_as_one_line():
    metrics = RetryMetrics("send_email")
    metrics.total_attempts = 3
    metrics.successful_at = 2
    metrics.last_error = "timeout"
    metrics.backoff_seconds = 3.0
    assert str(metrics) == (
        "Task: send_email | SUCCESS at attempt 2 | Total Attempts: 3 | Last Error: timeout | Backoff: 3.0s"
    )
    metrics.successful_at = None
    assert str(metrics) == (
        "Task: send_email | FAILED | Total Attempts: 3 | Last Error: timeout | Backoff: 3.0s"
    )


def test_what_there_is_not_is_left_out_of_the_line():
    assert str(RetryMetrics("t")) == "Task: t | FAILED | Total Attempts: 0"
    assert str(RetryMetrics("t", 1, 1)) == "Task: t | SUCCESS at attempt 1 | Total Attempts: 1"
    assert str(RetryMetrics("t", 1, 0, "", 0)) == "Task: t | FAILED | Total Attempts: 1"


@pytest.mark.parametrize(
    ("seconds", "text"), [(3, "3.0s"), (0.05, "0.05s"), (0.39217, "0.392s"), (4000.25, "4000.25s")]
)
def test_backoff_is_shown_in_seconds_to_the_millisecond(seconds: float, text: str):
    assert str(RetryMetrics("t", backoff_seconds=seconds)).endswith(f"| Backoff: {text}")


def test_error_of_several_lines_stays_on_the_line():
    line = str(RetryMetrics("t", last_error="no\nluck\r\ntoday"))
    assert line == "Task: t | FAILED | Total Attempts: 0 | Last Error: no luck today"


# -- of a job --------------------------------------------------------------------------------------


def test_metrics_follow_a_job_from_its_enqueue_to_its_success(timed: Harbor, clock: ManualClock):
    job = flaky(timed, OSError("away"), OSError("timeout"), None)
    assert shown(job) == "Task: flaky | FAILED | Total Attempts: 0"
    work(timed)
    assert (
        shown(job) == "Task: flaky | FAILED | Total Attempts: 1 | Last Error: OSError: away | Backoff: 1.0s"
    )
    work_for(timed, clock, 3)
    assert shown(job) == (
        "Task: flaky | SUCCESS at attempt 3 | Total Attempts: 3 | Last Error: OSError: timeout | Backoff: 3.0s"
    )


def test_metrics_are_those_of_the_moment_when_the_job_was_read(timed: Harbor, clock: ManualClock):
    job = flaky(timed, OSError("away"), OSError("timeout"), None)
    work(timed)
    once = job.refresh()
    work_for(timed, clock, 3)
    assert once.retry_metrics() == RetryMetrics("flaky", 1, None, "OSError: away", 1.0)
    assert job.retry_metrics() == RetryMetrics("flaky")


def test_last_failure_is_granted_no_backoff(timed: Harbor, clock: ManualClock):
    job = flaky(timed, OSError("away"), max_attempts=3)
    work_for(timed, clock, 3)
    assert job.refresh().state is State.DEAD
    assert (
        shown(job) == "Task: flaky | FAILED | Total Attempts: 3 | Last Error: OSError: away | Backoff: 3.0s"
    )


def test_unrecoverable_failure_counts_as_the_last(timed: Harbor, clock: ManualClock):
    job = flaky(timed, RetryAfter(5, "slow down"), Unrecoverable("gone"))
    work_for(timed, clock, 5)
    assert (
        shown(job)
        == "Task: flaky | FAILED | Total Attempts: 2 | Last Error: Unrecoverable: gone | Backoff: 5.0s"
    )


def test_requeued_job_begins_anew(timed: Harbor, clock: ManualClock):
    job = flaky(timed, OSError("away"), OSError("away"), OSError("timeout"), None, max_attempts=2)
    work_for(timed, clock, 1)
    timed.dlq.requeue(job.id)
    assert shown(job) == "Task: flaky | FAILED | Total Attempts: 0"
    work_for(timed, clock, 1)
    assert shown(job) == (
        "Task: flaky | SUCCESS at attempt 2 | Total Attempts: 2 | Last Error: OSError: timeout | Backoff: 1.0s"
    )


def test_requeue_that_keeps_the_failures_keeps_their_metrics(timed: Harbor, clock: ManualClock):
    job = flaky(timed, OSError("away"), OSError("timeout"), None, max_attempts=2)
    work_for(timed, clock, 1)
    timed.dlq.requeue(job.id, reset_attempts=False)
    work(timed)
    assert shown(job) == (
        "Task: flaky | SUCCESS at attempt 3 | Total Attempts: 3 | Last Error: OSError: timeout | Backoff: 1.0s"
    )


def test_job_that_was_brought_forward_keeps_the_backoff_that_it_was_granted(timed: Harbor):
    job = flaky(timed, RetryAfter(600, "slow down"), None)
    work(timed)
    timed.jobs.run_now(job.id)
    work(timed)
    assert job.refresh().retry_metrics().backoff_seconds == 600.0


def test_loss_is_neither_an_attempt_nor_a_backoff(
    timed: Harbor, clock: ManualClock, claim: Callable[..., Any]
):
    job = flaky(timed, OSError("away"), None)
    work(timed)
    clock.advance(1)
    claim(timed, seconds=30)
    clock.advance(30)
    work(timed)
    assert [str(attempt.status) for attempt in job.history()] == ["succeeded", "lost", "failed"]
    assert job.refresh().retry_metrics() == RetryMetrics("flaky", 2, 2, "OSError: away", 1.0)


def test_job_that_dies_of_a_loss_shows_it_as_its_last_error(
    timed: Harbor, clock: ManualClock, claim: Callable[..., Any]
):
    job = flaky(timed, None, delivery="at_most_once")
    claim(timed, seconds=30)
    clock.advance(30)
    work(timed)
    dead = job.refresh()
    assert (dead.state, dead.reason) == ("dead", "lost")
    assert dead.retry_metrics() == RetryMetrics("flaky", 0, None, dead.error)
    assert dead.error is not None


async def test_timeout_is_a_failure(harbor: Harbor):
    @harbor.task(timeout=0.01, max_attempts=2, retry=AT_ONCE)
    async def wait() -> None:
        await asyncio.Event().wait()

    job = await wait.aenqueue()
    await Worker(harbor).drain()
    job = await job.arefresh()
    [last, first] = await job.ahistory()
    assert (last.status, first.status) == ("timed_out", "timed_out")
    assert (last.retry_delay, first.retry_delay) == (None, 0.0)
    assert await job.aretry_metrics() == RetryMetrics(job.task, 2, None, last.error)


def test_occurrence_of_a_schedule_has_its_own_metrics(timed: Harbor, clock: ManualClock):
    ends = [OSError("away"), None]

    @timed.task(name="tick")
    def tick() -> None:
        if error := ends.pop(0):
            raise error

    schedule = timed.schedules.add("tick", "tick", schedule="@every 60s")
    job = timed.jobs.get(schedule.id)
    clock.advance(60)
    work(timed)
    assert job.refresh().retry_metrics() == RetryMetrics("tick", 1, None, "OSError: away", 1.0)
    work_for(timed, clock, 1)
    assert job.refresh().retry_metrics() == RetryMetrics("tick")


def test_dead_letter_of_a_schedule_has_the_metrics_of_its_run(timed: Harbor, clock: ManualClock):
    @timed.task(name="tick", max_attempts=2)
    def tick() -> None:
        raise OSError("away")

    timed.schedules.add("tick", "tick", schedule="@every 60s", dead_letter=True)
    clock.advance(60)
    work_for(timed, clock, 1)
    [dead] = timed.dlq.list()
    assert dead.retry_metrics() == RetryMetrics("tick", 2, None, "OSError: away", 1.0)


# -- what is read --------------------------------------------------------------------------------


class CountingHistory:
    """Counts the reads of the history."""

    def __init__(self, harbor: Harbor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits: list[int] = []
        history = harbor.driver.history

        async def counted(job_id: str, limit: int = 100) -> list[AttemptRecord]:
            self.limits.append(limit)
            return await history(job_id, limit)

        monkeypatch.setattr(harbor.driver, "history", counted)


def test_job_that_never_failed_needs_no_read(harbor: Harbor, monkeypatch: pytest.MonkeyPatch):
    job = flaky(harbor, None)
    work(harbor)
    job = job.refresh()
    reads = CountingHistory(harbor, monkeypatch)
    assert job.retry_metrics() == RetryMetrics("flaky", 1, 1)
    assert reads.limits == []


def test_failures_are_found_behind_many_attempts_that_count_for_nothing(
    timed: Harbor, clock: ManualClock, claim: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    job = flaky(timed, OSError("away"), None)
    work(timed)
    clock.advance(1)
    for n in range(ROWS_MIN + 1):
        [held] = claim(timed).jobs
        released = Transition(
            f"vanishing/{n}", held.id, held.number, AttemptStatus.RELEASED, State.READY, held.attempts
        )
        run_inline(timed.driver.settle([released]))
    job = job.refresh()
    reads = CountingHistory(timed, monkeypatch)
    assert job.retry_metrics() == RetryMetrics("flaky", 1, None, "OSError: away", 1.0)
    assert reads.limits == [ROWS_MIN + 1, 10 * (ROWS_MIN + 1)]


def row(number: int, status: AttemptStatus, retry_count: int) -> AttemptRecord:
    return AttemptRecord("j", number, status, retry_count, "w", 0, 0)


def test_failures_of_the_present_run_are_the_newest_of_their_count():
    failed, timed_out, lost = AttemptStatus.FAILED, AttemptStatus.TIMED_OUT, AttemptStatus.LOST
    rows = [
        row(9, failed, 2),  # after the job was read
        row(8, failed, 2),  # counted for nothing, as that of a task nobody knows
        row(7, timed_out, 1),
        row(6, lost, 1),
        row(5, lost, 0),
        row(4, failed, 0),
        row(3, failed, 2),  # of the run before
        row(2, failed, 1),
        row(1, failed, 0),
    ]
    job = JobRecord("j", "t", "{}", "q", 0, State.DEAD, 0, 0, attempts=2, number=8)
    assert [each.number for each in counted_failures(job, rows)] == [7, 4]


def test_failures_after_the_job_was_read_are_left_out():
    """Another process has requeued it meanwhile, and it has failed again."""
    rows = [row(3, AttemptStatus.FAILED, 0), row(2, AttemptStatus.FAILED, 1), row(1, AttemptStatus.FAILED, 0)]
    once = JobRecord("j", "t", "{}", "q", 0, State.READY, 0, 0, attempts=1, number=1)
    assert [each.number for each in counted_failures(once, rows)] == [1]


# -- failed_at -------------------------------------------------------------------------------------


def test_failed_at_is_when_the_latest_attempt_failed(timed: Harbor, clock: ManualClock):
    job = flaky(timed, OSError("away"), OSError("away"), None)
    began = job.enqueued_at
    assert job.failed_at is None
    work(timed)
    assert job.refresh().failed_at == began
    work_for(timed, clock, 1)
    assert job.refresh().failed_at == began + timedelta(seconds=1)
    work_for(timed, clock, 2)
    assert (job.refresh().state, job.refresh().failed_at) == ("succeeded", None)


def test_failed_at_of_a_dead_job_is_when_it_died(
    timed: Harbor, clock: ManualClock, claim: Callable[..., Any]
):
    failed = flaky(timed, OSError("away"), max_attempts=2)
    work_for(timed, clock, 1)
    lost = flaky(timed, None, name="once", delivery="at_most_once")
    claim(timed, seconds=30)
    clock.advance(30)
    work(timed)
    for job in (failed.refresh(), lost.refresh()):
        assert job.state is State.DEAD
        assert job.failed_at == job.finished_at
    timed.dlq.requeue(failed.id)
    assert failed.refresh().failed_at is None
