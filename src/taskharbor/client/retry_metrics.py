"""`RetryMetrics`: how often a task was tried, what went wrong last, and how long its retries were put off."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Driver
from taskharbor.records import FAILURES, AttemptRecord, JobRecord, State

ROWS_MIN = 100  # that are read at first: few jobs have more between their failures


class RetryMetrics(Struct):
    """A readable record of retries. `str()` gives it as one line, for a log.

    `job.retry_metrics()` fills one in; you may also fill in your own.
    """

    task: str
    total_attempts: int = 0  # that failed or succeeded
    successful_at: int | None = None  # which of them succeeded, from 1
    last_error: str | None = None
    backoff_seconds: float = 0.0  # the delays granted before retries, in all

    def __str__(self) -> str:
        parts = [
            f"Task: {self.task}",
            f"SUCCESS at attempt {self.successful_at}" if self.successful_at else "FAILED",
            f"Total Attempts: {self.total_attempts}",
        ]
        if self.last_error:
            parts.append(f"Last Error: {' '.join(self.last_error.splitlines())}")
        if self.backoff_seconds:
            parts.append(f"Backoff: {round(float(self.backoff_seconds), 3)}s")
        return " | ".join(parts)


async def read_retry_metrics(driver: Driver, job: JobRecord) -> RetryMetrics:
    """Read from the history what happened in the present run of a job. A job that has not failed needs no read."""
    failures = await _failures(driver, job)
    is_dead, has_succeeded = job.state is State.DEAD, job.state is State.SUCCEEDED
    total = job.attempts + has_succeeded
    last_error = failures[0].error if failures else None
    return RetryMetrics(
        job.task,
        total_attempts=total,
        successful_at=total if has_succeeded else None,
        # A job may also die of what is no failure, such as a loss.
        last_error=(job.error if is_dead else None) or last_error,
        backoff_seconds=sum(row.retry_delay or 0 for row in failures) / MICROS_PER_SECOND,
    )


async def _failures(driver: Driver, job: JobRecord) -> Sequence[AttemptRecord]:
    """Read the failures that the job's `attempts` counts, newest first."""
    limit = ROWS_MIN + job.attempts
    while job.attempts:
        rows = await driver.history(job.id, limit)
        failures = counted_failures(job, rows)
        if len(failures) == job.attempts or len(rows) < limit:
            return failures
        limit *= 10  # losses and hand-backs are in between
    return ()


def counted_failures(job: JobRecord, rows: Sequence[AttemptRecord]) -> list[AttemptRecord]:
    """Select the rows of the failures that the job's `attempts` counts. `rows` is newest first.

    Of the failures with the same count before them, the newest is the one of the present run.
    """
    found: list[AttemptRecord] = []
    for row in rows:
        is_next = row.retry_count == job.attempts - len(found) - 1
        if row.number <= job.number and row.status in FAILURES and is_next:
            found.append(row)
    return found
