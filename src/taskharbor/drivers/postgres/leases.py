"""Leases and what they cover: claiming, extending and collecting them, and the workers that survive them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import asyncpg
import msgspec

from taskharbor.drivers.base import (
    Claim,
    Claimed,
    ClaimRequest,
    ExpiredLease,
    Extended,
    Extension,
    Heartbeat,
    Outlook,
    SettleAnswer,
    worker_of,
)
from taskharbor.drivers.postgres import claim_hints, instants
from taskharbor.drivers.postgres.aside import hold_labels
from taskharbor.drivers.postgres.claim_hints import SearchPlan, SearchReport
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.places import is_id
from taskharbor.drivers.postgres.reads import still_running
from taskharbor.drivers.stored import DELIVERIES

_encode = msgspec.json.Encoder().encode
_decode_metas = msgspec.json.Decoder(dict[str, str]).decode
LIMIT_MAX = 100_000  # of one claim: its answer is held in memory
SEPARATOR = "\x1e"  # of the texts in a claim's answer


async def claim(
    session: Session, request: ClaimRequest, look: SearchPlan
) -> tuple[Claim, SearchReport | None]:
    token = request.token
    rows = await session.rows(
        "claim", token, worker_of(token), request.lease, min(request.limit, LIMIT_MAX),
        None if request.queues is None else list(request.queues), min(request.once_limit, LIMIT_MAX),
        request.suspects, request.supervised, session.given_now, look.trail, look.search,
        0 if look.begins_trail else claim_hints.FAR, claim_hints.LATE,
        request.bytes_limit, request.max_losses, look.many,
        list(request.aside) or None, list(request.recall) or None,
    )  # fmt: skip
    now, expires_at, next_due, suspects_waiting, repeated, trail, searched, more, aside, many, *_ = rows[-1]
    if repeated:
        return await _claimed_before(session, request), None
    jobs: list[Claimed] | None = []
    for row in rows:
        if row["taken"] is not None and jobs is not None:
            part = _jobs_in(row)
            jobs = None if part is None else jobs + part if jobs else part
    nobodys = [id_ for row in rows for id_ in row["nobodys"] or ()]
    if nobodys:
        await _strike_nobodys(session, token, nobodys)
    if jobs is None:
        jobs = await unsettled(session, token)
    elif nobodys:
        jobs = [job for job in jobs if job.id not in nobodys]
    claim = Claim(
        now, expires_at, jobs, next_due, suspects_waiting, more=more, unreadable=tuple(aside),
        max_losses=request.max_losses, aside=tuple(rows[-1]["labels"]), holds=frozenset(rows[-1]["holds"]),
    )  # fmt: skip
    pages, lookups, entries = (rows[-1][each] for each in ("pages", "lookups", "entries"))
    return claim, SearchReport(trail, searched, many, pages, lookups, entries)


def _jobs_in(row: asyncpg.Record) -> list[Claimed] | None:
    """Make the jobs of a row of a claim's answer; None if a text holds the separator."""
    (
        taken, ids, tasks, payloads, queue, queues, priority, priorities, numbers, attempts, first_numbers, run_ats,
        enqueued_ats, due_ats, expires_ats, deliveries, options, versions, metas, *_,
    ) = row[10:]  # fmt: skip
    each_id, each_task, each_payload = _split(ids, taken), _split(tasks, taken), _split(payloads, taken)
    if len(each_task) != taken or len(each_payload) != taken:
        return None
    each_run_at = instants.of_array(run_ats)
    return list(
        map(
            Claimed,
            each_id,
            each_task,
            each_payload,
            queues or repeat(queue),
            priorities or repeat(priority),
            numbers or repeat(1),
            attempts or repeat(0),
            first_numbers or repeat(1),
            each_run_at,
            each_run_at if enqueued_ats == run_ats else instants.of_array(enqueued_ats),
            due_ats or repeat(None),
            expires_ats or repeat(None),
            map(DELIVERIES.get, deliveries) if deliveries else repeat(None),
            options or repeat(None),
            versions or repeat(1),
            repeat(None) if metas is None else map(_decode_metas(metas).get, each_id),
        )
    )


def _split(texts: str, count: int) -> list[str]:
    """Split joined texts. Where all are the same, all are one object: a task's name is looked up by its hash."""
    first, _, rest = texts.partition(SEPARATOR)
    if count > 1 and len(rest) == (len(first) + 1) * (count - 1) - 1 and rest.startswith(first):
        same = [first] * count
        if texts == SEPARATOR.join(same):
            return same
    return texts.split(SEPARATOR)


