"""What keeps a job from running: the jobs before it, the jobs that it waits for, what workers hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.drivers.memory.leases import after
from taskharbor.drivers.memory.store import Store
from taskharbor.records import State


def count_before(store: Store, job_id: str, queues: Sequence[str] | None, limit: int, now: int) -> int | None:
    """Count along the same line that a claim takes its jobs from: priority, then due time, then id."""
    job = store.jobs.get(job_id)
    if job is None or job.standing_at(now).state is not State.READY:
        return None
    places = store.places(job.at.suspect)
    # Those that stand aside are not in the way: only some workers take them.
    asked = places.queues() if queues is None else dict.fromkeys(queues)
    before = 0
    for priority, order in places.orders(queue for queue in asked if queue not in store.paused):
        if priority > job.row.priority:
            before += order.count_before(after(now))
        elif priority == job.row.priority:
            before += order.count_before(job.spot)
    return min(before, limit)


def waits_for(store: Store, job_id: str, limit: int) -> list[str]:
    job = store.jobs.get(job_id)
    if job is None or job.state is not State.WAITING:
        return []
    return list(islice((member for member in dict.fromkeys(job.depends_on) if member in job.unmet), limit))


def begun_at(store: Store, job_id: str) -> int | None:
    job = store.jobs.get(job_id)
    return None if job is None or job.lease is None else job.lease.told_running.get(job_id)


def worker_loads(store: Store, now: int) -> dict[str, WorkerLoad]:
    loads: dict[str, WorkerLoad] = {}
    for lease in store.leases.values():
        if not lease.expired(now):
            load = loads.get(lease.worker, WorkerLoad())
            running = min(len(lease.told_running), len(lease.open))
            loads[lease.worker] = WorkerLoad(load.held + len(lease.open), load.running + running)
    return loads
