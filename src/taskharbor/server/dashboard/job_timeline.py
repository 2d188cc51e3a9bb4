"""The timeline of one job: what it waited for, which worker executed it when, and what operators did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from taskharbor.client.handle import Step
from taskharbor.codec import counted
from taskharbor.records import State
from taskharbor.server.dashboard.rendering import seconds as in_words
from taskharbor.server.drawing import Bar, Mark, Row
from taskharbor.views.actions import ActionDocument
from taskharbor.views.job_documents import AttemptDocument, JobDocument

_ENDED = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})
_KINDS = {
    "SUCCESS": "succeeded",
    "FAILED": "failed",
    "TIMED_OUT": "timed_out",
    "LOST": "lost",
    "CANCELLED": "cancelled",
    "RELEASED": "released",
    "SLEPT": "slept",
}


def job_rows(
    job: JobDocument,
    attempts: Sequence[AttemptDocument],
    actions: Sequence[ActionDocument],
    steps: Sequence[Step],
    *,
    running_since: datetime | None,
    now: datetime,
) -> list[Row]:
    """Return the rows of a job's timeline. `attempts` are its newest ones, the newest first."""
    oldest_first = list(reversed(attempts))
    rows = [Row("waiting", list(_waits(job, oldest_first, running_since, now)))]
    by_worker: dict[str, list[Bar]] = {}
    for attempt in oldest_first:
        if attempt.started_at is not None:
            by_worker.setdefault(attempt.worker, []).append(_attempt_bar(attempt, steps))
    if running_since is not None and job.worker is not None:
        words = f"attempt {job.number} runs"
        by_worker.setdefault(job.worker, []).append(Bar("running", running_since, None, words))
    rows += [Row(worker, bars) for worker, bars in by_worker.items()]
    if actions:
        rows.append(Row("operators", marks=[_action_mark(action) for action in reversed(actions)]))
    return rows


def child_rows(children: Sequence[JobDocument], address: Callable[[JobDocument], str]) -> list[Row]:
    """Return a row for each child: from when it was enqueued until it ended."""
    return [
        Row(
            f"child {child.task}",
            [
                Bar(
                    str(child.state),
                    child.enqueued_at,
                    child.finished_at,
                    f"child {child.task}: {child.state}",
                    address(child),
                )
            ],
        )
        for child in children
    ]


def _attempt_bar(attempt: AttemptDocument, steps: Sequence[Step]) -> Bar:
    assert attempt.started_at is not None, "only attempts that began are drawn"
    took = (attempt.finished_at - attempt.started_at).total_seconds()
    words = f"attempt {attempt.number}: {_KINDS[attempt.status].replace('_', ' ')} after {in_words(took)}"
    if stored := [step.name for step in steps if step.number == attempt.number]:
        words += f"; stored {counted(len(stored), 'step')}: {', '.join(stored[:5])}" + (
            "…" if stored[5:] else ""
        )
    if attempt.error_message:
        words += f"\n{attempt.error_message[:200]}"
    return Bar(
        _KINDS[attempt.status], attempt.started_at, attempt.finished_at, words, f"#attempt-{attempt.number}"
    )


def _action_mark(action: ActionDocument) -> Mark:
    return Mark("action", action.at, f"{action.verb} by {action.actor or 'a caller without a name'}")


def _waits(
    job: JobDocument, attempts: Sequence[AttemptDocument], running_since: datetime | None, now: datetime
) -> Iterator[Bar]:
    """The spans between attempts: scheduled, ready, backing off, asleep."""
    begins = [attempt.started_at or attempt.finished_at for attempt in attempts]
    if attempts and attempts[0].number == 1:
        yield from _first_wait(job, begins[0])
    for (before, following), begin in zip(pairwise(attempts), begins[1:], strict=True):
        yield from _between(before, following.started_at or begin)
    if job.state in _ENDED:
        return
    if not attempts:
        yield from _first_wait(job, running_since, now)
    elif running_since is not None:
        yield from _between(attempts[-1], running_since)
    elif job.run_at > now:
        kind = "slept" if attempts[-1].status == "SLEPT" else "backoff"
        words = "asleep" if kind == "slept" else "backs off"
        yield Bar(kind, attempts[-1].finished_at, job.run_at, f"{words} until {job.run_at:%H:%M:%S}")
    else:
        yield from _between(attempts[-1], None)


def _first_wait(job: JobDocument, begin: datetime | None, now: datetime | None = None) -> Iterator[Bar]:
    enqueued, due = job.enqueued_at, job.run_at
    if begin is None and now is not None and due > now:
        yield Bar("scheduled", enqueued, due, f"not due until {due:%Y-%m-%d %H:%M:%S}")
    elif begin is None or begin > enqueued:
        kind = "waiting" if job.state is State.WAITING else "ready"
        yield Bar(kind, enqueued, begin, "waits for its first attempt")


def _between(before: AttemptDocument, begin: datetime | None) -> Iterator[Bar]:
    ended = before.finished_at
    if before.status == "SLEPT":
        yield Bar("slept", ended, begin, "asleep")
        return
    if before.retry_delay is not None:
        due = ended + timedelta(seconds=before.retry_delay)
        until = due if begin is None else min(due, begin)
        yield Bar("backoff", ended, until, f"backs off for {in_words(before.retry_delay)}")
        ended = until
    if begin is None or begin > ended:
        yield Bar("ready", ended, begin, "ready: waits for a worker")
