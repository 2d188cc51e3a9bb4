"""Handing over: jobs that come from a log, in the middle of their first run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from taskharbor.drivers.contract.handing_over import HandedOver, HandOverAnswer, NotOwner, Owner
from taskharbor.drivers.memory import backlogs
from taskharbor.drivers.memory.enqueue import enqueue, new_job
from taskharbor.drivers.memory.store import Attempt, Store
from taskharbor.records import State
from taskharbor.rules.settling import handed_over as standing
from taskharbor.rules.settling import has_begun


def hand_over(
    store: Store, jobs: Sequence[HandedOver], owners: Sequence[Owner], now: int
) -> list[HandOverAnswer]:
    strangers = [each.partition for each in owners if store.epochs.get(each.partition) != each.epoch]
    if strangers:
        raise NotOwner(strangers)
    return [_hand_over(store, each, now) for each in jobs]


def _hand_over(store: Store, handed: HandedOver, now: int) -> HandOverAnswer:
    new, attempt = handed.job, handed.attempt
    if new.id in store.jobs or (new.queue, new.idempotency_key) in store.keys:
        return HandOverAnswer.KNOWN
    waits = False
    if handed.backlog is not None:
        entered = backlogs.enter(store, handed.backlog, new.id)
        if entered is None:
            return HandOverAnswer.NO_BACKLOG
        waits = not entered
    job = new_job(store, new, {}, now)
    job.at = standing(handed, job.at.run_at, now)
    if waits and not job.at.is_finished:
        job.at = replace(job.at, state=State.WAITING)
    if attempt is not None:
        job.history[attempt.number] = Attempt(handed.token, replace(attempt, job_id=new.id))
        job.begun = has_begun(attempt.status, attempt.started_at)
    store.add(job)
    enqueue(store, handed.inserts, now)
    return HandOverAnswer.STORED


def own(store: Store, partition: str) -> Owner:
    epoch = store.epochs[partition] = store.epochs.get(partition, 0) + 1
    return Owner(partition, epoch)


def keys_between(store: Store, queue: str, first: str, last: str, limit: int) -> list[str]:
    return sorted(key for name, key in store.keys if name == queue and first <= key <= last)[:limit]
