"""Lists and counts of the jobs that match a filter: slice by slice, newest first, until the budget is used up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from taskharbor.drivers.base import JobCount, Page, SearchBudget
from taskharbor.drivers.searching import READY_MANY, Plan, Slices, Source, plan
from taskharbor.drivers.sqlite import leases, places, workflows
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import Reading, is_text
from taskharbor.records import JobFilter, JobRecord
from taskharbor.rules.filtering import matches, payload_matches

SEARCH = statements("search")
SEPARATOR = "\x1f"
_AFTER_EVERY_ID = "~"


class _Slice(msgspec.Struct):
    """What one statement saw: the last job, and those that match, newest first."""

    last_id: str
    ids: list[str]
    is_last: bool


def list_jobs(
    session: Session, where: JobFilter, cursor: str | None, limit: int, budget: SearchBudget
) -> Page:
    jobs: list[JobRecord] = []
    planned = _planned(session, where)
    if limit <= 0 or planned is None:
        return Page(jobs, None)
    slices = Slices(budget, planned, limit + 1)
    for each in _slices(session, where, planned, cursor, slices):
        for job_id in each.ids:
            record = places.record(session, job_id)
            if record is None or not matches(record, where):
                continue  # a row that cannot be read, or that a hand has put there
            if len(jobs) == limit:
                return Page(jobs, jobs[-1].id or None, slices.examined)  # no id comes after an empty one
            jobs.append(record)
        if not each.is_last and slices.is_over:
            reached = None if len(jobs) == limit else _enqueued_at(session, each.last_id)
            return Page(jobs, each.last_id or None, slices.examined, reached)
    return Page(jobs, None, slices.examined)


def count_jobs(
    session: Session, where: JobFilter, cursor: str | None, limit: int, budget: SearchBudget
) -> JobCount:
    planned = _planned(session, where)
    if limit <= 0 or planned is None:
        return JobCount(0, None)
    jobs = 0
    slices = Slices(budget, planned, limit + 1)
    for each in _slices(session, where, planned, cursor, slices):
        if jobs + len(each.ids) > limit:
            return JobCount(limit, each.ids[limit - jobs - 1] if limit > jobs else cursor, slices.examined)
        jobs += len(each.ids)
        if not each.is_last and slices.is_over:
            return JobCount(jobs, each.last_id, slices.examined, _enqueued_at(session, each.last_id))
        cursor = each.last_id
    return JobCount(jobs, None, slices.examined)


def _planned(session: Session, where: JobFilter) -> Plan | None:
    planned = plan(where, many_ready=False)
    if planned is not None and planned.source is Source.READY:
        many = session.one(SEARCH["ready_up_to"], (READY_MANY + 1,))[0] > READY_MANY
        planned = plan(where, many_ready=many)
    return planned


def _enqueued_at(session: Session, job_id: str) -> int | None:
    row = session.one(SEARCH["enqueued_at"], (job_id,))
    return None if row is None else Reading().instant("enqueued_at", row[0])


def _slices(
    session: Session, where: JobFilter, planned: Plan, cursor: str | None, slices: Slices
) -> Iterator[_Slice]:
    before = cursor or _AFTER_EVERY_ID
    running = _running(session) if planned.reads_running else "[]"
    while True:
        size = slices.next_size()
        arguments = _arguments(session, where, planned, before, size, running)
        examined, last_id, found = session.one(SEARCH["search"], arguments)
        slices.examined += examined
        if not examined or type(last_id) is not str or not is_text(last_id):
            return
        ids = sorted((job_id for job_id in _separated(found) if is_text(job_id)), reverse=True)
        if where.payload is not None:
            ids = _with_payload(session, ids, where.payload)
        is_last = examined < size
        yield _Slice(last_id, ids, is_last)
        if is_last:
            return
        before = last_id


def _with_payload(session: Session, ids: list[str], wanted: dict[str, Any]) -> list[str]:
    """Keep the jobs whose payloads have the values. The rule is in Python, since a payload may be no JSON at all."""
    rows = session.execute(SEARCH["payloads"], (msgspec.json.encode(ids).decode(),))
    found = {
        job_id
        for job_id, task, payload in rows
        if is_text(task) and is_text(payload) and payload_matches(task, payload, wanted)
    }
    return [job_id for job_id in ids if job_id in found]


def _separated(found: str | None) -> list[str]:
    return [] if found is None else found.split(SEPARATOR)


def _running(session: Session) -> str:
    ids = {entry.id for lease in leases.all_leases(session) for entry in lease.unsettled()}
    return msgspec.json.encode(sorted(ids)).decode()


def _arguments(
    session: Session, where: JobFilter, planned: Plan, before: str, size: int, running: str
) -> tuple[Any, ...]:
    keys: dict[Source, str | None] = {
        Source.CORRELATION: where.correlation_id,
        Source.TAG: where.tag,
        Source.ENDED_QUEUE: where.queue,
        Source.ENDED_TASK: where.task,
        Source.ENDED_GROUP: where.fingerprint,
        Source.READY: where.state,
    }
    key = keys.get(planned.source)
    second: str | None = planned.ended_as
    if where.workflow is not None:
        key, second = workflows.range_of(session, where.workflow)
    ids = "[]" if where.ids is None else msgspec.json.encode(where.ids).decode()
    return (
        planned.source, before, size, key, second, session.now,
        planned.state, where.queue, where.task, where.tag, where.reason, where.error, where.fingerprint,
        where.correlation_id, where.enqueued_after, where.enqueued_before, where.finished_after, where.finished_before,
        ids, running,
    )  # fmt: skip
