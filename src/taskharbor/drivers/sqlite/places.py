"""Where a job is: its state follows from the place it is found in.

The key of a ready row is computed, not searched: a job that has been attempted went on at its latest
attempt's `next_at`, one that has not is at its own `run_at`. Three key probes find any job.
"""

from __future__ import annotations

from msgspec import Struct, field

from taskharbor.drivers.sqlite import leases
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import (
    DELIVERIES,
    FIRST_NUMBER_MAX,
    REASONS,
    STATES,
    STATUSES,
    Reading,
    is_text,
    nowhere,
)
from taskharbor.records import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    AttemptStatus,
    JobRecord,
    Progress,
    State,
    read_options,
)
from taskharbor.rules.aside import lane_of
from taskharbor.rules.standing import (
    Holder,
    LatestAttempt,
    Standing,
    StoredJob,
    job_record,
    runnable_state,
)

READS = statements("reads")


class Latest(Struct):
    """The latest attempt's row."""

    number: int
    status: AttemptStatus | None  # None: an unknown one
    attempts: int
    finished_at: int
    next_at: int | None
    result: str | None
    error: str | None
    fingerprint: str | None
    code_version: str | None
    aside: str | None


class Found(Struct):
    """A job, and where it was found."""

    job: StoredJob
    at: Standing
    latest: Latest | None = None
    lease: leases.Lease | None = None  # of a running one
    read: Reading = field(default_factory=Reading)  # what of it could not be read
    raw: str | None = None  # JSON of the row that it was set aside with
    is_nowhere: bool = False  # no row says where it is


def stored(session: Session, job_id: str, read: Reading) -> StoredJob | None:
    row = session.one(READS["job"], (job_id,)) if is_text(job_id) else None
    if row is None:
        return None
    (
        _id, queue, task, payload, priority, run_at, enqueued_at, expires_at, key, delivery, options, version,
        meta, action_id,
    ) = row  # fmt: skip
    known, unreadable_options = read_options(read.optional_text("options", options))
    return StoredJob(
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
        read.meta(meta),
        read.optional_text("action_id", action_id),
    )


def _latest_attempt(session: Session, job_id: str, read: Reading) -> Latest | None:
    row = session.one(READS["latest_attempt"], (job_id,))
    if row is None:
        return None
    number, status, attempts, finished_at, next_at, result, error, fingerprint, code_version, aside = row
    return Latest(
        read.integer("attempts.number", number),
        read.one_of("attempts.status", status, STATUSES),
        read.integer("attempts.attempts", attempts),
        read.instant("attempts.finished_at", finished_at),
        read.optional_instant("attempts.next_at", next_at),
        read.optional_text("attempts.result", result),
        read.optional_text("attempts.error", error),
        read.optional_text("attempts.fingerprint", fingerprint),
        read.optional_text("attempts.code_version", code_version),
        read.optional_text("attempts.aside", aside),
    )


def find(session: Session, job_id: str) -> Found | None:
    read = Reading()
    job = stored(session, job_id, read)
    if job is None:
        return None
    latest = _latest_attempt(session, job_id, read)
    ended = session.one(READS["ended"], (job_id,))
    if ended is not None:
        *columns, raw = ended
        at = _ended(job, columns, read)
        return Found(job, at, latest, read=read, raw=read.optional_text("ended.raw", raw))
    at_rest = _succeeded(job, latest) or _ready(session, job, latest, read) or _waiting(session, job, read)
    if at_rest is not None:
        return Found(job, at_rest, latest, read=read)
    covered = leases.covering(session, job_id)
    if covered is not None:
        lease, entry = covered
        return Found(job, entry.standing, latest, lease, read)
    number, attempts = (0, 0) if latest is None else (latest.number, latest.attempts)
    return Found(job, nowhere(read, job.run_at, number, attempts), latest, read=read, is_nowhere=True)


def surely(session: Session, job_id: str) -> Found:
    """A job that another row of the same transaction names."""
    found = find(session, job_id)
    assert found is not None, "its place is in the same transaction"
    return found


