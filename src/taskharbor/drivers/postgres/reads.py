"""What can be asked: lists, counts, history, queues, leases."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from taskharbor.drivers.base import LeaseRecord
from taskharbor.drivers.postgres import places
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.stored import STATES, Reading, attempt_of
from taskharbor.records import AttemptRecord, JobRecord, QueueRecord, State, StepRecord

KEPT_FROM = 50_000  # jobs: counting them takes some 15 ms
KEPT_SECONDS = 1.0

Number = tuple[str, State, int, int | None]  # queue, state, jobs, the due time of the first

_decode_running = msgspec.json.Decoder(dict[str, int]).decode


async def get(session: Session, ids: Sequence[str]) -> list[JobRecord | None]:
    found = await places.find(session, ids)
    return [places.record(found[job_id]) if job_id in found else None for job_id in ids]


async def counts(session: Session, queue: str | None, known: Counted) -> dict[State, int]:
    totals = dict.fromkeys(State, 0)
    for _name, state, jobs, _oldest in await _numbers(session, queue, known):
        totals[state] += jobs
    return totals


async def queues(session: Session, known: Counted) -> list[QueueRecord]:
    paused = {row["queue"] for row in await session.rows("paused_queues")}
    numbers: dict[str, dict[State, int]] = {name: {} for name in paused}
    oldest: dict[str, int] = {}
    for name, state, jobs, oldest_at in await _numbers(session, None, known):
        if state in (State.READY, State.SCHEDULED, State.RUNNING):
            numbers.setdefault(name, {})[state] = jobs
        if state is State.READY and oldest_at is not None:
            oldest[name] = Reading().instant("run_at", oldest_at)
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


async def _numbers(session: Session, queue: str | None, known: Counted) -> list[Number]:
    """How many jobs of each queue stand in each state, and since when the first one has been due."""
    standing = known.recall(queue) if session.given_now is None else None
    live = standing is None
    rows = await session.rows("queue_numbers", session.given_now, queue, live)
    numbers = [
        (row["queue"], STATES[row["state"]], row["jobs"], row["oldest_at"])
        for row in rows
        if row["state"] in STATES
    ]
    if live and session.given_now is None:
        known.remember(queue, [each for each in numbers if each[1] in (State.READY, State.SCHEDULED)])
    return numbers + (standing or [])


class Counted:
    """Counts of ready and scheduled jobs, kept for a second where counting them takes long.

    Counting is a scan, some 0.3 µs a job: a dashboard that looks every moment would keep a server busy that has a
    million. Below `KEPT_FROM` jobs it is always done anew, so that callers see their own last change.
    """

    def __init__(self) -> None:
        self._kept: dict[str | None, tuple[float, list[Number]]] = {}  # queue → until when, numbers

    def recall(self, queue: str | None) -> list[Number] | None:
        until, numbers = self._kept.get(queue, (0.0, None))
        return numbers if time.monotonic() < until else None

    def remember(self, queue: str | None, numbers: list[Number]) -> None:
        now = time.monotonic()
        self._kept = {name: kept for name, kept in self._kept.items() if now < kept[0]}
        if sum(jobs for _, _, jobs, _ in numbers) >= KEPT_FROM:
            self._kept[queue] = (now + KEPT_SECONDS, numbers)

    def forget(self) -> None:
        """An operator has changed many of them at once, and will want to see it."""
        self._kept = {}


async def history(session: Session, job_id: str, limit: int) -> list[AttemptRecord]:
    if not places.is_id(job_id):
        return []
    rows = await session.rows("history", job_id, max(limit, 0))
    return [attempt_of(job_id, *row.values()) for row in rows]


async def steps(session: Session, job_id: str) -> dict[str, StepRecord]:
    if not places.is_id(job_id):
        return {}
    return {
        row["name"]: StepRecord(row["result"], row["number"]) for row in await session.rows("steps", job_id)
    }


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


def still_running(reported: str, unsettled: Sequence[str]) -> dict[str, int]:
    """What the last heartbeat reported, less what has been settled since."""
    if reported == "{}":
        return {}
    open_ones = set(unsettled)
    try:
        running = _decode_running(reported)
    except (msgspec.DecodeError, UnicodeError):  # written by hand: for onlookers, and for weighing a loss
        return {}
    return {job_id: started for job_id, started in running.items() if job_id in open_ones}
