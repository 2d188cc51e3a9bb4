"""Workflows: jobs that are stored, ended, restored, kept and pruned as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from taskharbor.drivers.base import (
    WorkflowEnqueued,
    WorkflowPage,
    job_size,
    member_exists,
    text_size,
)
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.enqueue import (
    RACES_MAX,
    alike_arguments,
    columns,
    enqueue,
    in_statements,
    outrun,
)
from taskharbor.drivers.postgres.explain import is_conflict
from taskharbor.drivers.postgres.places import is_id
from taskharbor.drivers.stored import Reading
from taskharbor.records import MemberResult, NewJob, NewWorkflow, State, WorkflowRecord, encode_options

FORGOTTEN_AT_ONCE = 500
MANY = 100  # alike: worth a statement of their own


# -- storing ---------------------------------------------------------------------------------------


async def enqueue_workflow(
    session: Session, workflow: NewWorkflow, jobs: Sequence[NewJob]
) -> WorkflowEnqueued:
    """Inside a transaction."""
    session.expect(len(jobs) + sum(len(job.depends_on) for job in jobs))
    now = await session.now()
    last_id = jobs[-1].id if jobs else workflow.id
    row = (workflow.id, last_id, len(jobs), now, workflow.idempotency_key, workflow.about)
    for _ in range(RACES_MAX):
        # Waits for a client that is storing one of the same id or key: the answer is then that one.
        async with session.carrying(text_size(workflow.about)):
            is_new = await session.value("insert_workflow", *row)
        if is_new:
            break
        known = await session.row("known_workflow", workflow.id, workflow.idempotency_key)
        if known is not None:  # else it was forgotten between the two looks
            return WorkflowEnqueued(known["id"], True, known["enqueued_at"])
    else:
        raise outrun()
    ids = {job.id: position for position, job in enumerate(jobs, 1)}
    if len(ids) == len(jobs) and all(
        job.due_at is None and (not job.depends_on or ids.keys() >= set(job.depends_on)) for job in jobs
    ):
        await _insert_members(session, jobs, ids, now)
    else:
        for answer in await enqueue(session.at(now), jobs):
            if answer.existed:
                raise member_exists(answer.id)
    return WorkflowEnqueued(workflow.id, False, now)


async def _insert_members(session: Session, jobs: Sequence[NewJob], ids: dict[str, int], now: int) -> None:
    different, alike = _apart(jobs)
    try:
        for group in alike:
            async with in_statements(session, group, job_size) as statements:
                for some in statements:
                    await session.do("enqueue_alike", *alike_arguments(some, now))
        async with in_statements(session, different, job_size) as statements:
            for some in statements:
                await _insert_each(session, some, now)
    except Exception as error:
        if is_conflict(error):
            raise member_exists(jobs[0].id) from error
        raise
    few: list[tuple[int, int, int, bool]] = []
    for job in jobs:
        if len(job.depends_on) >= MANY:
            await session.do("insert_many_dependencies", job.id, list(job.depends_on), job.ends_with_members)
        elif job.depends_on:
            few += [
                (ids[job.id], position, ids[member], job.ends_with_members)
                for position, member in enumerate(job.depends_on)
            ]
    if few:
        await session.do("insert_member_dependencies", list(ids), *columns(few))
    tags = sorted({(tag, job.id) for job in jobs if job.options.tags for tag in job.options.tags})
    if tags:
        await session.do("insert_tags", *columns(tags))


def _apart(jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[list[NewJob]]]:
    """Many that wait for no job and differ in their ids and payloads only, as a chord's members do, are stored at
    half the cost; all the others, and groups of those."""
    groups: dict[tuple[object, ...], list[NewJob]] = {}
    different: list[NewJob] = []
    for job in jobs:
        if job.depends_on:
            different.append(job)
            continue
        key = (
            job.queue,
            job.task,
            job.priority,
            job.run_at,
            job.delay,
            job.expires_at,
            job.delivery,
            id(job.options),
            job.meta,
        )
        groups.setdefault(key, []).append(job)
    alike = []
    for group in groups.values():
        if len(group) >= MANY:
            alike.append(group)
        else:
            different += group
    return different, alike


async def _insert_each(session: Session, jobs: Sequence[NewJob], now: int) -> None:
    waits = [bool(job.depends_on) for job in jobs]
    await session.do(
        "insert_members",
        [job.id for job in jobs],
        [job.queue for job in jobs],
        [job.task for job in jobs],
        [job.payload for job in jobs],
        [job.priority for job in jobs],
        [job.run_at for job in jobs],
        [job.delay for job in jobs],
        [job.expires_at for job in jobs],
        [job.delivery for job in jobs],
        _encoded(jobs),
        [job.meta for job in jobs],
        waits,
        any(waits),
        now,
    )


def _encoded(jobs: Sequence[NewJob]) -> list[str | None]:
    """The options of each; most of them share the very same ones."""
    known: dict[int, str | None] = {}
    encoded = []
    for job in jobs:
        key = id(job.options)
        if key not in known:
            known[key] = encode_options(job.options)
        encoded.append(known[key])
    return encoded


# -- reads -----------------------------------------------------------------------------------------


async def get(session: Session, ids: Sequence[str]) -> list[WorkflowRecord | None]:
    rows = await session.rows("workflows_by_id", [each for each in ids if is_id(each)])
    found = {record.id: record for record in await _records(session, rows)}
    return [found.get(each) for each in ids]


async def page(session: Session, cursor: str | None, limit: int) -> WorkflowPage:
    rows = await session.rows("workflows_before", cursor, limit + 1)
    records = await _records(session, rows[:limit])
    return WorkflowPage(records, records[-1].id if records and len(rows) > limit else None)


async def _records(session: Session, rows: Sequence[asyncpg.Record]) -> list[WorkflowRecord]:
    if not rows:
        return []
    spans = [row["id"] for row in rows], [row["last_id"] for row in rows]
    numbers = {row["id"]: row for row in await session.rows("workflow_numbers", *spans)}
    return [_record(row, numbers[row["id"]]) for row in rows]


def _record(row: asyncpg.Record, n: asyncpg.Record) -> WorkflowRecord:
    return WorkflowRecord(
        id=row["id"],
        about=row["about"],
        enqueued_at=Reading().instant("enqueued_at", row["enqueued_at"]),
        total=row["total"],
        idempotency_key=row["idempotency_key"],
        succeeded=n["succeeded"],
        dead=n["dead"],
        cancelled=n["cancelled"],
        waiting=n["waiting"],
        active=n["kept"] - n["succeeded"] - n["dead"] - n["cancelled"] - n["waiting"],
    )


async def results(session: Session, ids: Sequence[str], bytes_limit: int | None) -> list[list[MemberResult]]:
    found: list[list[MemberResult]] = [[] for _ in ids]
    known = [(index, job_id) for index, job_id in enumerate(ids) if is_id(job_id)]
    for row in await session.rows("member_results", [job_id for _, job_id in known], bytes_limit):
        index, _ = known[row["position"] - 1]
        found[index].append(MemberResult(row["member"], row["succeeded"], row["result"], row["left_out"]))
    return found


# -- ending and beginning again with others --------------------------------------------------------


async def cancel_dependants(session: Session, ended: Sequence[str], now: int) -> list[str]:
    """Cancel the dependants that end with a job that ended without success; and theirs."""
    if not ended:
        return []
    return [row["id"] for row in await session.rows("cancel_dependants", list(ended), now)]


async def cancel_dependants_of(
    session: Session, ended: Sequence[str], now: int
) -> dict[str, tuple[str, ...]]:
    """The same, by the first of these that each of them ended with."""
    cancelled = await cancel_dependants(session, ended, now)
    if not cancelled or len(ended) == 1:
        return {ended[0]: tuple(cancelled)} if cancelled else {}
    dependants: dict[str, list[str]] = {}
    for row in await session.rows("fatal_dependencies", [*ended, *cancelled], cancelled):
        dependants.setdefault(row["member"], []).append(row["id"])
    return _traced(ended, dependants)


def _traced(ended: Sequence[str], dependants: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    met: set[str] = set()
    traced: dict[str, tuple[str, ...]] = {}
    for first in ended:
        found, ends = [], [first]
        while ends:
            new = [job_id for job_id in dependants.get(ends.pop(), ()) if job_id not in met]
            met.update(new)
            found += new
            ends += new
        if found:
            traced[first] = tuple(sorted(found))
    return traced


async def restore_dependants(session: Session, requeued: Sequence[str], now: int) -> None:
    """Those that were cancelled because of these wait again, unless another one stands against it."""
    if requeued:
        await session.do("restore_dependants", list(requeued), now)


# -- being kept ------------------------------------------------------------------------------------


class Kept:
    """Which workflows are unfinished, looked up once in a transaction for all of their jobs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._around: dict[str, tuple[str, str]] = {}  # job → first and last id of its workflow
        self._unfinished: dict[str, bool] = {}

    async def look(self, ids: Sequence[str]) -> None:
        """Whose members these jobs are: before anybody asks for one of them."""
        for row in await self._session.rows("workflows_around", ids):
            self._around[row["job_id"]] = (row["id"], row["last_id"])

    async def holds(self, job_id: str) -> bool:
        """Whether the job is a member of an unfinished workflow."""
        workflow = self._around.get(job_id)
        if workflow is None:
            return False
        if workflow[0] not in self._unfinished:
            self._unfinished[workflow[0]] = await self._session.value("workflow_is_unfinished", *workflow)
        return self._unfinished[workflow[0]]


async def forget(session: Session, before: dict[State, int]) -> None:
    """Those of which nothing has to stay: from here on their jobs are old ones like any other."""
    bounds = [before.get(state) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)]
    await session.do("forget_workflows", *bounds, FORGOTTEN_AT_ONCE)
