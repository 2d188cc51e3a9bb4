"""What the workers do, each with the jobs that it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.views.documents import instant

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.drivers.base import WorkerRecord
    from taskharbor.records import JobRecord


async def workers_of(harbor: Harbor, running_max: int | None = None) -> list[dict[str, Any]]:
    """Each worker that is there or holds a lease, with what it runs: the longest first, `running_max` in all."""
    leases = await harbor.driver.leases()
    now = await harbor.driver.now()
    started = {job_id: at for lease in leases for job_id, at in lease.running.items()}
    records = await harbor.driver.get(sorted(started, key=lambda job_id: started[job_id])[:running_max])
    found = {record.id: record for record in records if record is not None}
    workers: dict[str, dict[str, Any]] = {}
    for lease in sorted(leases, key=lambda lease: (lease.worker, lease.expires_at)):
        worker = workers.setdefault(
            lease.worker,
            {"worker": lease.worker, "open": 0, "expiresAt": None, "expired": True, "running": []},
        )
        worker["open"] += lease.open
        worker["expiresAt"] = instant(lease.expires_at)  # of the last one: they are in that order
        worker["expired"] = worker["expired"] and lease.expired
        worker["running"] += [
            {
                "id": job_id,
                "task": found[job_id].task,
                "startedAt": instant(at),
                "seconds": (seconds := max(0.0, (now - at) / MICROS_PER_SECOND)),
                "overdueSeconds": _overdue(harbor, found[job_id], seconds),
                "cancelRequested": found[job_id].cancel_requested,
            }
            for job_id, at in lease.running.items()
            if job_id in found
        ]
    for worker in workers.values():
        worker["running"].sort(key=lambda job: -job["seconds"])
    return _with_who_is_there(workers, await WORKERS.all(harbor.driver))


def _overdue(harbor: Harbor, record: JobRecord, seconds: float) -> float | None:
    """For how long it should have ended, by its own timeout or, with an application, its task's."""
    timeout = record.options.timeout
    if timeout is None and (task := harbor.tasks.get(record.task)) is not None:
        timeout = task.declared_timeout
    return seconds - timeout if timeout is not None and seconds > timeout else None


def _with_who_is_there(
    workers: dict[str, dict[str, Any]], there: Iterable[WorkerRecord]
) -> list[dict[str, Any]]:
    """A worker that holds nothing is known only by what it told the store; one that has vanished, by its leases."""
    known = {record.name: record for record in there}
    for name in known.keys() - workers.keys():
        workers[name] = {"worker": name, "open": 0, "expiresAt": None, "expired": False, "running": []}
    for name, worker in workers.items():
        record = known.get(name)
        worker |= {
            "slots": record.slots if record else None,
            "queues": record.queues if record else None,
            "host": record.host if record else None,
            "pid": record.pid if record else None,
            "startedAt": instant(record.started_at) if record else None,
            "supervisor": record.supervisor if record else None,
        }
    return [workers[name] for name in sorted(workers)]
