"""Reads the facts that `taskharbor.rules.why` explains a job by: a few bounded reads, which depend on its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from taskharbor.client.naming import store_words
from taskharbor.client.operating import not_found
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Driver, WorkerRecord
from taskharbor.drivers.capabilities import Audit, HandOver, Holds, Records, Rollups, Waits
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.drivers.contract.rollups import Period
from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.records import JobRecord, State
from taskharbor.rules.aside import held_by, hold_label
from taskharbor.rules.retry import UNSET, RetryPolicy
from taskharbor.rules.rollups import MINUTE, begin_of
from taskharbor.rules.why import explain
from taskharbor.rules.why_facts import BEFORE_MAX, WAITS_MAX, AwaitedJob, Facts, Stop, Why

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

ROWS_MAX = 50  # of history: a job is put back as unrunnable some 15 times before it is dead
AWAITED_READ = 100  # jobs that it waits for, of which those that ended without success are named first
LINES_MAX = 8  # different lines of workers that serve a queue
RATE_MINUTES = 2  # before the present one
TRIES_MAX = 3  # a job may move between two reads

Line = tuple[str, ...] | None  # the queues that a worker serves; None: every queue


async def why(harbor: Harbor, job_id: str) -> Why:
    """Read what bears on this job, and explain it."""
    facts = await _gather(harbor, job_id)
    for _ in range(TRIES_MAX - 1):
        if facts.job.state is not State.READY or facts.before is not None:
            break  # otherwise it was claimed meanwhile
        facts = await _gather(harbor, job_id)
    return explain(replace(facts, store=store_words(harbor)))


async def _gather(harbor: Harbor, job_id: str) -> Facts:
    driver = harbor.driver
    [job] = await driver.get([job_id])
    if job is None:
        raise not_found(job_id)
    now = await driver.now()
    match job.state:
        case State.WAITING:
            return Facts(job=job, now=now, **await _awaited(driver, job))
        case State.SCHEDULED:
            history = await driver.history(job.id, ROWS_MAX)
            return Facts(job=job, now=now, history=history, max_attempts=_max_attempts(harbor, job))
        case State.RUNNING:
            workers, begun_at = await _workers(driver), await _begun_at(driver, job)
            return Facts(job=job, now=now, workers=workers, begun_at=begun_at)
        case State.READY:
            return await _ready(driver, job, now)
        case _:
            return Facts(job=job, now=now)


# -- ready -----------------------------------------------------------------------------------------


async def _ready(driver: Driver, job: JobRecord, now: int) -> Facts:
    pause, hold, workers = await _pause(driver, job), await _hold(driver, job), await _workers(driver)
    serving = [each for each in workers or () if each.queues is None or job.queue in each.queues]
    before, line = await _shortest_line(driver, job, serving)
    return Facts(
        job=job,
        now=now,
        pause=pause,
        hold=hold,
        workers=workers,
        loads=await _loads(driver) if serving else {},
        before=before,
        per_second=await rate_of(driver, line, now) if before and serving else None,
    )


async def _pause(driver: Driver, job: JobRecord) -> Stop | None:
    audit = Audit.offered_by(driver)
    if audit is None:
        paused = [Stop(each.name) for each in await driver.queues() if each.paused]
    else:
        paused = [Stop(each.queue, each.by, each.since) for each in await audit.pauses()]
    return next((each for each in paused if each.name == job.queue), None)


async def _hold(driver: Driver, job: JobRecord) -> Stop | None:
    """Return the hold of its task, else of its first tag that is held."""
    store = Holds.offered_by(driver)
    holds = {} if store is None else {hold_label(each.kind, each.name): each for each in await store.holds()}
    label = held_by(holds, job.task, job.options.tags)
    if label is None:
        return None
    hold = holds[label]
    return Stop(hold.name, hold.by, hold.since, is_tag=hold.kind is HoldKind.TAG)


async def _workers(driver: Driver) -> list[WorkerRecord] | None:
    return None if Records.offered_by(driver) is None else await WORKERS.all(driver)


async def _loads(driver: Driver) -> dict[str, WorkerLoad]:
    waits = Waits.offered_by(driver)
    return {} if waits is None else await waits.worker_loads()


async def _shortest_line(
    driver: Driver, job: JobRecord, serving: Sequence[WorkerRecord]
) -> tuple[int | None, Line]:
    """Count the jobs before it in the line of each worker that serves it; the shortest one is where it comes first.

    A worker takes its jobs in one line over all of its queues. Without a worker it is the line of its own queue.
    """
    waits = Waits.offered_by(driver)
    if waits is None:
        return None, None
    found: list[tuple[int, Line]] = []
    for line in lines_of(serving) or [(job.queue,)]:
        before = await waits.count_before(job.id, line, BEFORE_MAX + 1)
        if before is None:
            return None, None
        found.append((before, line))
    return min(found, key=lambda each: each[0])


def lines_of(serving: Sequence[WorkerRecord]) -> Sequence[Line]:
    """The lines of these workers without those that contain another one: they are longer."""
    sets = {None if each.queues is None else frozenset(each.queues) for each in serving}
    narrow = [each for each in sets if each is not None and not any(o is not None and o < each for o in sets)]
    lines = [tuple(sorted(each)) for each in narrow][:LINES_MAX]
    return lines or ([None] if serving else [])


async def rate_of(driver: Driver, line: Line, now: int) -> float | None:
    """Return how many jobs of this line have begun in a second, in the last minutes; None if workers counted none."""
    rollups = Rollups.offered_by(driver)
    if rollups is None:
        return None
    begin = begin_of(now, Period.MINUTE)
    only = line[0] if line is not None and len(line) == 1 else None
    rows = await rollups.rollups(begin - RATE_MINUTES * MINUTE, begin + MINUTE, Period.MINUTE, queue=only)
    begun = [row for row in rows if row.figures.started and (line is None or row.queue in line)]
    if not begun:
        return None
    micros = now - min(row.at for row in begun)
    started = sum(row.figures.started for row in begun)
    return started * MICROS_PER_SECOND / micros if micros > 0 else None


# -- the other states ------------------------------------------------------------------------------


async def _awaited(driver: Driver, job: JobRecord) -> dict[str, Any]:
    waits = Waits.offered_by(driver)
    unmet = job.depends_on if waits is None else await waits.waits_for(job.id, WAITS_MAX + 1)
    first = list(unmet[:AWAITED_READ])
    records = await driver.get(first)
    awaited = [
        AwaitedJob(each, record.task if record else None, record.state if record else None)
        for each, record in zip(first, records, strict=True)
        if waits is not None or record is None or record.state is not State.SUCCEEDED
    ]
    awaited.sort(key=lambda each: each.state not in (State.DEAD, State.CANCELLED))
    succeeded = len(first) - len(awaited)
    log = HandOver.offered_by(driver)
    if not unmet and log is not None and (before := await log.before_in_backlog(job.id)) is not None:
        [record] = await driver.get([before])
        known = (record.task, record.state) if record else (None, None)
        return {"waits_for": [AwaitedJob(before, *known)], "waits_for_count": 1, "is_in_backlog": True}
    return {"waits_for": awaited[:10], "waits_for_count": min(len(unmet) - succeeded, WAITS_MAX + 1)}


async def _begun_at(driver: Driver, job: JobRecord) -> int | None:
    waits = Waits.offered_by(driver)
    if waits is not None:
        return await waits.begun_at(job.id)
    found = (lease.running.get(job.id) for lease in await driver.leases() if lease.worker == job.worker)
    return next((begun_at for begun_at in found if begun_at is not None), None)


def _max_attempts(harbor: Harbor, job: JobRecord) -> int | None:
    """Return the limit that the job or its declaration sets. A worker's own policy may set a lower one."""
    task = harbor._known(job.task)
    stored = job.options.retry
    policy: RetryPolicy | None = None
    if isinstance(stored, dict):
        policy = RetryPolicy.from_dict(stored)
    elif task is not None and task.declared_policy is not UNSET:
        policy = task.declared_policy
    limits = (
        job.options.max_attempts,
        None if task is None else task.declared_max_attempts,
        None if policy is None else policy.max_attempts,
    )
    return next((limit for limit in limits if limit), None)
