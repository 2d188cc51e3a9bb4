"""What the store tells about jobs, queues and leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from taskharbor.drivers.base import LeaseRecord, Page, Search, SearchBudget, WorkflowPage, text_size
from taskharbor.drivers.memory.leases import after
from taskharbor.drivers.memory.order import Order
from taskharbor.drivers.memory.store import Job, Placed, Store, Workflow
from taskharbor.records import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    MemberResult,
    QueueRecord,
    State,
    WorkflowRecord,
)
from taskharbor.rules.filtering import matches, possible_states
from taskharbor.rules.lifecycle import TERMINAL
from taskharbor.rules.standing import Holder, LatestAttempt, job_record

# -- jobs ----------------------------------------------------------------------------------------


def record(job: Job, now: int) -> JobRecord:
    lease = job.lease
    holder = None
    if lease is not None:
        requested = job.id in lease.cancel_requested
        holder = Holder(lease.worker, lease.expires_at, lease.expired(now), requested)
    return job_record(
        job.row,
        job.standing_at(now),
        latest=_latest(job),
        holder=holder,
        depends_on=job.depends_on,
        progress=job.progress,
    )


def _latest(job: Job) -> LatestAttempt | None:
    if not job.history:
        return None
    attempt = next(reversed(job.history.values()))
    row = attempt.record
    return LatestAttempt(
        row.status, row.finished_at, row.error, attempt.result, row.fingerprint, row.code_version
    )


def history(job: Job, limit: int) -> list[AttemptRecord]:
    return [attempt.record for attempt in islice(reversed(job.history.values()), limit)]


def page(
    store: Store, where: JobFilter, cursor: str | None, limit: int, now: int, budget: SearchBudget
) -> Page:
    """Look at the newest jobs until the page is full, and one more matches, or the budget is used up."""
    search = Search(budget)
    jobs: list[JobRecord] = []
    if limit <= 0:
        return Page(jobs, None)
    last: Job | None = None
    states = _stored_as(where)
    for job in _candidates(store, where, cursor):
        if last is not None and search.is_over:
            return Page(jobs, last.id, search.examined, None if len(jobs) == limit else last.row.enqueued_at)
        search.examined += 1
        last = job
        if _may_match(job, where, states) and matches(found := record(job, now), where):
            if len(jobs) == limit:
                return Page(jobs, jobs[-1].id, search.examined)
            jobs.append(found)
    return Page(jobs, None, search.examined)


def _candidates(store: Store, where: JobFilter, cursor: str | None) -> Iterator[Job]:
    if where.ids is None:
        return (store.jobs[job_id] for job_id in store.ids.descending(below=cursor))
    known = {job_id for job_id in where.ids if job_id in store.jobs and (cursor is None or job_id < cursor)}
    return (store.jobs[job_id] for job_id in sorted(known, reverse=True))


def _stored_as(where: JobFilter) -> frozenset[State]:
    """The states that a job must be stored in to match: a scheduled one is stored as ready."""
    states = possible_states(where)
    return states | {State.READY} if State.SCHEDULED in states else states


def _may_match(job: Job, where: JobFilter, states: frozenset[State]) -> bool:
    """What can be said without its record, which takes longer to make."""
    row = job.row
    return (
        job.at.state in states
        and where.queue in (None, row.queue)
        and where.task in (None, row.task)
        and (where.tag is None or where.tag in row.options.tags)
        and where.correlation_id in (None, row.options.correlation_id)
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
    if job is None or job.state is not State.SUCCEEDED:
        return MemberResult(member, False)
    latest = _latest(job)
    return MemberResult(member, True, latest.result if latest else None)


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
    return [_queue(store, name, now) for name in sorted(busy | store.paused.keys())]


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
        for _, order in places.orders(places.lanes_of(queue)):
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
