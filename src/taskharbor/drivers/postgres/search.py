"""Lists and counts of the jobs that match a filter: slice by slice, newest first, until the budget is used up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from taskharbor.drivers.base import JobCount, Page, SearchBudget
from taskharbor.drivers.postgres import places
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.searching import READY_MANY, Plan, Slices, Source, plan
from taskharbor.records import JobFilter, JobRecord
from taskharbor.rules.filtering import matches, payload_matches

READ_AT_ONCE = 500  # jobs whose records one statement reads
_AFTER_EVERY_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class _Slice(msgspec.Struct):
    """What one statement saw: how many jobs, the last of them, and those that match, as far as they were asked for."""

    examined: int
    last_id: str
    found: int
    ids: list[str]
    is_last: bool


async def list_jobs(
    session: Session, where: JobFilter, cursor: str | None, limit: int, budget: SearchBudget
) -> Page:
    jobs: list[JobRecord] = []
    planned = await _planned(session, where, cursor)
    if limit <= 0 or planned is None:
        return Page(jobs, None)
    slices = Slices(budget, planned, limit + 1)
    async for each in _slices(session, where, planned, cursor, limit + 1, slices):
        for start in range(0, len(each.ids), READ_AT_ONCE):
            chunk = each.ids[start : start + READ_AT_ONCE]
            found = await places.find(session, chunk)
            for job_id in chunk:
                record = places.record(found[job_id]) if job_id in found else None
                if record is None or not matches(record, where):
                    continue  # it has changed since the statement before, or its row cannot be read
                if len(jobs) == limit:
                    return Page(jobs, jobs[-1].id, slices.examined)
                jobs.append(record)
        if each.found > len(each.ids):  # and too few of them are left
            return Page(jobs, each.ids[-1], slices.examined)
        if not each.is_last and slices.is_over:
            reached = None if len(jobs) == limit else await session.value("enqueued_at", each.last_id)
            return Page(jobs, each.last_id, slices.examined, reached)
    return Page(jobs, None, slices.examined)


async def count_jobs(
    session: Session, where: JobFilter, cursor: str | None, limit: int, budget: SearchBudget
) -> JobCount:
    planned = await _planned(session, where, cursor)
    if limit <= 0 or planned is None:
        return JobCount(0, None)
    jobs = 0
    slices = Slices(budget, planned, limit + 1)
    async for each in _slices(session, where, planned, cursor, limit + 1, slices):
        if jobs + each.found > limit:
            return JobCount(limit, each.ids[limit - jobs - 1] if limit > jobs else cursor, slices.examined)
        jobs += each.found
        if each.is_last:
            break
        if slices.is_over:
            reached = await session.value("enqueued_at", each.last_id)
            return JobCount(jobs, each.last_id, slices.examined, reached)
        cursor = each.last_id
    return JobCount(jobs, None, slices.examined)


async def _planned(session: Session, where: JobFilter, cursor: str | None) -> Plan | None:
    if cursor is not None and not places.is_id(cursor):
        return None
    if where.workflow is not None and not places.is_id(where.workflow):
        return None
    planned = plan(where, many_ready=False)
    if planned is not None and planned.source is Source.READY:
        many = await session.value("ready_up_to", READY_MANY + 1) > READY_MANY
        planned = plan(where, many_ready=many)
    return planned


async def _slices(
    session: Session, where: JobFilter, planned: Plan, cursor: str | None, wanted: int, slices: Slices
) -> AsyncIterator[_Slice]:
    before = cursor or _AFTER_EVERY_ID
    while True:
        size = slices.next_size()
        if where.payload is not None:
            wanted = size  # every one of the slice is looked at again
        [row] = await session.rows("search", *_arguments(session, where, planned, before, size, wanted))
        slices.examined += row["examined"]
        if not row["examined"]:
            return
        is_last = row["examined"] < size
        ids, found = row["ids"] or [], row["found"]
        if where.payload is not None:
            ids = await _with_payload(session, ids, where.payload)
            found = len(ids)
        yield _Slice(row["examined"], row["last_id"], found, ids, is_last)
        if is_last:
            return
        before = row["last_id"]


async def _with_payload(session: Session, ids: list[str], wanted: dict[str, Any]) -> list[str]:
    """Keep the jobs whose payloads have the values. The rule is in Python, since a payload may be no JSON at all."""
    rows = await session.rows("payloads", ids)
    found = {row["id"] for row in rows if payload_matches(row["task"], row["payload"], wanted)}
    return [job_id for job_id in ids if job_id in found]


def _arguments(
    session: Session, where: JobFilter, planned: Plan, before: str, size: int, wanted: int
) -> tuple[object, ...]:
    correlation = None
    if where.correlation_id is not None:
        correlation = msgspec.json.encode(where.correlation_id).decode()
    keys: dict[Source, str | None] = {
        Source.WORKFLOW: where.workflow,
        Source.CORRELATION: correlation,
        Source.TAG: where.tag,
        Source.ENDED_QUEUE: where.queue,
        Source.ENDED_TASK: where.task,
        Source.ENDED_GROUP: where.fingerprint,
        Source.READY: where.state,
    }
    ids = None if where.ids is None else [job_id for job_id in where.ids if places.is_id(job_id)]
    return (
        planned.source, before, size, keys.get(planned.source), planned.ended_as, session.given_now,
        planned.state, where.queue, where.task, where.tag, where.reason, where.error, where.fingerprint, correlation,
        where.enqueued_after, where.enqueued_before, where.finished_after, where.finished_before, wanted,
        planned.reads_job, planned.reads_ended, planned.reads_latest, planned.reads_waiting, planned.reads_running,
        ids,
    )  # fmt: skip
