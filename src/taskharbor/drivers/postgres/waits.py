"""What keeps a job from running: the jobs before it, the jobs that it waits for, what workers hold."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.drivers.postgres import places
from taskharbor.drivers.postgres.connections import Session
from taskharbor.records import State

_decode_running = msgspec.json.Decoder(dict[str, int]).decode


async def count_before(session: Session, job_id: str, queues: Sequence[str] | None, limit: int) -> int | None:
    found = (await places.find(session, [job_id])).get(job_id)
    if found is None or found.at.state is not State.READY:
        return None
    asked = None if queues is None else list(queues)
    at, rank = found.at, -found.job.priority
    before: int = await session.value(
        "count_before", at.suspect, rank, at.run_at, job_id, limit, asked, found.now
    )
    return before


async def waits_for(session: Session, job_id: str, limit: int) -> list[str]:
    if not places.is_id(job_id):
        return []
    return [row["id"] for row in await session.rows("waits_for", job_id, limit)]


async def begun_at(session: Session, job_id: str) -> int | None:
    found = (await places.find(session, [job_id])).get(job_id)
    if found is None or found.token is None:
        return None
    return _running(await session.value("reported_running", found.token)).get(job_id)


async def worker_loads(session: Session) -> dict[str, WorkerLoad]:
    loads: dict[str, WorkerLoad] = {}
    for worker, held, reported in await session.rows("worker_loads", session.given_now):
        load = loads.get(worker, WorkerLoad())
        running = min(len(_running(reported)), held)
        loads[worker] = WorkerLoad(load.held + held, load.running + running)
    return loads


def _running(reported: str | None) -> dict[str, int]:
    """Which jobs the latest heartbeat of a lease named, and since when they run."""
    try:
        return {} if reported is None else _decode_running(reported)
    except (msgspec.DecodeError, UnicodeError):  # written by hand
        return {}
