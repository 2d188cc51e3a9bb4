"""Where a job is: its state follows from the place it is found in.

The key of a ready row is computed, not searched: a job that has been attempted went on at its latest
attempt's `next_at`, one that has not is at its own `run_at`. Three key probes find any job.
"""

from __future__ import annotations

from msgspec import Struct

from taskharbor.drivers.sqlite import leases
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.errors import OperationRefused
from taskharbor.job import AttemptStatus, Delivery, JobRecord, Options, Progress, Reason, State, read_options

READS = statements("reads")


class Stored(Struct):
    """The jobs row: what was enqueued."""

    id: str
    queue: str
    task: str
    payload: str
    priority: int
    run_at: int
    enqueued_at: int
    expires_at: int | None
    idempotency_key: str | None
    delivery: Delivery | None
    options: Options
    version: int
    unreadable_options: str | None = None


class Latest(Struct):
    """The latest attempt's row."""

    number: int
    status: str
    attempts: int
    finished_at: int
    next_at: int | None
    result: str | None
    error: str | None


class Place(Struct):
    """Where the job is, and what that place knows of it."""

    state: State
    run_at: int
    number: int
    attempts: int
    first_number: int = 1
    due_at: int | None = None
    expires_at: int | None = None
    delivery: Delivery | None = None
    suspect: bool = False
    reason: Reason | None = None
    finished_at: int | None = None
    lease: leases.Lease | None = None


def stored(session: Session, job_id: str) -> Stored | None:
    row = session.one(READS["job"], (job_id,))
    if row is None:
        return None
    columns = list(row)
    columns[9] = columns[9] and Delivery(columns[9])
    columns[10], unreadable = read_options(columns[10])
    columns.append(unreadable)
    return Stored(*columns)


def latest_attempt(session: Session, job_id: str) -> Latest | None:
    row = session.one(READS["latest_attempt"], (job_id,))
    return None if row is None else Latest(*row)


def find(session: Session, job: Stored, latest: Latest | None) -> Place:
    ended = session.one(READS["ended"], (job.id,))
    if ended is not None:
        state, reason, finished_at, number, attempts, delivery = ended
        return Place(
            State(state),
            job.run_at,
            number,
            attempts,
            delivery=delivery and Delivery(delivery),
            reason=Reason(reason),
            finished_at=finished_at,
        )
    if latest is not None and latest.status == AttemptStatus.SUCCEEDED and latest.next_at is None:
        return Place(
            State.SUCCEEDED,
            job.run_at,
            latest.number,
            latest.attempts,
            delivery=job.delivery,
            finished_at=latest.finished_at,
        )
    return _ready(session, job, latest) or _waiting(session, job) or _running(session, job, latest)


def _ready(session: Session, job: Stored, latest: Latest | None) -> Place | None:
    run_at = job.run_at if latest is None or latest.next_at is None else latest.next_at
    for suspect in (0, 1):
        row = session.one(READS["ready"], (suspect, job.queue, -job.priority, run_at, job.id))
        if row is not None:
            number, attempts, first_number, due_at, expires_at, delivery = row
            state = State.READY if run_at <= session.now else State.SCHEDULED
            return Place(
                state,
                run_at,
                number,
                attempts,
                first_number,
                due_at,
                expires_at,
                delivery and Delivery(delivery),
                bool(suspect),
            )
    return None


def _waiting(session: Session, job: Stored) -> Place | None:
    row = session.one(READS["waiting"], (job.id,))
    if row is None:
        return None
    number, attempts, first_number, expires_at, delivery = row
    return Place(
        State.WAITING,
        job.run_at,
        number,
        attempts,
        first_number,
        expires_at=expires_at,
        delivery=delivery and Delivery(delivery),
    )


def _running(session: Session, job: Stored, latest: Latest | None) -> Place:
    covered = leases.covering(session, job.id)
    if covered is None:
        raise OperationRefused(
            f"the store is inconsistent: job {job.id} is neither ready, waiting, leased nor ended. "
            "Run `taskharbor doctor`, and restore the file from a backup if it finds damage"
        )
    lease, entry = covered
    return Place(
        State.RUNNING,
        entry.run_at,
        entry.number,
        entry.attempts,
        entry.first_number,
        entry.due_at,
        entry.expires_at,
        entry.delivery,
        lease=lease,
    )


def record(session: Session, job_id: str) -> JobRecord | None:
    """Everything a reader may see of a job."""
    job = stored(session, job_id)
    if job is None:
        return None
    latest = latest_attempt(session, job_id)
    return record_at(session, job, latest, find(session, job, latest))


def record_at(session: Session, job: Stored, latest: Latest | None, place: Place) -> JobRecord:
    progress = session.one(READS["progress"], (job.id,))
    lease = place.lease
    return JobRecord(
        id=job.id,
        task=job.task,
        payload=job.payload,
        queue=job.queue,
        priority=job.priority,
        state=place.state,
        enqueued_at=job.enqueued_at,
        run_at=place.run_at,
        attempts=place.attempts,
        number=place.number,
        due_at=place.due_at,
        expires_at=job.expires_at,
        idempotency_key=job.idempotency_key,
        delivery=place.delivery,
        options=job.options,
        depends_on=tuple(row[0] for row in session.execute(READS["dependencies"], (job.id,))),
        version=job.version,
        suspect=place.suspect,
        worker=lease.worker if lease else None,
        lease_expires_at=lease.expires_at if lease else None,
        lease_expired=lease.is_expired() if lease else False,
        cancel_requested=job.id in lease.cancels if lease else False,
        reason=place.reason,
        finished_at=place.finished_at,
        error=latest.error if latest else None,
        last_status=AttemptStatus(latest.status) if latest else None,
        last_finished_at=latest.finished_at if latest else None,
        result=latest.result if latest and place.state is State.SUCCEEDED else None,
        progress=Progress(*progress) if progress else None,
        unreadable_options=job.unreadable_options,
    )
