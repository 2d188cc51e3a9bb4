"""What keeps a job from running: the jobs before it, the jobs that it waits for, what workers hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.drivers.sqlite import claim, leases, places
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import is_text
from taskharbor.records import State
from taskharbor.rules.aside import label_of

WAITS = statements("waits")


def count_before(session: Session, job_id: str, queues: Sequence[str] | None, limit: int) -> int | None:
    """Count along the same line that a claim takes its jobs from: seeks and ranges of one key."""
    found = places.find(session, job_id)
    if found is None or found.at.state is not State.READY:
        return None
    suspect, own_rank = int(found.at.suspect), -found.job.priority
    before = 0
    for queue, rank in _lines(session, suspect, queues):
        if before >= limit or rank > own_rank:
            continue
        if rank < own_rank:
            where: tuple[object, ...] = (suspect, queue, rank, session.now, limit - before)
            before += session.one(WAITS["count_due"], where)[0]
        else:
            where = (suspect, queue, rank, found.at.run_at, job_id, limit - before)
            before += session.one(WAITS["count_earlier"], where)[0]
    return min(before, limit)


def _lines(session: Session, suspect: int, queues: Sequence[str] | None) -> Iterator[tuple[str, int]]:
    """Every queue that is not paused with every priority (as its rank) that has a job there."""
    paused = leases.paused_queues(session)
    for queue in _names(session, suspect) if queues is None else dict.fromkeys(queues):
        if queue in paused:
            continue
        for rank in claim.ranks_of(session, suspect, queue):
            yield queue, rank


def _names(session: Session, suspect: int) -> Iterator[str]:
    """The queues that have a job there. What cannot be a name comes after all that can: a claim sets it aside."""
    row = session.one(leases.CLAIM["next_queue"], (suspect, ""))
    while row is not None and type(row[0]) is str and is_text(row[0]):
        if label_of(row[0]) is None:  # those that stand aside are in the way of none
            yield row[0]
        row = session.one(leases.CLAIM["next_queue"], (suspect, row[0]))


def waits_for(session: Session, job_id: str, limit: int) -> list[str]:
    rows = session.execute(WAITS["waits_for"], (job_id, limit)).fetchall() if is_text(job_id) else []
    return [member for (member,) in rows if type(member) is str and is_text(member)]


def begun_at(session: Session, job_id: str) -> int | None:
    found = places.find(session, job_id)
    return None if found is None or found.lease is None else found.lease.running.get(job_id)


def worker_loads(session: Session) -> dict[str, WorkerLoad]:
    loads: dict[str, WorkerLoad] = {}
    for lease in leases.all_leases(session):
        if not lease.is_expired():
            load = loads.get(lease.worker, WorkerLoad())
            running = min(len(lease.running), lease.open)
            loads[lease.worker] = WorkerLoad(load.held + lease.open, load.running + running)
    return loads
