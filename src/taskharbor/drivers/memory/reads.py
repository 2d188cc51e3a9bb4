"""What the store tells about jobs, queues and leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from taskharbor.drivers.base import LeaseRecord, Page, WorkflowPage, text_size
from taskharbor.drivers.memory.leases import after
from taskharbor.drivers.memory.order import Order
from taskharbor.drivers.memory.store import Job, Placed, Store, Workflow
from taskharbor.job import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    MemberResult,
    QueueRecord,
    State,
    WorkflowRecord,
)
from taskharbor.lifecycle import TERMINAL

# -- jobs ----------------------------------------------------------------------------------------


def record(job: Job, now: int) -> JobRecord:
    lease, latest = job.lease, _latest(job)
    return JobRecord(
        id=job.id,
        task=job.task,
        payload=job.payload,
        queue=job.queue,
        priority=job.priority,
        state=job.state_at(now),
        enqueued_at=job.enqueued_at,
        run_at=job.shown_run_at,
        attempts=job.attempts,
        number=job.number,
        due_at=job.due_at,
        expires_at=job.expires_at,
        idempotency_key=job.idempotency_key,
        delivery=job.delivery,
        options=job.options,
        depends_on=job.depends_on,
        version=job.version,
        suspect=job.suspect and job.state is State.READY,
        worker=lease.worker if lease else None,
        lease_expires_at=lease.expires_at if lease else None,
        lease_expired=lease is not None and lease.expired(now),
        cancel_requested=lease is not None and job.id in lease.cancel_requested,
        reason=job.reason,
        finished_at=job.finished_at,
        error=None if latest is None else latest.error,
        last_status=None if latest is None else latest.status,
        last_finished_at=None if latest is None else latest.finished_at,
        result=job.result,
        progress=job.progress,
    )


def _latest(job: Job) -> AttemptRecord | None:
    return next(reversed(job.history.values())).record if job.history else None


def history(job: Job, limit: int) -> list[AttemptRecord]:
    return [attempt.record for attempt in islice(reversed(job.history.values()), limit)]


def page(store: Store, where: JobFilter, cursor: str | None, limit: int, now: int) -> Page:
    candidates = (store.jobs[job_id] for job_id in store.ids.descending(below=cursor))
    matching = (job for job in candidates if _matches(job, where, now))
    jobs = [record(job, now) for job in islice(matching, limit)]
    more = len(jobs) == limit > 0 and next(matching, None) is not None
    return Page(jobs, jobs[-1].id if more else None)


def _matches(job: Job, where: JobFilter, now: int) -> bool:
    return (
        (where.state is None or job.state_at(now) is where.state)
        and (where.queue is None or job.queue == where.queue)
        and (where.task is None or job.task == where.task)
        and (where.tag is None or where.tag in job.options.tags)
        and (where.workflow is None or (job.workflow is not None and job.workflow.id == where.workflow))
    )


# -- workflows -----------------------------------------------------------------------------------


def workflow_record(store: Store, workflow: Workflow) -> WorkflowRecord:
    states = Counter(job.state for job in store.members(workflow))
    ended = {state: states.pop(state, 0) for state in (*TERMINAL, State.WAITING)}
    return WorkflowRecord(
        id=workflow.id,
        about=workflow.about,
        enqueued_at=workflow.enqueued_at,
        total=len(workflow.members),
        idempotency_key=workflow.idempotency_key,
        succeeded=ended[State.SUCCEEDED],
        dead=ended[State.DEAD],
        cancelled=ended[State.CANCELLED],
        waiting=ended[State.WAITING],
        active=states.total(),
    )


def workflow_page(store: Store, cursor: str | None, limit: int) -> WorkflowPage:
    ids = sorted((i for i in store.workflows if cursor is None or i < cursor), reverse=True)
    page = [workflow_record(store, store.workflows[workflow_id]) for workflow_id in ids[:limit]]
    return WorkflowPage(page, page[-1].id if page and len(ids) > limit else None)


def results(store: Store, ids: Sequence[str], bytes_limit: int | None) -> list[list[MemberResult]]:
    answers: list[list[MemberResult]] = []
    size = 0
    for job_id in ids:
        job = store.jobs.get(job_id)
        members = [_member_result(store, member) for member in job.depends_on] if job is not None else []
        size += sum(text_size(each.result) for each in members)
        if bytes_limit is not None and size > bytes_limit:
            members = [MemberResult(each.job_id, each.succeeded, left_out=True) for each in members]
        answers.append(members)
    return answers


def _member_result(store: Store, member: str) -> MemberResult:
    job = store.jobs.get(member)
    succeeded = job is not None and job.state is State.SUCCEEDED
    return MemberResult(member, succeeded, job.result if job is not None and succeeded else None)


# -- numbers -------------------------------------------------------------------------------------


def counts(store: Store, queue: str | None, now: int) -> dict[State, int]:
    queues = list(store.tally) if queue is None else [queue]
    numbers = dict.fromkeys(State, 0)
    for name in queues:
        for state, number in store.tally.get(name, {}).items():
            numbers[state] += number
        # The tally counts everything in a place as ready; the time says which of them are ahead.
        ahead = _number_ahead(store, name, now)
        numbers[State.READY] -= ahead
        numbers[State.SCHEDULED] += ahead
    return numbers


def _number_ahead(store: Store, queue: str, now: int) -> int:
    return sum(len(order) - order.count_before(after(now)) for order in _orders(store, queue))


def queues(store: Store, now: int) -> list[QueueRecord]:
    busy = {name for name, tally in store.tally.items() if tally[State.READY] or tally[State.RUNNING]}
    return [_queue(store, name, now) for name in sorted(busy | store.paused)]


def _queue(store: Store, name: str, now: int) -> QueueRecord:
    numbers = counts(store, name, now)
    firsts = (order.first() for order in _orders(store, name))
    return QueueRecord(
        name=name,
        paused=name in store.paused,
        ready=numbers[State.READY],
        scheduled=numbers[State.SCHEDULED],
        running=numbers[State.RUNNING],
        oldest_ready_at=min((spot[0] for spot in firsts if spot and spot[0] <= now), default=None),
    )


def _orders(store: Store, queue: str) -> Iterator[Order[Placed]]:
    for places in (store.ordinary, store.suspects):
        for _, order in places.orders([queue]):
            yield order


def leases(store: Store, now: int) -> list[LeaseRecord]:
    return [
        LeaseRecord(
            token=lease.token,
            worker=lease.worker,
            expires_at=lease.expires_at,
            expired=lease.expired(now),
            open=len(lease.open),
            running=lease.running(),
        )
        for lease in sorted(store.leases.values(), key=lambda lease: lease.token)
    ]