def _ended(job: StoredJob, columns: list[object], read: Reading) -> Standing:
    state, reason, finished_at, number, attempts, delivery = columns
    return Standing(
        read.one_of("ended.state", state, STATES) or State.DEAD,
        job.run_at,
        read.integer("ended.number", number),
        read.integer("ended.attempts", attempts),
        delivery=read.one_of("ended.delivery", delivery, DELIVERIES),
        reason=read.one_of("ended.reason", reason, REASONS),
        finished_at=read.instant("ended.finished_at", finished_at),
    )


def _succeeded(job: StoredJob, latest: Latest | None) -> Standing | None:
    if latest is None or latest.status is not AttemptStatus.SUCCEEDED or latest.next_at is not None:
        return None
    return Standing(
        State.SUCCEEDED,
        job.run_at,
        latest.number,
        latest.attempts,
        delivery=job.delivery,
        finished_at=latest.finished_at,
    )


def _ready(session: Session, job: StoredJob, latest: Latest | None, read: Reading) -> Standing | None:
    run_at = job.run_at if latest is None or latest.next_at is None else latest.next_at
    aside = None if latest is None else latest.aside
    lane = lane_of(job.queue, aside)
    for suspect in (0, 1):
        row = session.one(READS["ready"], (suspect, lane, -job.priority, run_at, job.id))
        if row is not None:
            number, attempts, first_number, due_at, expires_at, delivery = row
            return Standing(
                runnable_state(run_at, session.now),
                run_at,
                read.integer("ready.number", number),
                read.integer("ready.attempts", attempts),
                read.integer("ready.first_number", first_number, most=FIRST_NUMBER_MAX),
                read.optional_instant("ready.due_at", due_at),
                read.optional_instant("ready.expires_at", expires_at),
                read.one_of("ready.delivery", delivery, DELIVERIES),
                bool(suspect),
                aside=aside,
            )
    return None


def _waiting(session: Session, job: StoredJob, read: Reading) -> Standing | None:
    row = session.one(READS["waiting"], (job.id,))
    return None if row is None else waiting_standing(job.run_at, row, read)


def waiting_standing(run_at: int, row: tuple[object, ...], read: Reading) -> Standing:
    """Of one that waits, from its row; it has no occurrence."""
    number, attempts, first_number, expires_at, delivery = row
    return Standing(
        State.WAITING,
        run_at,
        read.integer("waiting.number", number),
        read.integer("waiting.attempts", attempts),
        read.integer("waiting.first_number", first_number, most=FIRST_NUMBER_MAX),
        begin_by=read.optional_instant("waiting.expires_at", expires_at),
        delivery=read.one_of("waiting.delivery", delivery, DELIVERIES),
    )


def record(session: Session, job_id: str) -> JobRecord | None:
    """Everything that a reader may see of a job."""
    found = find(session, job_id)
    if found is None:
        return None
    read, lease, latest = found.read, found.lease, found.latest
    progress = session.one(READS["progress"], (job_id,))
    members = session.execute(READS["dependencies"], (job_id,)).fetchall()
    # In this order: `unreadable` says what could not be read of all the others.
    return job_record(
        found.job,
        found.at,
        latest=None if latest is None else _shown(latest),
        holder=None if lease is None else _holder(lease, job_id),
        depends_on=tuple(read.text("depends_on", row[0]) for row in members),
        progress=_progress(read, *progress) if progress else None,
        unreadable=read.unreadable(found.raw),
    )


def _shown(latest: Latest) -> LatestAttempt:
    return LatestAttempt(
        latest.status,
        latest.finished_at,
        latest.error,
        latest.result,
        latest.fingerprint,
        latest.code_version,
    )


def _holder(lease: leases.Lease, job_id: str) -> Holder:
    return Holder(lease.worker, lease.expires_at, lease.is_expired(), job_id in lease.cancels)


def _progress(read: Reading, fraction: object, message: object, value: object) -> Progress:
    if not isinstance(fraction, float | int):
        read.report("progress", fraction)
        fraction = 0.0
    text = None if value is None else read.text("value", value)
    return Progress(fraction, read.text("message", message), text)
