"""What can be asked: lists, counts, history, queues, leases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from taskharbor.drivers.base import LeaseRecord, Page, worker_of
from taskharbor.drivers.postgres import places
from taskharbor.drivers.postgres.connections import Session
from taskharbor.job import AttemptRecord, AttemptStatus, JobFilter, JobRecord, QueueRecord, State

# Jobs looked at for one page: a filter that matches little gives short pages, not long waits.
SCAN_MAX = 5_000
CHUNK_MIN, CHUNK_MAX = 20, 500

_decode_running = msgspec.json.Decoder(dict[str, int]).decode


async def get(session: Session, ids: Sequence[str]) -> list[JobRecord | None]:
    found = await places.find(session, ids)
    return [places.record(found[job_id]) if job_id in found else None for job_id in ids]


async def list_jobs(session: Session, where: JobFilter, cursor: str | None, limit: int) -> Page:
    """Newest first, from the narrowest place that holds what is asked for."""
    jobs: list[JobRecord] = []
    scanned = 0
    if limit <= 0 or (cursor is not None and not places.is_id(cursor)):
        return Page(jobs, None)
    async for chunk in _candidates(session, where, cursor, min(max(limit + 1, CHUNK_MIN), CHUNK_MAX)):
        found = await places.find(session, chunk)
        for job_id in chunk:
            record = places.record(found[job_id]) if job_id in found else None
            if record is not None and _matches(record, where):
                if len(jobs) == limit:
                    return Page(jobs, jobs[-1].id)
                jobs.append(record)
        scanned += len(chunk)
        if scanned >= SCAN_MAX:
            return Page(jobs, chunk[-1])
    return Page(jobs, None)


async def _candidates(
    session: Session, where: JobFilter, before: str | None, size: int
) -> AsyncIterator[list[str]]:
    statement, arguments = _source(session, where)
    while True:
        ids = [row["id"] for row in await session.rows(statement, before, size, *arguments)]
        if ids:
            yield ids
        if len(ids) < size:
            return
        before = ids[-1]


def _source(session: Session, where: JobFilter) -> tuple[str, tuple[object, ...]]:
    if where.tag is not None:
        return "ids_by_tag", (where.tag,)
    match where.state:
        case State.DEAD | State.CANCELLED as state:
            return "ids_ended", (state,)
        case State.READY | State.SCHEDULED as state:
            return f"ids_{state}", (session.given_now,)
        case State.WAITING | State.RUNNING as state:
            return f"ids_{state}", ()
        case _:
            return "ids", ()


def _matches(record: JobRecord, where: JobFilter) -> bool:
    return (
        where.state in (None, record.state)
        and where.queue in (None, record.queue)
        and where.task in (None, record.task)
        and (where.tag is None or where.tag in record.options.tags)
    )


async def counts(session: Session, queue: str | None) -> dict[State, int]:
    totals = dict.fromkeys(State, 0)
    for row in await session.rows("queue_numbers", session.given_now, queue):
        totals[State(row["state"])] += row["jobs"]
    return totals


async def queues(session: Session) -> list[QueueRecord]:
    paused = {row["queue"] for row in await session.rows("paused_queues")}
    numbers: dict[str, dict[str, int]] = {name: {} for name in paused}
    oldest: dict[str, int] = {}
    for row in await session.rows("queue_numbers", session.given_now, None):
        if row["state"] in (State.READY, State.SCHEDULED, State.RUNNING):
            numbers.setdefault(row["queue"], {})[row["state"]] = row["jobs"]
        if row["state"] == State.READY:
            oldest[row["queue"]] = row["oldest_at"]
    return [
        QueueRecord(
            name,
            name in paused,
            numbers[name].get(State.READY, 0),
            numbers[name].get(State.SCHEDULED, 0),
            numbers[name].get(State.RUNNING, 0),
            oldest.get(name),
        )
        for name in sorted(numbers)
    ]


async def history(session: Session, job_id: str, limit: int) -> list[AttemptRecord]:
    if not places.is_id(job_id):
        return []
    return [
        AttemptRecord(
            job_id=job_id,
            number=row["number"],
            status=AttemptStatus(row["status"]),
            retry_count=row["retry_count"],
            worker=row["worker"] or worker_of(row["token"]),
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            error=row["error"],
            traceback=row["traceback"],
            detail=row["detail"],
            outlived=row["outlived"],
        )
        for row in await session.rows("history", job_id, max(limit, 0))
    ]


async def steps(session: Session, job_id: str) -> dict[str, str]:
    if not places.is_id(job_id):
        return {}
    return {row["name"]: row["result"] for row in await session.rows("steps", job_id)}


async def lease_records(session: Session) -> list[LeaseRecord]:
    return [
        LeaseRecord(
            row["token"],
            row["worker"],
            row["expires_at"],
            row["expired"],
            row["open"],
            still_running(row["running"], row["unsettled"]),
        )
        for row in await session.rows("lease_records", session.given_now)
    ]


def still_running(told: str, unsettled: Sequence[str]) -> dict[str, int]:
    """What the last heartbeat told, less what has been settled since."""
    if told == "{}":
        return {}
    open_ones = set(unsettled)
    return {job_id: started for job_id, started in _decode_running(told).items() if job_id in open_ones}
