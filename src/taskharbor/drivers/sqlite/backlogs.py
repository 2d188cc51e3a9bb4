"""Backlogs: jobs of one key that execute one after the other, and who hands over to them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.drivers.contract.handing_over import BacklogPlace, NotOwner, Owner
from taskharbor.drivers.sqlite import moving, places
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import is_text
from taskharbor.rules.backlogs import Step, step
from taskharbor.rules.operating import Change
from taskharbor.rules.standing import runnable_state

BACKLOGS = statements("backlogs")


class Look(Struct):
    """The backlogs that a round looks at."""

    due: list[str]  # there may be something to do about these
    cursor: str | None


def refuse_strangers(session: Session, owners: Sequence[Owner]) -> None:
    strangers = [
        each.partition
        for each in owners
        if session.one(BACKLOGS["epoch"], (each.partition,)) != (each.epoch,)
    ]
    if strangers:
        raise NotOwner(strangers)


def own(session: Session, partition: str) -> Owner:
    return Owner(partition, session.one(BACKLOGS["own"], (partition,))[0])


def is_open(session: Session, key: str) -> bool:
    return session.one(BACKLOGS["holds"], (key,)) is not None


def enter(session: Session, place: BacklogPlace, job_id: str) -> bool:
    """Give a job its place, in a backlog that is there or that it opens; whether it is the only one there."""
    if not is_open(session, place.key):
        session.execute(BACKLOGS["open"], (place.key, int(place.holds)))
    is_alone = session.one(BACKLOGS["first_job"], (place.key,)) is None
    session.execute(BACKLOGS["add_job"], (place.key, place.position, job_id))
    return is_alone


def keys_between(session: Session, first: str, last: str, limit: int) -> list[str]:
    return [str(row[0]) for row in session.execute(BACKLOGS["keys_between"], (first, last, limit))]


def look(session: Session, limit: int, cursor: str | None) -> Look:
    """Find what is to be done. Only reads, since most rounds find nothing."""
    rows = session.execute(BACKLOGS["look"], (cursor or "", max(limit, 0))).fetchall()
    return Look([row[0] for row in rows if row[1]], rows[-1][0] if rows and len(rows) >= limit else None)


def advance(session: Session, keys: Sequence[str]) -> list[str]:
    return [job_id for key in keys if (job_id := _advance(session, key)) is not None]


def _advance(session: Session, key: str) -> str | None:
    """Let one backlog go on; the job that it released."""
    backlog = session.one(BACKLOGS["holds"], (key,))
    while backlog is not None:
        first = session.one(BACKLOGS["first_job"], (key,))
        if first is None:
            session.execute(BACKLOGS["close"], (key,))
            return None
        position, job_id = first
        found = places.find(session, job_id)
        match step(None if found is None else found.at.state, holds=bool(backlog[0])):
            case Step.STAY:
                return None
            case Step.RELEASE:
                assert found is not None, "one that is gone is passed"
                at = found.at
                ready = replace(at, state=runnable_state(at.run_at, session.now))
                moving.move(session, found, Change(found.job, ready))
                return str(job_id)
            case Step.PASS:
                session.execute(BACKLOGS["drop_job"], (key, position))
    return None


def before(session: Session, job_id: str) -> str | None:
    row = session.one(BACKLOGS["before"], (job_id,)) if is_text(job_id) else None
    return None if row is None else str(row[0])
