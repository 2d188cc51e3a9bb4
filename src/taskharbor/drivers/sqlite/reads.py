"""What can be asked: lists, counts, history, queues, leases."""

from __future__ import annotations

from collections import Counter

from taskharbor.drivers.base import LeaseRecord
from taskharbor.drivers.sqlite import leases
from taskharbor.drivers.sqlite.depths import Depths
from taskharbor.drivers.sqlite.places import READS
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.stored import STATES, Reading, attempt_of, is_text
from taskharbor.records import (
    AttemptRecord,
    QueueRecord,
    State,
    StepRecord,
)


def counts(session: Session, depths: Depths, queue: str | None) -> dict[State, int]:
    totals: Counter[State] = Counter()
    for name, (ready, scheduled, _) in depths.items():
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


def queues(session: Session, depths: Depths) -> list[QueueRecord]:
    paused = leases.paused_queues(session)
    running = _running_by_queue(session)
    found = []
    for name in sorted({*paused, *running, *depths}):
        ready, scheduled, oldest = depths.get(name, (0, 0, None))
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
