"""Where a job is: its state follows from the place it is found in. One statement looks in all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import asyncpg
import msgspec
from msgspec import Struct

from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.stored import DELIVERIES, NUMBER_MAX, REASONS, STATES, STATUSES, Reading
from taskharbor.job import (
    NO_OPTIONS,
    AttemptStatus,
    Delivery,
    JobRecord,
    Options,
    Progress,
    Reason,
    State,
    read_options,
)

_encode = msgspec.json.Encoder().encode
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Place(Struct):
    """Where the job is, and what that place knows of it."""

    state: State
    run_at: int
    number: int
    attempts: int
    first_number: int = 1
    due_at: int | None = None
    expires_at: int | None = None  # by when its run has to begin; None once it has
    delivery: Delivery | None = None
    suspect: bool = False
    reason: Reason | None = None
    finished_at: int | None = None
    token: str | None = None  # of the lease it is under
    nowhere: bool = False  # no row says where it is


class Found(Struct):
    """A job as it was found: its row, its place, and the store's time then."""

    row: asyncpg.Record
    place: Place
    now: int
    read: Reading

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def options(self) -> Options:
        return read_options(self.row["options"])[0]

    @property
    def unreadable_options(self) -> str | None:
        return read_options(self.row["options"])[1]


async def find(session: Session, ids: Sequence[str]) -> dict[str, Found]:
    """The jobs that exist among these, by id."""
    possible = [job_id for job_id in dict.fromkeys(ids) if is_id(job_id)]
    if not possible:
        return {}
    found = {}
    for row in await session.rows("places", possible, session.given_now):
        reading = Reading()
        found[row["id"]] = Found(row, _place(row, reading), row["now"], reading)
    return found


def _place(row: asyncpg.Record, read: Reading) -> Place:
    if row["ended_state"] is not None:
        return Place(
            read.one_of("ended.state", row["ended_state"], STATES) or State.DEAD,
            read.instant("run_at", row["run_at"]),
            row["ended_number"],
            row["ended_attempts"],
            delivery=read.one_of("ended.delivery", row["ended_delivery"], DELIVERIES),
            reason=read.one_of("ended.reason", row["ended_reason"], REASONS),
            finished_at=read.instant("ended.finished_at", row["ended_finished_at"]),
        )
    if row["latest_status"] == AttemptStatus.SUCCEEDED and row["next_at"] is None:
        return Place(
            State.SUCCEEDED,
            read.instant("run_at", row["run_at"]),
            row["latest_number"],
            row["latest_attempts"],
            delivery=read.one_of("delivery", row["delivery"], DELIVERIES),
            finished_at=read.instant("finished_at", row["latest_finished_at"]),
        )
    if row["ready_run_at"] is not None:
        return Place(
            State.READY if row["ready_run_at"] <= row["now"] else State.SCHEDULED,
            read.instant("ready.run_at", row["ready_run_at"]),
            read.integer("ready.number", row["ready_number"]),
            read.integer("ready.attempts", row["ready_attempts"]),
            read.integer("ready.first_number", row["ready_first_number"], most=NUMBER_MAX + 1),
            read.optional_instant("ready.due_at", row["ready_due_at"]),
            read.optional_instant("ready.expires_at", row["ready_expires_at"]),
            read.one_of("ready.delivery", row["ready_delivery"], DELIVERIES),
            row["suspect"],
        )
    if row["waiting_number"] is not None:
        return Place(
            State.WAITING,
            read.instant("run_at", row["run_at"]),
            read.integer("waiting.number", row["waiting_number"]),
            read.integer("waiting.attempts", row["waiting_attempts"]),
            read.integer("waiting.first_number", row["waiting_first_number"], most=NUMBER_MAX + 1),
            expires_at=read.optional_instant("waiting.expires_at", row["waiting_expires_at"]),
            delivery=read.one_of("waiting.delivery", row["waiting_delivery"], DELIVERIES),
        )
    if row["lease_token"] is None:
        read.told("place", "none: it is neither ready, waiting, leased nor ended")
        run_at = read.instant("run_at", row["run_at"])
        number, attempts = row["latest_number"] or 0, row["latest_attempts"] or 0
        return Place(State.DEAD, run_at, number, attempts, reason=Reason.UNREADABLE, nowhere=True)
    return Place(
        State.RUNNING,
        row["lease_run_at"],
        row["lease_number"],
        row["lease_attempts"],
        row["lease_first_number"],
        row["lease_due_at"],
        row["lease_begin_by"],
        read.one_of("claims.delivery", row["lease_delivery"], DELIVERIES),
        token=row["lease_token"],
    )


def record(found: Found) -> JobRecord:
    """Everything a reader may see of a job."""
    row, place, read = found.row, found.place, found.read
    running = place.state is State.RUNNING
    options, unreadable_options = read_options(row["options"])
    return JobRecord(
        id=row["id"],
        task=row["task"],
        payload=row["payload"],
        queue=row["queue"],
        priority=row["priority"],
        state=place.state,
        enqueued_at=read.instant("enqueued_at", row["enqueued_at"]),
        run_at=place.run_at,
        attempts=place.attempts,
        number=place.number,
        due_at=place.due_at,
        expires_at=read.optional_instant("expires_at", row["expires_at"]),
        idempotency_key=row["idempotency_key"],
        delivery=place.delivery,
        options=options,
        depends_on=tuple(row["depends_on"] or ()),
        version=row["version"],
        suspect=place.suspect,
        worker=row["lease_worker"] if running else None,
        lease_expires_at=row["lease_expires_at"] if running else None,
        lease_expired=running and found.now >= row["lease_expires_at"],
        cancel_requested=running and row["cancel_requested"],
        reason=place.reason,
        finished_at=place.finished_at,
        error=row["error"],
        last_status=read.one_of("attempts.status", row["latest_status"], STATUSES),
        last_finished_at=read.optional_instant("attempts.finished_at", row["latest_finished_at"]),
        result=row["result"] if place.state is State.SUCCEEDED else None,
        progress=None if row["fraction"] is None else Progress(row["fraction"], row["message"]),
        unreadable_options=unreadable_options,
        unreadable=read.unreadable(row["ended_raw"]),
    )


def is_id(text: str) -> bool:
    """Whether a job can have this id: anything else is unknown, and no error."""
    return _ID.fullmatch(text) is not None


def encoded_options(options: Options) -> str | None:
    return None if options is NO_OPTIONS or options == NO_OPTIONS else _encode(options).decode()
