"""Handing over: jobs that come from a log, in the middle of their first run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from taskharbor.drivers.contract.handing_over import HandedOver, HandOverAnswer, Owner
from taskharbor.drivers.postgres import backlogs
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.enqueue import columns, enqueue, insert_rows_alone, store_rows
from taskharbor.drivers.postgres.moving import Row, add_tallies, ended_row, ready_row, waiting_row
from taskharbor.drivers.postgres.settle import attempt_size
from taskharbor.records import State
from taskharbor.rules.settling import handed_over as standing
from taskharbor.rules.standing import Standing, first_run_at


async def hand_over(
    session: Session, jobs: Sequence[HandedOver], owners: Sequence[Owner]
) -> list[HandOverAnswer]:
    """Inside a transaction: the rows of what is new, and then everything else at once."""
    await backlogs.refuse_strangers(session, owners)
    there = await backlogs.lock(session, jobs)
    now = await session.now()
    session = session.at(now)
    lost = [each.job.id for each in jobs if each.backlog is not None and each.backlog.key not in there]
    taken = jobs if not lost else [each for each in jobs if each.job.id not in set(lost)]
    stored = await insert_rows_alone(session, [each.job for each in taken], now)
    new = [each for each in taken if each.job.id in stored]
    waiting = await backlogs.enter(session, new)
    to = {each.job.id: standing(each, first_run_at(each.job, now), now) for each in new}
    attempts = [_attempt_row(each, to[each.job.id]) for each in new if each.attempt is not None]
    if attempts:
        await store_rows(session, "insert_attempts", sorted(attempts), attempt_size, now)
    going_on = {job_id: at for job_id, at in to.items() if not at.is_finished}
    ready = [ready_row(job_id, at) for job_id, at in going_on.items() if job_id not in waiting]
    if ready:
        await session.do("put_ready", *columns(ready))
    behind = [waiting_row(job_id, at) for job_id, at in going_on.items() if job_id in waiting]
    if behind:
        await session.do("insert_waiting", *columns(behind))
    ended = [ended_row(job_id, at) for job_id, at in to.items() if at.is_finished]
    if ended:
        await session.do("insert_ended", *columns(ended), now)
        await add_tallies(
            session, Counter((each.job.queue, State.DEAD) for each in new if to[each.job.id].is_finished)
        )
    inserts = [job for each in new for job in each.inserts]
    if inserts:
        await enqueue(session, inserts)
    known = set() if not lost else {row["id"] for row in await session.rows("stored_ids", lost)}
    return [_answer(each.job.id, stored, set(lost) - known) for each in jobs]


def _answer(job_id: str, stored: set[str], lost: set[str]) -> HandOverAnswer:
    if job_id in stored:
        return HandOverAnswer.STORED
    return HandOverAnswer.NO_BACKLOG if job_id in lost else HandOverAnswer.KNOWN


def _attempt_row(handed: HandedOver, to: Standing) -> Row:
    attempt = handed.attempt
    assert attempt is not None, "the caller asked"
    return (
        handed.job.id, attempt.number, attempt.status, attempt.retry_count, handed.attempts, handed.token, None,
        attempt.started_at, to.next_at, None, attempt.error, attempt.traceback, attempt.detail, False,
        attempt.retry_delay, attempt.fingerprint, attempt.code_version, to.aside,
    )  # fmt: skip


async def keys_between(session: Session, queue: str, first: str, last: str, limit: int) -> list[str]:
    return [row["key"] for row in await session.rows("keys_between", queue, first, last, limit)]
