"""Where a job is: its state follows from the place it is found in.

The key of a ready row is computed, not searched: a job that has been attempted went on at its latest
attempt's `next_at`, one that has not is at its own `run_at`. Three key probes find any job.
"""

from __future__ import annotations

from msgspec import Struct

from taskharbor.drivers.sqlite import leases
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import DELIVERIES, NUMBER_MAX, REASONS, STATES, STATUSES, Reading, is_text
from taskharbor.job import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    AttemptStatus,
    Delivery,
    JobRecord,
    Options,
    Progress,
    Reason,
    State,
    read_options,
)

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
    unreadable_options: str | None
    read: Reading  # what of it could not be read


class Latest(Struct):
    """The latest attempt's row."""

    number: int
    status: AttemptStatus | None  # None: an unknown one
    attempts: int
    finished_at: int
    next_at: int | None
    result: str | None
    error: str | None
    read: Reading


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
    raw: str | None = None  # JSON of the row it was set aside with
    nowhere: bool = False  # no row says where it is


def stored(session: Session, job_id: str) -> Stored | None:
    row = session.one(READS["job"], (job_id,)) if is_text(job_id) else None
    if row is None:
        return None
    (
        _id, queue, task, payload, priority, run_at, enqueued_at, expires_at, key, delivery, options, version,
    ) = row  # fmt: skip
    read = Reading()
    known, unreadable_options = read_options(read.optional_text("options", options))
    return Stored(
        job_id,
        read.text("queue", queue),
        read.text("task", task),
        read.text("payload", payload),
        read.integer("priority", priority, PRIORITY_MIN, PRIORITY_MAX),
        read.instant("run_at", run_at),
        read.instant("enqueued_at", enqueued_at),
        read.optional_instant("expires_at", expires_at),
        read.optional_text("idempotency_key", key),
        read.one_of("delivery", delivery, DELIVERIES),
        known,
        read.integer("version", version),
        unreadable_options,
        read,
    )


def latest_attempt(session: Session, job_id: str) -> Latest | None:
    row = session.one(READS["latest_attempt"], (job_id,))
    if row is None:
        return None
    number, status, attempts, finished_at, next_at, result, error = row
    read = Reading()
    return Latest(
        read.integer("attempts.number", number),
        read.one_of("attempts.status", status, STATUSES),
        read.integer("attempts.attempts", attempts),
        read.instant("attempts.finished_at", finished_at),
        read.optional_instant("attempts.next_at", next_at),
        read.optional_text("attempts.result", result),
        read.optional_text("attempts.error", error),
        read,
    )


def find(session: Session, job: Stored, latest: Latest | None) -> Place:
    ended = session.one(READS["ended"], (job.id,))
    read = job.read
    if latest is not None:
        read.odd |= latest.read.odd
    if ended is not None:
        state, reason, finished_at, number, attempts, delivery, raw = ended
        return Place(
            read.one_of("ended.state", state, STATES) or State.DEAD,
            job.run_at,
            read.integer("ended.number", number),
            read.integer("ended.attempts", attempts),
            delivery=read.one_of("ended.delivery", delivery, DELIVERIES),
            reason=read.one_of("ended.reason", reason, REASONS),
            finished_at=read.instant("ended.finished_at", finished_at),
            raw=read.optional_text("ended.raw", raw),
        )
    if latest is not None and latest.status is AttemptStatus.SUCCEEDED and latest.next_at is None:
        return Place(
            State.SUCCEEDED,
            job.run_at,
            latest.number,
            latest.attempts,
            delivery=job.delivery,
            finished_at=latest.finished_at,
        )
    return (
        _ready(session, job, latest)
        or _waiting(session, job)
        or _running(session, job)
        or _nowhere(job, latest)
    )


def _ready(session: Session, job: Stored, latest: Latest | None) -> Place | None:
    run_at = job.run_at if latest is None or latest.next_at is None else latest.next_at
    for suspect in (0, 1):
        row = session.one(READS["ready"], (suspect, job.queue, -job.priority, run_at, job.id))
        if row is not None:
            number, attempts, first_number, due_at, expires_at, delivery = row
            state = State.READY if run_at <= session.now else State.SCHEDULED
            read = job.read
            return Place(
                state,
                run_at,
                read.integer("ready.number", number),
                read.integer("ready.attempts", attempts),
                read.integer("ready.first_number", first_number, most=NUMBER_MAX + 1),
                read.optional_instant("ready.due_at", due_at),
                read.optional_instant("ready.expires_at", expires_at),
                read.one_of("ready.delivery", delivery, DELIVERIES),
                bool(suspect),
            )
    return None


def _waiting(session: Session, job: Stored) -> Place | None:
    row = session.one(READS["waiting"], (job.id,))
    if row is None:
        return None
    number, attempts, first_number, expires_at, delivery = row
    read = job.read
    return Place(
        State.WAITING,
        job.run_at,
        read.integer("waiting.number", number),
        read.integer("waiting.attempts", attempts),
        read.integer("waiting.first_number", first_number, most=NUMBER_MAX + 1),
        expires_at=read.optional_instant("waiting.expires_at", expires_at),
        delivery=read.one_of("waiting.delivery", delivery, DELIVERIES),
    )


def _running(session: Session, job: Stored) -> Place | None:
    covered = leases.covering(session, job.id)
    if covered is None:
        return None
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


def _nowhere(job: Stored, latest: Latest | None) -> Place:
    """The place of a job that no row places, after a hand in the tables or damage: it can be requeued or deleted."""
    job.read.told("place", "none: it is neither ready, waiting, leased nor ended")
    number, attempts = (0, 0) if latest is None else (latest.number, latest.attempts)
    return Place(State.DEAD, job.run_at, number, attempts, reason=Reason.UNREADABLE, nowhere=True)


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
        depends_on=tuple(
            job.read.text("depends_on", row[0])
            for row in session.execute(READS["dependencies"], (job.id,)).fetchall()
        ),
        version=job.version,
        suspect=place.suspect,
        worker=lease.worker if lease else None,
        lease_expires_at=lease.expires_at if lease else None,
        lease_expired=lease.is_expired() if lease else False,
        cancel_requested=job.id in lease.cancels if lease else False,
        reason=place.reason,
        finished_at=place.finished_at,
        error=latest.error if latest else None,
        last_status=latest.status if latest else None,
        last_finished_at=latest.finished_at if latest else None,
        result=latest.result if latest and place.state is State.SUCCEEDED else None,
        progress=_progress(job.read, *progress) if progress else None,
        unreadable_options=job.unreadable_options,
        unreadable=job.read.unreadable(place.raw),
    )


def _progress(read: Reading, fraction: object, message: object) -> Progress:
    if not isinstance(fraction, float | int):
        read.told("progress", fraction)
        fraction = 0.0
    return Progress(fraction, read.text("message", message))
