"""What can be asked: lists, counts, history, queues, leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from taskharbor.drivers.base import LeaseRecord, Page
from taskharbor.drivers.sqlite import leases, places, workflows
from taskharbor.drivers.sqlite.places import READS
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.stored import STATES, Reading, attempt_of, is_text
from taskharbor.records import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    QueueRecord,
    State,
    StepRecord,
)

# Jobs looked at for one page: a filter that matches little gives short pages, not long waits.
SCAN_MAX = 5_000
_AFTER_EVERY_ID = "~"


def list_jobs(session: Session, where: JobFilter, cursor: str | None, limit: int) -> Page:
    """Newest first, from the narrowest place that holds what is asked for."""
    jobs: list[JobRecord] = []
    for scanned, job_id in enumerate(_candidates(session, where, cursor or _AFTER_EVERY_ID), 1):
        record = places.record(session, job_id)
        if record is not None and _matches(record, where):
            jobs.append(record)
        if len(jobs) == limit or scanned == SCAN_MAX:
            return Page(jobs, job_id or None)  # no id comes after an empty one
    return Page(jobs, None)


def _candidates(session: Session, where: JobFilter, before: str) -> Iterator[str]:
    if where.workflow is not None:
        span = workflows.range_of(session, where.workflow)
        within = workflows.WORKFLOWS["ids_in_workflow"]
        return _chunks(before, lambda b, n: session.execute(within, (*span, b, n)).fetchall())
    if where.tag is not None:
        tag = where.tag
        return _chunks(before, lambda b, n: session.execute(READS["ids_by_tag"], (tag, b, n)).fetchall())
    match where.state:
        case State.DEAD | State.CANCELLED as state:
            return _chunks(before, lambda b, n: session.execute(READS["ids_ended"], (state, b, n)).fetchall())
        case State.WAITING:
            return _chunks(before, lambda b, n: session.execute(READS["ids_waiting"], (b, n)).fetchall())
        case State.READY | State.SCHEDULED as state:
            statement, about = READS[f"ids_{state}"], (session.now, where.queue)
            fetch = lambda b, n: session.execute(statement, (*about, b, n)).fetchall()  # noqa: E731
            return _chunks(before, fetch, SCAN_MAX)  # each is a scan of its own
        case State.RUNNING:
            running = (entry.id for lease in leases.all_leases(session) for entry in lease.unsettled())
            return iter(sorted((job_id for job_id in running if job_id < before), reverse=True))
        case _:
            return _chunks(before, lambda b, n: session.execute(READS["ids"], (b, n)).fetchall())


def _chunks(before: str, fetch: Callable[[str, int], list[tuple[Any]]], size: int = 200) -> Iterator[str]:
    while rows := fetch(before, size):
        ids = [job_id for (job_id,) in rows if type(job_id) is str and is_text(job_id)]
        yield from ids
        if len(rows) < size or not ids:
            return
        before = ids[-1]


def _matches(record: JobRecord, where: JobFilter) -> bool:
    return (
        where.state in (None, record.state)
        and where.queue in (None, record.queue)
        and where.task in (None, record.task)
        and (where.tag is None or where.tag in record.options.tags)
    )  # and of the workflow, which is where the candidates come from


def counts(session: Session, queue: str | None) -> dict[State, int]:
    totals: Counter[State] = Counter()
    for name, ready, scheduled, _ in session.execute(READS["ready_by_queue"], (session.now,)):
        if queue in (None, name):
            totals[State.READY] += ready
            totals[State.SCHEDULED] += scheduled
    for name, waiting in session.execute(READS["waiting_by_queue"]):
        if queue in (None, name):
            totals[State.WAITING] += waiting
    for name, state, jobs in session.execute(READS["tallies"]):
        if queue in (None, name) and state in STATES and type(jobs) is int:
            totals[STATES[state]] += jobs
    totals[State.RUNNING] = sum(n for name, n in _running_by_queue(session).items() if queue in (None, name))
    return {state: totals[state] for state in State}


def _running_by_queue(session: Session) -> Counter[str]:
    return Counter(entry.queue for lease in leases.all_leases(session) for entry in lease.unsettled())


def queues(session: Session) -> list[QueueRecord]:
    paused = leases.paused_queues(session)
    running = _running_by_queue(session)
    placed = {
        row[0]: row[1:]
        for row in session.execute(READS["ready_by_queue"], (session.now,))
        if type(row[0]) is str and is_text(row[0])
    }
    found = []
    for name in sorted({*paused, *running, *placed}):
        ready, scheduled, oldest = placed.get(name, (0, 0, None))
        oldest = Reading().optional_instant("run_at", oldest)
        found.append(QueueRecord(name, name in paused, ready, scheduled, running[name], oldest))
    return found


def history(session: Session, job_id: str, limit: int) -> list[AttemptRecord]:
    rows = session.execute(READS["history"], (job_id, limit)).fetchall() if is_text(job_id) else []
    return [attempt_of(job_id, *row[1:]) for row in rows]


def steps(session: Session, job_id: str) -> dict[str, StepRecord]:
    rows = session.execute(READS["steps"], (job_id,)).fetchall()
    return {name: StepRecord(result, number) for name, result, number in rows}


def lease_records(session: Session) -> list[LeaseRecord]:
    return [
        LeaseRecord(
            lease.token, lease.worker, lease.expires_at, lease.is_expired(), lease.open, lease.still_running()
        )
        for lease in leases.all_leases(session)
    ]
