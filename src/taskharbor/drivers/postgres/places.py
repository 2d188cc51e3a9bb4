"""Where a job is: its state follows from the place it is found in. One statement looks in all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import asyncpg
from msgspec import Struct

from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.stored import (
    DELIVERIES,
    FIRST_NUMBER_MAX,
    REASONS,
    STATES,
    STATUSES,
    Reading,
    nowhere,
)
from taskharbor.records import AttemptStatus, JobRecord, Progress, State, read_options
from taskharbor.rules.standing import (
    Holder,
    LatestAttempt,
    Standing,
    StoredJob,
    job_record,
    runnable_state,
)

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Found(Struct):
    """A job as it was found: its row, where it stands, and the store's time then."""

    job: StoredJob
    at: Standing
    token: str | None  # of the lease that it is under
    row: asyncpg.Record
    now: int
    read: Reading  # what of it could not be read
    is_nowhere: bool = False  # no row says where it is

    @property
    def id(self) -> str:
        return self.job.id


async def find(session: Session, ids: Sequence[str]) -> dict[str, Found]:
    """The jobs that exist among these, by id."""
    possible = [job_id for job_id in dict.fromkeys(ids) if is_id(job_id)]
    if not possible:
        return {}
    found = {}
    for row in await session.rows("places", possible, session.given_now):
        read = Reading()
        at = _standing(row, read)
        found[row["id"]] = Found(
            _stored(row, read),
            at
            or nowhere(
                read,
                read.instant("run_at", row["run_at"]),
                row["latest_number"] or 0,
                row["latest_attempts"] or 0,
            ),
            row["lease_token"],
            row,
            row["now"],
            read,
            at is None,
        )
    return found


def _stored(row: asyncpg.Record, read: Reading) -> StoredJob:
    options, unreadable = read_options(row["options"])
    return StoredJob(
        row["id"],
        row["queue"],
        row["task"],
        row["payload"],
        row["priority"],
        read.instant("run_at", row["run_at"]),
        read.instant("enqueued_at", row["enqueued_at"]),
        read.optional_instant("expires_at", row["expires_at"]),
        row["idempotency_key"],
        read.one_of("delivery", row["delivery"], DELIVERIES),
        options,
        row["version"],
        unreadable,
        read.meta(row["meta"]),
        row["action_id"],
    )


def _standing(row: asyncpg.Record, read: Reading) -> Standing | None:
    if row["ended_state"] is not None:
        return Standing(
            read.one_of("ended.state", row["ended_state"], STATES) or State.DEAD,
            read.instant("run_at", row["run_at"]),
            row["ended_number"],
            row["ended_attempts"],
            delivery=read.one_of("ended.delivery", row["ended_delivery"], DELIVERIES),
            reason=read.one_of("ended.reason", row["ended_reason"], REASONS),
            finished_at=read.instant("ended.finished_at", row["ended_finished_at"]),
        )
    if row["latest_status"] == AttemptStatus.SUCCEEDED and row["next_at"] is None:
        return Standing(
            State.SUCCEEDED,
            read.instant("run_at", row["run_at"]),
            row["latest_number"],
            row["latest_attempts"],
            delivery=read.one_of("delivery", row["delivery"], DELIVERIES),
            finished_at=read.instant("finished_at", row["latest_finished_at"]),
        )
    if row["ready_run_at"] is not None:
        return Standing(
            runnable_state(row["ready_run_at"], row["now"]),
            read.instant("ready.run_at", row["ready_run_at"]),
            read.integer("ready.number", row["ready_number"]),
            read.integer("ready.attempts", row["ready_attempts"]),
            read.integer("ready.first_number", row["ready_first_number"], most=FIRST_NUMBER_MAX),
            read.optional_instant("ready.due_at", row["ready_due_at"]),
            read.optional_instant("ready.expires_at", row["ready_expires_at"]),
            read.one_of("ready.delivery", row["ready_delivery"], DELIVERIES),
            row["suspect"],
            aside=row["aside"],
        )
    if row["waiting_number"] is not None:
        return Standing(
            State.WAITING,
            read.instant("run_at", row["run_at"]),
            read.integer("waiting.number", row["waiting_number"]),
            read.integer("waiting.attempts", row["waiting_attempts"]),
            read.integer("waiting.first_number", row["waiting_first_number"], most=FIRST_NUMBER_MAX),
            begin_by=read.optional_instant("waiting.expires_at", row["waiting_expires_at"]),
            delivery=read.one_of("waiting.delivery", row["waiting_delivery"], DELIVERIES),
        )
    if row["lease_token"] is None:
        return None
    return Standing(
        State.RUNNING,
        row["lease_run_at"],
        row["lease_number"],
        row["lease_attempts"],
        row["lease_first_number"],
        row["lease_due_at"],
        row["lease_begin_by"],
        read.one_of("claims.delivery", row["lease_delivery"], DELIVERIES),
    )


def record(found: Found) -> JobRecord:
    """Everything that a reader may see of a job."""
    row, read = found.row, found.read
    latest = holder = None
    if row["latest_status"] is not None:
        latest = LatestAttempt(
            read.one_of("attempts.status", row["latest_status"], STATUSES),
            read.instant("attempts.finished_at", row["latest_finished_at"]),
            row["error"],
            row["result"],
            row["fingerprint"],
            row["code_version"],
        )
    if found.token is not None:
        expires_at = row["lease_expires_at"]
        holder = Holder(row["lease_worker"], expires_at, found.now >= expires_at, row["cancel_requested"])
    return job_record(
        found.job,
        found.at,
        latest=latest,
        holder=holder,
        depends_on=tuple(row["depends_on"] or ()),
        progress=None
        if row["fraction"] is None
        else Progress(row["fraction"], row["message"], row["progress_value"]),
        unreadable=read.unreadable(row["ended_raw"]),
    )


def is_id(text: str) -> bool:
    """Whether a job can have this id: anything else is unknown, and no error."""
    return _ID.fullmatch(text) is not None
