"""Handing over: jobs that come from a log, in the middle of their first run."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.contract.handing_over import HandedOver, HandOverAnswer, Owner
from taskharbor.drivers.sqlite import backlogs
from taskharbor.drivers.sqlite.enqueue import ENQUEUE, enqueue, store_row_alone
from taskharbor.drivers.sqlite.leases import SETTLE
from taskharbor.drivers.sqlite.moving import insert_ended, insert_ready
from taskharbor.drivers.sqlite.session import Session
from taskharbor.rules.settling import handed_over as standing
from taskharbor.rules.standing import Standing, first_run_at


def hand_over(session: Session, jobs: Sequence[HandedOver], owners: Sequence[Owner]) -> list[HandOverAnswer]:
    backlogs.refuse_strangers(session, owners)
    return [_hand_over(session, each) for each in jobs]


def _hand_over(session: Session, handed: HandedOver) -> HandOverAnswer:
    job, place = handed.job, handed.backlog
    is_missing = place is not None and not place.opens and not backlogs.is_open(session, place.key)
    if is_missing:
        is_known = session.one(ENQUEUE["job_exists"], (job.id,))[0]
        return HandOverAnswer.KNOWN if is_known else HandOverAnswer.NO_BACKLOG
    if not store_row_alone(session, job):
        return HandOverAnswer.KNOWN
    to = standing(handed, first_run_at(job, session.now), session.now)
    waits = place is not None and not backlogs.enter(session, place, job.id) and not to.is_finished
    if handed.attempt is not None:
        _record(session, handed, to)
    if to.is_finished:
        insert_ended(session, job.id, job.queue, to)
    elif waits:
        row = (job.id, to.number, to.attempts, to.first_number, to.begin_by, to.delivery)
        session.execute(ENQUEUE["insert_waiting"], row)
    else:
        insert_ready(session, job.id, job.queue, job.priority, to)
    if handed.inserts:
        enqueue(session, handed.inserts)
    return HandOverAnswer.STORED


def _record(session: Session, handed: HandedOver, to: Standing) -> None:
    attempt = handed.attempt
    assert attempt is not None, "the caller asked"
    session.execute(
        SETTLE["insert_attempt"],
        (handed.job.id, attempt.number, attempt.status, attempt.retry_count, handed.attempts, handed.token, None,
         attempt.started_at, session.now, to.next_at, attempt.retry_delay, None, attempt.error, attempt.traceback,
         attempt.detail, 0, None, attempt.fingerprint, attempt.code_version, to.aside),
    )  # fmt: skip


def keys_between(session: Session, queue: str, first: str, last: str, limit: int) -> list[str]:
    rows = session.execute(ENQUEUE["keys_between"], (queue, first, last, limit)).fetchall()
    return [str(row[0]) for row in rows]
