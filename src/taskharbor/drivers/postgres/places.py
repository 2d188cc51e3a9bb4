"""Where a job is: its state follows from the place it is found in. One statement looks in all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import asyncpg
import msgspec
from msgspec import Struct

from taskharbor.drivers.postgres.connections import Session
from taskharbor.errors import OperationRefused
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
    delivery: str | None = None
    suspect: bool = False
    reason: Reason | None = None
    finished_at: int | None = None
    token: str | None = None  # of the lease it is under


class Found(Struct):
    """A job as it was found: its row, its place, and the store's time then."""

    row: asyncpg.Record
    place: Place
    now: int

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
        found[row["id"]] = Found(row, _place(row), row["now"])
    return found


def _place(row: asyncpg.Record) -> Place:
    if row["ended_state"] is not None:
        return Place(
            State(row["ended_state"]),
            row["run_at"],
            row["ended_number"],
            row["ended_attempts"],
            delivery=row["ended_delivery"],
            reason=Reason(row["ended_reason"]),
            finished_at=row["ended_finished_at"],
        )
    if row["latest_status"] == AttemptStatus.SUCCEEDED and row["next_at"] is None:
        return Place(
            State.SUCCEEDED,
            row["run_at"],
            row["latest_number"],
            row["latest_attempts"],
            delivery=row["delivery"],
            finished_at=row["latest_finished_at"],
        )
    if row["ready_run_at"] is not None:
        return Place(
            State.READY if row["ready_run_at"] <= row["now"] else State.SCHEDULED,
            row["ready_run_at"],
            row["ready_number"],
            row["ready_attempts"],
            row["ready_first_number"],
            row["ready_due_at"],
            row["ready_expires_at"],
            row["ready_delivery"],
            row["suspect"],
        )
    if row["waiting_number"] is not None:
        return Place(
            State.WAITING,
            row["run_at"],
            row["waiting_number"],
            row["waiting_attempts"],
            row["waiting_first_number"],
            expires_at=row["waiting_expires_at"],
            delivery=row["waiting_delivery"],
        )
    if row["lease_token"] is None:
        raise OperationRefused(
            f"the store is inconsistent: job {row['id']} is neither ready, waiting, leased nor ended. "
            "Run `taskharbor doctor`, and restore the database from a backup if it finds damage"
        )
    return Place(
        State.RUNNING,
        row["lease_run_at"],
        row["lease_number"],
        row["lease_attempts"],
        row["lease_first_number"],
        row["lease_due_at"],
        row["lease_begin_by"],
        row["lease_delivery"],
        token=row["lease_token"],
    )


def record(found: Found) -> JobRecord:
    """Everything a reader may see of a job."""
    row, place = found.row, found.place
    running = place.state is State.RUNNING
    delivery = place.delivery
    options, unreadable = read_options(row["options"])
    return JobRecord(
        id=row["id"],
        task=row["task"],
        payload=row["payload"],
        queue=row["queue"],
        priority=row["priority"],
        state=place.state,
        enqueued_at=row["enqueued_at"],
        run_at=place.run_at,
        attempts=place.attempts,
        number=place.number,
        due_at=place.due_at,
        expires_at=row["expires_at"],
        idempotency_key=row["idempotency_key"],
        delivery=None if delivery is None else Delivery(delivery),
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
        last_status=None if row["latest_status"] is None else AttemptStatus(row["latest_status"]),
        last_finished_at=row["latest_finished_at"],
        result=row["result"] if place.state is State.SUCCEEDED else None,
        progress=None if row["fraction"] is None else Progress(row["fraction"], row["message"]),
        unreadable_options=unreadable,
    )


def is_id(text: str) -> bool:
    """Whether a job can have this id: anything else is unknown, and no error."""
    return _ID.fullmatch(text) is not None


def encoded_options(options: Options) -> str | None:
    return None if options is NO_OPTIONS or options == NO_OPTIONS else _encode(options).decode()
