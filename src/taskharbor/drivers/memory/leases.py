"""Leases: claiming, extending and collecting them, and the workers that survive them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from taskharbor.drivers.base import (
    Claim,
    Claimed,
    ClaimRequest,
    ExpiredLease,
    Extended,
    Extension,
    Heartbeat,
    SettleAnswer,
    text_size,
    worker_of,
)
from taskharbor.drivers.contract.holds import LABELS_MAX
from taskharbor.drivers.memory.order import Order
from taskharbor.drivers.memory.store import Job, Lease, Placed, Places, Store
from taskharbor.records import Delivery
from taskharbor.rules.aside import label_of, lane_of, queue_of
from taskharbor.rules.settling import proves_survival

# -- claim ---------------------------------------------------------------------------------------


def claim(store: Store, request: ClaimRequest, now: int) -> Claim:
    lease = store.leases.get(request.token)
    more = False
    holds = store.hold_labels()
    labels = _labels_of(store, request, holds)
    if lease is None:  # otherwise this claim is repeated, because its answer was lost
        lease = _new_lease(request, now)
        _recall(store, request, now)
        chosen, more = _choose(store, request, now)
        for job in chosen:
            store.lease_out(job, lease)
        if lease.open:  # a claim that found nothing leaves nothing behind
            store.leases[lease.token] = lease
    jobs = [claimed(job) for job in lease.open.values()]
    return Claim(
        now=now,
        expires_at=lease.expires_at,
        jobs=jobs,
        next_due=_next_due(store, request, now) if len(jobs) < request.limit and not more else None,
        suspects_waiting=not request.suspects and _suspects_waiting(store, request, now),
        more=more,
        max_losses=lease.max_losses,
        aside=labels,
        holds=holds,
    )


def _new_lease(request: ClaimRequest, now: int) -> Lease:
    return Lease(
        token=request.token,
        claimed_as=request.token,
        worker=worker_of(request.token),
        expires_at=now + request.lease,
        alone=request.suspects,
        supervised=request.supervised,
        max_losses=request.max_losses,
    )


def _choose(store: Store, request: ClaimRequest, now: int) -> tuple[list[Job], bool]:
    """Return the jobs to lease, and whether more would fit if they were smaller."""
    chosen: list[Job] = []
    if request.limit <= 0:
        return chosen, False
    once_left, bytes_left = request.once_limit, request.bytes_limit
    for job in _runnable(store, request, now):
        if job.at.delivery is Delivery.AT_MOST_ONCE:
            if once_left <= 0:
                break  # not skipped: no later job may overtake it
            once_left -= 1
        bytes_left -= text_size(job.row.payload)
        if (options := job.row.options_text) is not None:
            bytes_left -= text_size(options)
        if job.row.meta is not None:
            bytes_left -= text_size(job.row.meta)
        if bytes_left < 0 and chosen:
            return chosen, True
        chosen.append(job)
        if len(chosen) == request.limit:
            break
    return chosen, False


def _runnable(store: Store, request: ClaimRequest, now: int) -> Iterator[Job]:
    """What may be claimed, in the strict order: priority, then due time, then id, over all the queues."""
    by_priority: dict[int, list[Order[Placed]]] = {}
    for priority, order in _orders(store, store.places(request.suspects), request):
        by_priority.setdefault(priority, []).append(order)
    for priority in sorted(by_priority, reverse=True):
        due = [order.before(after(now)) for order in by_priority[priority]]
        for _, job_id in heapq.merge(*due):
            yield store.jobs[job_id]


def _orders(store: Store, places: Places, request: ClaimRequest) -> Iterator[tuple[int, Order[Placed]]]:
    return places.orders(_lanes(store, places, request, (None, *dict.fromkeys(request.aside))))


def _lanes(
    store: Store, places: Places, request: ClaimRequest, labels: Iterable[str | None]
) -> Iterator[str]:
    """The lanes of these labels in the queues that are served, without those of a hold."""
    asked = map(queue_of, places.lanes()) if request.queues is None else request.queues
    queues = [queue for queue in dict.fromkeys(asked) if queue not in store.paused]
    holds = store.hold_labels()
    for label in labels:
        if label not in holds:
            yield from (lane_of(queue, label) for queue in queues)


def _recall(store: Store, request: ClaimRequest, now: int) -> None:
    """Make jobs due that wait in a place which this worker knows: their delay was for those that do not."""
    places = store.places(request.suspects)
    lanes = list(_lanes(store, places, request, dict.fromkeys(request.recall)))
    ahead = sorted(
        (-priority, spot) for priority, order in places.orders(lanes) for spot in order.since(after(now))
    )
    for _, (_, job_id) in ahead[: max(request.limit, 0)]:
        job = store.jobs[job_id]
        store.move(job, replace(job.at, run_at=now))


def _labels_of(store: Store, request: ClaimRequest, holds: AbstractSet[str]) -> tuple[str, ...]:
    """The labels under which jobs stand aside in the queues that are served."""
    found = {
        label
        for places in (store.ordinary, store.suspects)
        for lane in places.lanes()
        if (label := label_of(lane)) is not None
        and label not in holds
        and (request.queues is None or queue_of(lane) in request.queues)
        and queue_of(lane) not in store.paused
    }
    return tuple(sorted(found)[:LABELS_MAX])


def _next_due(store: Store, request: ClaimRequest, now: int) -> int | None:
    orders = _orders(store, store.places(request.suspects), request)
    ahead = (order.first_from(after(now)) for _, order in orders)
    return min((spot[0] for spot in ahead if spot is not None), default=None)


def _suspects_waiting(store: Store, request: ClaimRequest, now: int) -> bool:
    firsts = (order.first() for _, order in _orders(store, store.suspects, request))
    return any(spot is not None and spot[0] <= now for spot in firsts)


def after(instant: int) -> Placed:
    """The bound between what is due at this instant and what is not yet: no id sorts before the empty one."""
    return (instant + 1, "")


def claimed(job: Job) -> Claimed:
    row, at = job.row, job.at
    return Claimed(
        id=row.id,
        task=row.task,
        payload=row.payload,
        queue=row.queue,
        priority=row.priority,
        number=at.number,
        attempts=at.attempts,
        first_number=at.first_number,
        run_at=at.run_at,
        enqueued_at=row.enqueued_at,
        due_at=at.due_at,
        expires_at=at.begin_by,
        delivery=at.delivery,
        options=row.options_text,
        version=row.version,
        meta=row.meta,
    )


# -- heartbeat -----------------------------------------------------------------------------------


def extend(store: Store, extensions: Sequence[Extension], now: int) -> Heartbeat:
    answers = [_extend(store, one, now) for one in extensions]
    mark_survived(store, {each.token for each in answers if proves_survival(each.answer)}, now)
    return Heartbeat(now, answers, frozenset(store.paused), store.hold_labels())


def _extend(store: Store, extension: Extension, now: int) -> Extended:
    lease = store.leases.get(extension.token)
    if lease is None:
        return Extended(extension.token, SettleAnswer.NOT_RUNNING)
    if lease.expired(now):
        return Extended(extension.token, SettleAnswer.LEASE_EXPIRED)
    lease.expires_at = now + extension.lease
    lease.told_running = dict(extension.running)
    for job_id in extension.at_most_once:
        if job_id in lease.open:
            _mark_at_most_once(lease.open[job_id])
    return Extended(
        extension.token, SettleAnswer.DONE, lease.expires_at, tuple(sorted(lease.cancel_requested))
    )


def _mark_at_most_once(job: Job) -> None:
    """In its place, for the collector, and in its row, for readers once it has succeeded."""
    job.at = replace(job.at, delivery=Delivery.AT_MOST_ONCE)
    job.row = replace(job.row, delivery=Delivery.AT_MOST_ONCE)


def cancel_requests(store: Store, tokens: Sequence[str]) -> dict[str, tuple[str, ...]]:
    leases = [lease for token in tokens if (lease := store.leases.get(token)) is not None]
    return {lease.token: tuple(sorted(lease.cancel_requested)) for lease in leases if lease.cancel_requested}


# -- collecting ----------------------------------------------------------------------------------


def take_expired(store: Store, token: str, duration: int, now: int) -> ExpiredLease | None:
    lease = store.leases.get(token)
    if lease is None:  # otherwise the answer to this very call was lost
        lease = _first_expired(store, now)
        if lease is None:
            return None
        _hand_over(store, lease, token, now + duration)
    return ExpiredLease(
        token=lease.token,
        now=now,
        expires_at=lease.expires_at,
        worker=lease.worker,
        alone=lease.alone,
        supervised=lease.supervised,
        worker_survived=lease.worker_survived,
        jobs=[claimed(job) for job in lease.open.values()],
        running=lease.running(),
        expired_at=lease.expires_at if lease.expired_at is None else lease.expired_at,
        max_losses=lease.max_losses,
    )


def _first_expired(store: Store, now: int) -> Lease | None:
    expired = (lease for lease in store.leases.values() if lease.expired(now))
    return min(expired, key=lambda lease: (lease.expires_at, lease.token), default=None)


def _hand_over(store: Store, lease: Lease, token: str, expires_at: int) -> None:
    """From here on the old token proves nothing, and only the collector's settles these jobs."""
    if lease.expired_at is None:  # a collector may vanish as well: the first expiry is the one that tells
        lease.expired_at = lease.expires_at
    lease.expires_at = expires_at
    del store.leases[lease.token]
    lease.token = token
    store.leases[token] = lease


# -- workers that survive their leases -----------------------------------------------------------


def mark_survived(store: Store, tokens: AbstractSet[str], now: int) -> None:
    """Mark the leases of these claims that are over, and the losses that collectors have settled from them."""
    if not tokens:
        return
    for lease in store.leases.values():
        if lease.claimed_as in tokens and (lease.token != lease.claimed_as or lease.expired(now)):
            lease.worker_survived = True
    for job in store.jobs.values():
        for row in job.history.values():
            if row.origin in tokens:
                row.record = replace(row.record, worker_survived=True)
