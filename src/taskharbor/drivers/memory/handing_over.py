"""Handing over: jobs that come from a log, in the middle of their first run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from taskharbor.drivers.contract.handing_over import HandedOver
from taskharbor.drivers.memory.enqueue import enqueue, new_job
from taskharbor.drivers.memory.store import Attempt, Store
from taskharbor.rules.settling import handed_over as standing
from taskharbor.rules.settling import has_begun


def hand_over(store: Store, jobs: Sequence[HandedOver], now: int) -> list[bool]:
    return [_hand_over(store, each, now) for each in jobs]


def _hand_over(store: Store, handed: HandedOver, now: int) -> bool:
    new, attempt = handed.job, handed.attempt
    if new.id in store.jobs or (new.queue, new.idempotency_key) in store.keys:
        return False
    job = new_job(store, new, {}, now)
    job.at = standing(handed, job.at.run_at, now)
    if attempt is not None:
        job.history[attempt.number] = Attempt(handed.token, replace(attempt, job_id=new.id))
        job.begun = has_begun(attempt.status, attempt.started_at)
    store.add(job)
    enqueue(store, handed.inserts, now)
    return True


def keys_between(store: Store, queue: str, first: str, last: str, limit: int) -> list[str]:
    return sorted(key for name, key in store.keys if name == queue and first <= key <= last)[:limit]
