"""What a store and its workers do: counts, queues, and each worker with the jobs that it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from taskharbor.clock import MICROS_PER_SECOND, from_micros
from taskharbor.drivers.capabilities import Records
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.records import State
from taskharbor.views.documents import Document, Time, Uuid, instant
from taskharbor.views.queue_documents import QueueDocument

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.drivers.base import LeaseRecord, WorkerRecord
    from taskharbor.records import JobRecord


class RunningDocument(Document):
    """A job that a worker has been executing for longer than a heartbeat."""

    id: Uuid
    task: str
    started_at: Time
    seconds: float
    overdue_seconds: Annotated[float, Meta(description="How long ago its timeout passed.")] | None
    cancel_requested: bool


class WorkerDocument(Document):
    """A worker that is running or holds leases. If only its leases are known, many fields are null."""

    worker: str
    open: Annotated[int, Meta(description="Jobs that it holds and has not settled.")]
    expires_at: Annotated[Time, Meta(description="When its last lease expires.")] | None
    expired: bool
    running: list[RunningDocument]
    slots: int | None
    queues: Annotated[list[str], Meta(description="The queues that it serves; null: all.")] | None
    host: str | None
    pid: int | None
    started_at: Time | None
    supervisor: str | None
    version: Annotated[str, Meta(description="Of its application.")] | None
    memory_mib: Annotated[int, Meta(description="Resident memory of its process.")] | None
    loop_lag_seconds: (
        Annotated[float, Meta(description="The longest that its event loop ran late in the last seconds.")]
        | None
    )


class Stats(Document):
    """Counts of jobs by state, the queues, and what the workers do."""

    counts: dict[State, int]
    queues: list[QueueDocument]
    workers: list[WorkerDocument]


async def stats_of(harbor: Harbor, running_max: int | None = None) -> Stats:
    """Read the counts, the queues and the workers; see `workers_of`."""
    counts = {State(state): count for state, count in (await harbor.jobs.acounts()).items()}
    queues = [QueueDocument.of(queue) for queue in await harbor.queues.alist()]
    return Stats(counts, queues, await workers_of(harbor, running_max))


async def workers_of(harbor: Harbor, running_max: int | None = None) -> list[WorkerDocument]:
    """Return every worker that is running or holds a lease, with its jobs: the longest first, `running_max` in all."""
    leases = await harbor.driver.leases()
    now = await harbor.driver.now()
    started = {job_id: at for lease in leases for job_id, at in lease.running.items()}
    looked_at = sorted(started, key=lambda job_id: started[job_id])[:running_max]
    records = await harbor.driver.get(looked_at) if looked_at else []
    found = {record.id: record for record in records if record is not None}
    reported = await WORKERS.all(harbor.driver) if Records.offered_by(harbor.driver) else []
    known = {record.name: record for record in reported}
    leases_of: dict[str, list[LeaseRecord]] = {name: [] for name in known}
    for lease in leases:
        leases_of.setdefault(lease.worker, []).append(lease)
    return [
        _worker(
            name,
            held,
            known.get(name),
            [job for lease in held for job in _running(harbor, lease, found, now)],
        )
        for name, held in sorted(leases_of.items())
    ]


def _worker(
    name: str, leases: list[LeaseRecord], record: WorkerRecord | None, running: list[RunningDocument]
) -> WorkerDocument:
    """Join what is known of a worker: a dead one has only leases, one without jobs has only its own record."""
    facts: dict[str, Any] = (
        dict.fromkeys(("slots", "queues", "host", "pid", "started_at", "supervisor", "version"))
        if record is None
        else {"started_at": from_micros(record.started_at)}
    )
    vitals = None if record is None else record.vitals
    return WorkerDocument.of(
        record,
        memory_mib=None if vitals is None else vitals.memory_mib,
        loop_lag_seconds=None if vitals is None else vitals.lag_ms / 1_000,
        worker=name,
        open=sum(lease.open for lease in leases),
        expires_at=instant(max((lease.expires_at for lease in leases), default=None)),
        expired=bool(leases) and all(lease.expired for lease in leases),
        running=sorted(running, key=lambda job: -job.seconds),
        **facts,
    )


def _running(
    harbor: Harbor, lease: LeaseRecord, found: Mapping[str, JobRecord], now: int
) -> list[RunningDocument]:
    return [
        RunningDocument(
            id=job_id,
            task=found[job_id].task,
            started_at=from_micros(at),
            seconds=(seconds := max(0.0, (now - at) / MICROS_PER_SECOND)),
            overdue_seconds=_overdue(harbor, found[job_id], seconds),
            cancel_requested=found[job_id].cancel_requested,
        )
        for job_id, at in lease.running.items()
        if job_id in found
    ]


def _overdue(harbor: Harbor, record: JobRecord, seconds: float) -> float | None:
    """Return how long ago the job should have ended, by its own timeout or, with an application, its task's."""
    timeout = record.options.timeout
    if timeout is None and (task := harbor.tasks.get(record.task)) is not None:
        timeout = task.declared_timeout
    return seconds - timeout if timeout is not None and seconds > timeout else None