async def _strike_nobodys(session: Session, token: str, ids: list[str]) -> None:
    """Strike rows of the order that were written by hand and have no job: the lease would never end with them."""
    await session.do("strike", [token], ids)
    await session.do("close_leases", [token], [len(ids)], ids)
    await session.do("delete_closed", [token])


async def _claimed_before(session: Session, request: ClaimRequest) -> Claim:
    """The answer to this very claim was lost: the same jobs, as far as they are not settled."""
    lease = await session.row("lease", request.token, session.given_now)
    if lease is None:  # settled by another holder of the token, a moment ago
        now = await session.now()
        return Claim(now, now + request.lease, [])
    jobs = await unsettled(session, request.token)
    return Claim(lease["now"], lease["expires_at"], jobs, max_losses=lease["max_losses"])


async def unsettled(session: Session, token: str) -> list[Claimed]:
    return [_claimed(tuple(row)) for row in await session.rows("unsettled", token)]


def _claimed(row: Sequence[object]) -> Claimed:
    (
        id_, task, payload, queue, priority, number, attempts, first_number, run_at, enqueued_at, due_at,
        expires_at, delivery, options, version, meta,
    ) = row  # fmt: skip
    return Claimed(
        id_, task, payload, queue, priority, number, attempts, first_number, run_at, enqueued_at, due_at,  # type: ignore[arg-type]
        expires_at, DELIVERIES.get(delivery), options, version, meta,  # type: ignore[arg-type]
    )  # fmt: skip


# -- heartbeat -----------------------------------------------------------------------------------


async def extend(session: Session, extensions: Sequence[Extension]) -> Heartbeat:
    rows = await session.rows(
        "extend",
        [each.token for each in extensions],
        [each.lease for each in extensions],
        [_encode(dict(each.running)).decode() for each in extensions],
        session.given_now,
    )
    answers = []
    marked: list[tuple[str, str]] = []  # (token, job id)
    for extension, row in zip(extensions, rows, strict=True):
        if not row["known"]:
            answers.append(Extended(extension.token, SettleAnswer.NOT_RUNNING))
        elif not row["live"]:
            answers.append(Extended(extension.token, SettleAnswer.LEASE_EXPIRED))
        else:
            marked += [(extension.token, job_id) for job_id in extension.at_most_once if is_id(job_id)]
            answers.append(
                Extended(extension.token, SettleAnswer.DONE, row["extended_to"], tuple(row["cancels"]))
            )
    if marked:
        await _mark_at_most_once(session, marked)
    paused = frozenset(row["queue"] for row in await session.rows("paused_queues"))
    return Heartbeat(
        rows[0]["now"] if rows else await session.now(), answers, paused, await hold_labels(session)
    )


async def cancel_requests(session: Session, tokens: Sequence[str]) -> dict[str, tuple[str, ...]]:
    rows = await session.rows("cancel_requests", list(tokens))
    return {row["token"]: tuple(row["cancels"]) for row in rows}


async def _mark_at_most_once(session: Session, marked: Sequence[tuple[str, str]]) -> None:
    """In the leases, for their collector, and in the jobs, for readers once they succeeded.

    The leases are locked; the jobs are next, by id, as every statement locks them.
    """
    await session.rows("lock_jobs", sorted({job_id for _, job_id in marked}))
    for token in dict.fromkeys(token for token, _ in marked):
        ids = [job_id for holder, job_id in marked if holder == token]
        await session.do("mark_jobs_at_most_once", token, ids)
        await session.do("mark_at_most_once", token, ids)


# -- collecting ----------------------------------------------------------------------------------


async def take_expired(session: Session, token: str, duration: int) -> tuple[ExpiredLease | None, Outlook]:
    [row] = await session.rows("take_expired", token, duration, session.given_now)
    outlook = Outlook(row["any_lease"], row["any_late"], row["any_backlog"])
    if row["worker"] is None:
        return None, outlook
    jobs = await unsettled(session, token)
    if not jobs:
        await session.do("drop_lease", token)
    expired = ExpiredLease(
        token=token,
        now=row["now"],
        expires_at=row["expires_at"],
        worker=row["worker"],
        alone=row["alone"],
        supervised=row["supervised"],
        worker_survived=row["worker_survived"],
        jobs=jobs,
        running=still_running(row["running"], [job.id for job in jobs]),
        expired_at=row["expires_at"] if row["expired_at"] is None else row["expired_at"],
        max_losses=row["max_losses"],
    )
    return expired, outlook


async def mark_survived(session: Session, token: str) -> None:
    """Mark the lease of this claim if it is over, and the losses that a collector has settled from it.

    The lease first: a collector that settles at this moment holds its lock, and its rows are seen afterwards.
    """
    await session.do("mark_survived_lease", token, session.given_now)
    await session.do("mark_survived_attempts", token)
