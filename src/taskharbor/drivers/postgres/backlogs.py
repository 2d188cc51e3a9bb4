"""Backlogs: jobs of one key that execute one after the other, and who hands over to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.drivers.contract.handing_over import HandedOver, NotOwner, Owner
from taskharbor.drivers.postgres import moving, places
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.enqueue import columns
from taskharbor.drivers.postgres.places import Found, is_id
from taskharbor.rules.backlogs import Step, step
from taskharbor.rules.operating import Change
from taskharbor.rules.standing import runnable_state


class Look(Struct):
    """The backlogs that a round looks at."""

    due: list[str]  # there may be something to do about these
    cursor: str | None


async def refuse_strangers(session: Session, owners: Sequence[Owner]) -> None:
    if not owners:
        return
    partitions = sorted({each.partition for each in owners})
    epochs = {row["partition"]: row["epoch"] for row in await session.rows("epochs", partitions)}
    strangers = [each.partition for each in owners if epochs.get(each.partition) != each.epoch]
    if strangers:
        raise NotOwner(strangers)


async def own(session: Session, partition: str) -> Owner:
    return Owner(partition, await session.value("own", partition))


async def lock(session: Session, jobs: Sequence[HandedOver]) -> set[str]:
    """Lock the backlogs of these jobs, and open those that are to be opened; the keys of those that are there."""
    given = [each.backlog for each in jobs if each.backlog is not None]
    if not given:
        return set()
    opened = {each.key: each.holds for each in given if each.opens}
    if opened:
        await session.do("open_backlogs", *columns(sorted(opened.items())))
    keys = sorted({each.key for each in given})
    return {row["key"] for row in await session.rows("lock_backlogs", keys)}


async def enter(session: Session, stored: Iterable[HandedOver]) -> set[str]:
    """Give jobs their places in backlogs that are locked here; the ids of those that wait behind another one."""
    waiting: set[str] = set()
    rows: list[tuple[object, ...]] = []
    places_of = [(each.backlog, each.job.id) for each in stored if each.backlog is not None]
    if not places_of:
        return waiting
    keys = sorted({place.key for place, _ in places_of})
    begun = {row["key"] for row in await session.rows("backlogs_with_jobs", keys)}
    for place, job_id in places_of:
        if place.key in begun:
            waiting.add(job_id)
        begun.add(place.key)
        rows.append((place.key, place.position, job_id))
    await session.do("add_backlog_jobs", *columns(rows))
    return waiting


async def keys_between(session: Session, first: str, last: str, limit: int) -> list[str]:
    return [row["key"] for row in await session.rows("backlogs_between", first, last, limit)]


async def look(session: Session, limit: int, cursor: str | None) -> Look:
    """Find what is to be done, without a lock."""
    rows = await session.rows("look_at_backlogs", cursor or "", max(limit, 0))
    due = [row["key"] for row in rows if row["due"]]
    return Look(due, rows[-1]["key"] if rows and len(rows) >= limit else None)


async def advance(session: Session, keys: Sequence[str]) -> list[str]:
    """Inside a transaction: let these backlogs go on; the jobs that they released."""
    holds = {row["key"]: row["holds"] for row in await session.rows("try_lock_backlogs", list(keys))}
    now = await session.now()
    session = session.at(now)
    released: list[str] = []
    going = set(holds)
    while going:
        firsts = {row["key"]: row for row in await session.rows("first_backlog_jobs", sorted(going))}
        empty = sorted(going - firsts.keys())
        if empty:
            await session.do("close_backlogs", empty)
        ids = sorted(row["id"] for row in firsts.values())
        await session.rows("lock_jobs", ids)  # no operator moves them meanwhile
        found = await places.find(session, ids)
        changes: dict[str, tuple[Found, Change]] = {}
        passed: list[tuple[object, ...]] = []
        for key, row in firsts.items():
            job = found.get(row["id"])
            match step(None if job is None else job.at.state, holds=holds[key]):
                case Step.RELEASE:
                    assert job is not None, "one that is gone is passed"
                    ready = replace(job.at, state=runnable_state(job.at.run_at, now))
                    changes[job.id] = (job, Change(job.job, ready))
                case Step.PASS:
                    passed.append((key, row["position"]))
        released += await moving.move(session, changes, now)
        if passed:
            await session.do("drop_backlog_jobs", *columns(passed))
        going = {str(key) for key, _ in passed}
    return sorted(released)


async def before(session: Session, job_id: str) -> str | None:
    row = await session.row("before_in_backlog", job_id) if is_id(job_id) else None
    return None if row is None else row["id"]
