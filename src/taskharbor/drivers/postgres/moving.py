"""Moving jobs from one place to another: what the rules decided, written as rows, many at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.enqueue import columns
from taskharbor.drivers.postgres.places import Found
from taskharbor.records import State
from taskharbor.rules.aside import lane_of
from taskharbor.rules.operating import Change
from taskharbor.rules.standing import Standing

Tally = Counter[tuple[str, str]]
Row = tuple[object, ...]


async def move(session: Session, changes: dict[str, tuple[Found, Change]], now: int) -> set[str]:
    """Take each job to where its change says; the ids of those that moved.

    A job that is no longer where it was found stays: a claim, which takes no lock of the job's row, takes its place.
    """
    moved = await _leave(session, changes)
    going = [changes[job_id] for job_id in sorted(moved)]
    if going:
        await _store_rows(session, going)
        over = [change.job.id for _, change in going if change.is_new_run or change.is_rearmed]
        if over:
            await session.do("delete_progress", over)
        rearmed = [change.job.id for _, change in going if change.is_rearmed]
        if rearmed:
            await session.do("delete_steps", rearmed)
        await _enter(session, going, now)
    return moved


async def leave(session: Session, found: Found) -> bool:
    """Take one job that is not running out of its place, to be erased; whether it was still there."""
    if found.at.is_finished:
        return True  # under the lock of its row no one takes it from there
    return bool(
        await _leave(session, {found.id: (found, Change(found.job, replace(found.at, state=State.READY)))})
    )


async def _leave(session: Session, changes: dict[str, tuple[Found, Change]]) -> set[str]:
    """Take every job out of its place; which ones were still there. A running one stays under its lease."""
    left: set[str] = set()
    strays: list[str] = []  # perhaps under another key than their own
    places: dict[str, list[Row]] = {"ready": [], "waiting": [], "staying": [], "ended": []}
    for job_id, (found, change) in sorted(changes.items()):
        at, job = found.at, found.job
        if at.state is State.RUNNING:
            left.add(job_id)
        elif found.is_nowhere:
            left.add(job_id)
            strays.append(job_id)
        elif at.is_finished:
            places["ended"].append((job_id,))
        elif at.state is State.WAITING and change.to.state is State.WAITING:
            # Changed where it is: a settle that waits for the row follows it.
            places["staying"].append((job_id, change.to.begin_by, change.to.delivery))
        elif at.state is State.WAITING:
            places["waiting"].append((job_id,))
        else:
            places["ready"].append(
                (at.suspect, lane_of(job.queue, at.aside), -job.priority, at.run_at, job_id)
            )
    if strays:
        await session.do("take_strays", strays)
    for name, statement in _LEAVING.items():
        if places[name]:
            left |= {row["id"] for row in await session.rows(statement, *columns(places[name]))}
    return left


_LEAVING = {
    "ready": "take_ready",
    "waiting": "take_waiting",
    "staying": "update_waiting",
    "ended": "take_ended",
}


async def _store_rows(session: Session, going: Sequence[tuple[Found, Change]]) -> None:
    """The jobs' own rows, and their tags."""
    changed = [(found.job, change.job) for found, change in going if change.job is not found.job]
    rows: list[Row] = [
        (
            j.id,
            j.queue,
            j.task,
            j.delivery,
            j.priority,
            j.run_at,
            j.payload,
            j.expires_at,
            j.options_text,
            j.version,
            j.meta,
        )
        for _, j in changed
    ]
    if rows:
        await session.do("update_jobs", *columns(rows))
    tagged = [(before, after) for before, after in changed if before.options.tags != after.options.tags]
    for statement, tags in (
        ("delete_tags", {(tag, before.id) for before, _ in tagged for tag in before.options.tags}),
        ("insert_tags", {(tag, after.id) for _, after in tagged for tag in after.options.tags}),
    ):
        if tags:
            await session.do(statement, *columns(sorted(tags)))


async def _enter(session: Session, going: Sequence[tuple[Found, Change]], now: int) -> None:
    tally: Tally = Counter()
    latest: list[Row] = []
    ready: list[Row] = []
    waiting: list[Row] = []
    ended: list[Row] = []
    for found, change in going:
        job, at, to = change.job, found.at, change.to
        if at.state is State.RUNNING:
            continue
        if at.is_finished and not found.is_nowhere:
            tally[found.job.queue, at.state] -= 1
        if to.is_finished:
            tally[job.queue, to.state] += 1
            ended.append(ended_row(job.id, to))
            continue
        latest.append((job.id, to.run_at))  # the key of a ready row is computed from there
        if to.state is not State.WAITING:
            ready.append(ready_row(job.id, to))
        elif at.state is not State.WAITING:
            waiting.append(waiting_row(job.id, to))
    for statement, rows in (
        ("move_latest_attempts", latest),
        ("put_ready", ready),
        ("insert_waiting", waiting),
    ):
        if rows:
            await session.do(statement, *columns(rows))
    if ended:
        await session.do("insert_ended", *columns(ended), now)
    await add_tallies(session, tally)


def ready_row(job_id: str, to: Standing) -> Row:
    return (
        job_id, to.run_at, to.number, to.attempts, to.first_number, to.due_at, to.begin_by, to.delivery, to.suspect,
        to.aside,
    )  # fmt: skip


def waiting_row(job_id: str, to: Standing) -> Row:
    return (job_id, to.number, to.attempts, to.first_number, to.begin_by, to.delivery)


def ended_row(job_id: str, to: Standing) -> Row:
    return (job_id, to.state, to.reason, to.number, to.attempts, to.delivery)


async def add_tallies(session: Session, tally: Tally) -> None:
    rows = [(queue, state, count) for (queue, state), count in sorted(tally.items()) if count]
    if rows:
        await session.do("add_tallies", *columns(rows))
