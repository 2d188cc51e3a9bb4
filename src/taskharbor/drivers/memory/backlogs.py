"""Backlogs: jobs of one key that execute one after the other."""

from __future__ import annotations

from msgspec.structs import replace

from taskharbor.drivers.contract.handing_over import Advanced, BacklogPlace
from taskharbor.drivers.memory.store import Backlog, Store
from taskharbor.records import State
from taskharbor.rules.backlogs import Step, step


def enter(store: Store, place: BacklogPlace, job_id: str) -> bool | None:
    """Give a job its place; whether it is the only one there. None if it was to join a backlog that has ended."""
    backlog = store.backlogs.get(place.key)
    if backlog is None:
        if not place.opens:
            return None
        backlog = store.backlogs[place.key] = Backlog(place.holds)
    is_alone = not backlog.jobs
    backlog.jobs[place.position] = job_id
    store.backlog_of[job_id] = place.key
    return is_alone


def keys_between(store: Store, first: str, last: str, limit: int) -> list[str]:
    return sorted(key for key in store.backlogs if first <= key <= last)[:limit]


def advance(store: Store, limit: int, cursor: str | None) -> Advanced:
    keys = sorted(key for key in store.backlogs if cursor is None or key > cursor)
    looked = keys[: max(limit, 0)]
    released = [job_id for key in looked if (job_id := _advance(store, key)) is not None]
    return Advanced(released, looked[-1] if len(looked) < len(keys) and looked else None)


def _advance(store: Store, key: str) -> str | None:
    """Let one backlog go on; the job that it released."""
    backlog = store.backlogs[key]
    for position, job_id in sorted(backlog.jobs.items()):
        job = store.jobs.get(job_id)
        match step(None if job is None else job.state, holds=backlog.holds):
            case Step.STAY:
                return None
            case Step.RELEASE:
                assert job is not None, "one that is gone is passed"
                store.move(job, replace(job.at, state=State.READY))
                return job_id
            case Step.PASS:
                del backlog.jobs[position]
                store.backlog_of.pop(job_id, None)
    del store.backlogs[key]
    return None


def before(store: Store, job_id: str) -> str | None:
    backlog = store.backlogs.get(store.backlog_of.get(job_id, ""))
    if backlog is None:
        return None
    previous = None
    for _, each in sorted(backlog.jobs.items()):
        if each == job_id:
            return previous
        previous = each
    return None
