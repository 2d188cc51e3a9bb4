"""What each role is there for, done through a driver: every statement that the role may ever need."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from typing import Any

import asyncpg

from taskharbor.drivers.base import (
    Action,
    Cancel,
    Claimed,
    ClaimRequest,
    Delete,
    Discard,
    Extension,
    Occurrence,
    Operation,
    OperationVerdict,
    ProgressNote,
    Requeue,
    RunNow,
    SettleAnswer,
    StepNote,
    Transition,
    Update,
    Verb,
    member_id,
)
from taskharbor.drivers.contract.handing_over import BacklogPlace, HandedOver, HandOverAnswer
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.drivers.contract.ingesting import AlikeMessages, MessageBatch
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.typed_records import SESSIONS, TOKENS
from taskharbor.records import (
    AttemptStatus,
    JobFilter,
    NewJob,
    NewWorkflow,
    Options,
    Progress,
    Reason,
    SessionRecord,
    State,
    StepRecord,
    TokenRecord,
)

SECOND = 1_000_000
HOUR = 3_600 * SECOND
LEASE = 30 * SECOND
_hours = itertools.count(500_000)  # since 1970: every story has an hour of its own


def new(queue: str, **fields: Any) -> NewJob:
    return NewJob(**{"id": str(uuid.uuid4()), "task": "task", "queue": queue} | fields)


def ended(token: str, job: Claimed, to: State, **fields: Any) -> Transition:
    status = AttemptStatus.SUCCEEDED if to is State.SUCCEEDED else AttemptStatus.FAILED
    fields = {"status": status, "started_at": 0, "attempts": int(to is not State.SUCCEEDED), **fields}
    return Transition(token, job.id, job.number, to=to, **fields)


async def produce(driver: PostgresDriver) -> None:
    """Enqueue, in each of the ways there are, and look at what was enqueued."""
    queue, now = f"queue {uuid.uuid4()}", next(_hours) * HOUR
    await driver.open()
    plain, keyed, tagged = (
        new(queue),
        new(queue, idempotency_key="k"),
        new(queue, options=Options(tags=("t",))),
    )
    await driver.enqueue([plain], now=now)
    await driver.enqueue([keyed, tagged], now=now)
    [again] = await driver.enqueue([new(queue, idempotency_key="k")], now=now)
    assert (again.id, again.existed) == (keyed.id, True)
    [waiting] = await driver.enqueue([new(queue, depends_on=(plain.id,))], now=now)
    assert waiting.state is State.WAITING
    found = await driver.get([plain.id, keyed.id, tagged.id, waiting.id], now=now)
    assert [job.state for job in found if job] == [State.READY] * 3 + [State.WAITING]
    assert await driver.history(plain.id) == []
    await produce_a_workflow(driver, queue, now)
    await produce_in_a_transaction(driver, queue, plain)


async def produce_a_workflow(driver: PostgresDriver, queue: str, now: int) -> None:
    workflow = NewWorkflow(str(uuid.uuid4()), idempotency_key=queue)
    first = new(queue, id=member_id(workflow.id, 0), delay=HOUR)
    second = new(queue, id=member_id(workflow.id, 1), depends_on=(first.id,))
    assert not (await driver.enqueue_workflow(workflow, [first, second], now=now)).existed
    assert (await driver.enqueue_workflow(workflow, [], now=now)).existed
    [found] = await driver.get_workflows([workflow.id])
    assert found is not None
    assert (found.active, found.waiting) == (1, 1)


async def produce_in_a_transaction(driver: PostgresDriver, queue: str, member: NewJob) -> None:
    """On a connection of the producer's own, and from plain SQL."""
    connection = await asyncpg.connect(driver.dsn)
    async with connection.transaction():
        with driver.transaction(connection):
            await driver.enqueue([new(queue, idempotency_key="t", options=Options(tags=("t",)))])
            [again] = await driver.enqueue([new(queue, idempotency_key="t")])
            assert again.existed
            [waiting] = await driver.enqueue([new(queue, depends_on=(member.id,))])
            assert waiting.state is State.WAITING
            await produce_a_workflow(driver, f"{queue} in a transaction", next(_hours) * HOUR)
        options = '{"tags": ["t"], "timeout": 5, "run_at": "2030-01-01T00:00:00Z", "idempotency_key": "sql"}'
        statement = f'SELECT "{driver.schema}".enqueue($1, $2, $3)'
        first = await connection.fetchval(statement, "task", '{"x": 1}', options)
        assert await connection.fetchval(statement, "task", '{"x": 2}', options) == first
    await connection.close()


async def claim_many(driver: PostgresDriver, now: int) -> None:
    """The second of two such claims locks no rows, and takes its turn instead."""
    queue = f"queue {uuid.uuid4()}"
    await driver.enqueue([new(queue) for _ in range(200)], now=now)
    for _ in range(2):
        token = f"worker/{uuid.uuid4()}"
        claim = await driver.claim(ClaimRequest(token, LEASE, 100, (queue,)), now=now)
        assert len(claim.jobs) == 100
        await driver.settle([ended(token, job, State.SUCCEEDED) for job in claim.jobs], now=now)


async def ingest(driver: PostgresDriver, now: int) -> None:
    """Store messages of two partitions, twice."""
    log, shared = f"log {uuid.uuid4()}", new("messages")
    for expected in (None, 1):
        groups = [AlikeMessages(shared, [str(uuid.uuid4())], ["{}"], [None]) for _ in range(2)]
        batches = [MessageBatch(log, n, expected, (expected or 0) + 1, [groups[n]]) for n in range(2)]
        assert all(each.stored for each in await driver.ingest(batches, now=now))
    assert await driver.ingested(log, [0, 1]) == {0: 2, 1: 2}


async def hand_over(driver: PostgresDriver, now: int) -> None:
    """Take a partition over, hand messages of one key over, and let each go on when the one before it is gone."""
    log = f"log {uuid.uuid4()}"
    await driver.own(log)
    owner = await driver.own(log)
    jobs = [new("messages", idempotency_key=f"{log}:{n}", delay=HOUR) for n in range(2)]
    handed = [HandedOver(job, backlog=BacklogPlace(log, n, opens=True)) for n, job in enumerate(jobs)]
    assert set(await driver.hand_over(handed, owners=[owner], now=now)) == {HandOverAnswer.STORED}
    assert await driver.backlogs(log, log, 10) == [log]
    assert await driver.before_in_backlog(jobs[1].id) == jobs[0].id
    for job in jobs:
        await driver.operate(Delete(), [job.id], now=now)
        await driver.advance(1_000, now=now)
    assert await driver.backlogs(log, log, 10) == []


async def work(driver: PostgresDriver) -> None:
    """Everything that a worker does in its life."""
    queue, now = f"queue {uuid.uuid4()}", next(_hours) * HOUR
    await driver.open()
    jobs = [new(queue, run_at=now + n, options=Options(tags=("t",))) for n in range(6)]
    overdue = [
        new(queue, run_at=now + HOUR, expires_at=now + 1),
        new(queue, depends_on=(jobs[0].id,), expires_at=now + 1),
    ]
    await driver.enqueue(
        [*jobs, *overdue, new(queue, run_at=now + HOUR, depends_on=(jobs[0].id, jobs[1].id))], now=now
    )
    assert set(await driver.expire(10_000, now=now + 2)) >= {job.id for job in overdue}
    await produce_a_workflow(driver, f"workflow {queue}", now)
    token = f"worker/{uuid.uuid4()}"
    claim = await driver.claim(ClaimRequest(token, LEASE, 6, (queue,), once_limit=6), now=now + SECOND)
    a, b, c, d, e, f = claim.jobs
    beat = await driver.extend(
        [Extension(token, LEASE, ((a.id, now),), at_most_once=(e.id,))], now=now + SECOND
    )
    assert beat.leases[0].answer is SettleAnswer.DONE
    progress, step = (
        ProgressNote(token, a.id, a.number, Progress(0.5)),
        StepNote(token, a.id, a.number, "s", "1"),
    )
    assert await driver.note([progress, progress, step], now=now + SECOND) == [SettleAnswer.DONE] * 3
    assert await driver.steps(a.id) == {"s": StepRecord("1", 1)}
    child = new(queue, run_at=now + HOUR, options=Options(tags=("t",)))
    settled = await driver.settle(
        [
            ended(token, a, State.SUCCEEDED, result="1"),
            ended(token, b, State.SUCCEEDED, inserts=(child,)),
            ended(token, c, State.DEAD, reason=Reason.EXHAUSTED, error="e"),
            ended(token, d, State.READY, delay=HOUR, occurrence=Occurrence(now + HOUR, 1)),
        ],
        now=now + SECOND,
    )
    assert [each.answer for each in settled] == [SettleAnswer.DONE] * 4
    assert len(settled[1].released) == 1
    assert [
        each.answer for each in await driver.settle([ended(token, f, State.SUCCEEDED)], now=now + SECOND)
    ] == [SettleAnswer.DONE]
    await collect(driver, now + HOUR)
    [late] = await driver.settle([ended(token, e, State.SUCCEEDED)], now=now + HOUR)
    assert late.answer is SettleAnswer.NOT_RUNNING
    await ingest(driver, now)
    await hand_over(driver, now)
    await claim_many(driver, now + HOUR)
    await driver.leases(now=now)
    await driver.put_records(RecordKind.WORKERS, {queue: "{}"}, HOUR, now=now)
    assert queue in [record.key for record in await driver.records(RecordKind.WORKERS, now=now)]
    await driver.drop_records(RecordKind.WORKERS, [queue])
    await driver.append_rollups([Rollup(now - HOUR, queue, "task", Figures(started=1))])
    assert await driver.fold_rollups(10_000, now=now)
    assert await driver.rollups(now - HOUR, now, Period.MINUTE, queue=queue)
    await driver._settler.fold_tallies()
    await succeed_together(driver, f"together {queue}", now)
    old = dict.fromkeys((State.SUCCEEDED, State.DEAD, State.CANCELLED), now + HOUR)
    assert await driver.prune(old, 10_000, now=now + HOUR)
    assert not await driver.prune(old, 10_000, now=now + HOUR)  # what successes shared goes after them
    # A schedule that ends: the recurring job goes from occurrence to occurrence, its old steps with it.
    token = f"worker/{uuid.uuid4()}"
    claim = await driver.claim(ClaimRequest(token, LEASE, 1, (queue,)), now=now + 2 * HOUR)
    await driver.settle(
        [ended(token, claim.jobs[0], State.SUCCEEDED, occurrence=Occurrence(now + 9 * HOUR, 1))],
        now=now + 2 * HOUR,
    )


async def succeed_together(driver: PostgresDriver, queue: str, now: int) -> None:
    """So many that they share what they have in common."""
    token = f"worker/{uuid.uuid4()}"
    await driver.enqueue([new(queue) for _ in range(driver.shared_from)], now=now)
    claim = await driver.claim(ClaimRequest(token, LEASE, driver.shared_from, (queue,)), now=now)
    settled = await driver.settle([ended(token, job, State.SUCCEEDED) for job in claim.jobs], now=now)
    assert {each.answer for each in settled} == {SettleAnswer.DONE}


async def collect(driver: PostgresDriver, now: int) -> None:
    while (expired := await driver.take_expired(f"collector/{uuid.uuid4()}", LEASE, now=now)) is not None:
        lost = [
            ended(expired.token, job, State.READY, status=AttemptStatus.LOST, attempts=0, delay=HOUR)
            for job in expired.jobs
        ]
        await driver.settle(lost, now=now)
        if not lost:
            return


async def prepare(driver: PostgresDriver) -> tuple[str, int, list[str]]:
    """Jobs for an operator, made by a worker: five ready, one scheduled, three dead, one running, some done."""
    queue, now = f"queue {uuid.uuid4()}", next(_hours) * HOUR
    await succeed_together(driver, f"together {queue}", now)
    token = f"worker/{uuid.uuid4()}"
    jobs = [new(queue, run_at=now + n, options=Options(tags=("t",))) for n in range(4)]
    await driver.enqueue(jobs, now=now)
    claim = await driver.claim(ClaimRequest(token, LEASE, 4, (queue,)), now=now + SECOND)
    note = StepNote(token, claim.jobs[0].id, 1, "s", "1")
    await driver.note([note, ProgressNote(token, claim.jobs[0].id, 1, Progress(1))], now=now + SECOND)
    await driver.settle(
        [ended(token, job, State.DEAD, reason=Reason.EXHAUSTED) for job in claim.jobs[:3]], now=now + SECOND
    )
    others = [new(queue, run_at=now) for _ in range(5)]
    waiting = new(queue, run_at=now, depends_on=(others[0].id,))
    await driver.enqueue([*others, waiting, new(queue, run_at=now + HOUR)], now=now)
    page = await driver.list(JobFilter(queue=queue, state=State.SCHEDULED), now=now)
    ids = (
        [job.id for job in claim.jobs]
        + [job.id for job in [*others, waiting]]
        + [job.id for job in page.jobs]
    )
    return queue, now + 2 * SECOND, ids


async def operate(driver: PostgresDriver, prepared: tuple[str, int, Sequence[str]]) -> None:
    """Everything that an operator does."""
    queue, now, ids = prepared
    dead, dead2, dead3, running, ready, ready2, ready3, _, _, waiting, scheduled = ids
    await driver.open()

    async def do(operation: Operation, job_id: str) -> OperationVerdict:
        [answer] = await driver.operate(operation, [job_id], now=now)
        return answer.verdict

    for state in State:
        await driver.list(JobFilter(state=state), now=now)
    assert len((await driver.list(JobFilter(tag="t", queue=queue), now=now)).jobs) == 4
    assert (await driver.counts(queue, now=now))[State.DEAD] == 3
    await driver.queues(now=now)
    await driver.leases(now=now)
    await driver.records(RecordKind.WORKERS, now=now)
    await driver.rollups(now - HOUR, now, Period.MINUTE)
    assert await driver.steps(dead) == {"s": StepRecord("1", 1)}
    assert len(await driver.history(dead)) == 1
    assert await driver.before_in_backlog(dead) is None
    assert await do(Cancel(), running) is OperationVerdict.REQUESTED
    assert await do(Update(tags=("u",), priority=3), ready2) is OperationVerdict.DONE
    assert await do(Update(expires_at=now + HOUR), waiting) is OperationVerdict.DONE
    assert await do(Cancel(), waiting) is OperationVerdict.DONE
    assert await do(Requeue(), waiting) is OperationVerdict.DONE
    assert await do(Cancel(), ready2) is OperationVerdict.DONE
    assert await do(RunNow(), scheduled) is OperationVerdict.DONE
    assert await do(Requeue(), dead) is OperationVerdict.DONE
    assert await do(Delete(), dead) is OperationVerdict.DONE
    assert await do(Discard(), dead2) is OperationVerdict.DONE
    assert await do(Delete(), ready3) is OperationVerdict.DONE
    assert await do(Delete(), waiting) is OperationVerdict.DONE
    assert await do(Delete(), ready) is OperationVerdict.DONE
    action = Action(str(uuid.uuid4()), Verb.PAUSE_QUEUE, "ana", subject=queue)
    await driver.pause(queue, True, action=action)
    await driver.pause(queue, False)
    assert await driver.hold(HoldKind.TASK, queue)
    assert queue in [hold.name for hold in await driver.holds()]
    assert await driver.release(HoldKind.TASK, queue)
    assert await driver.get_actions([action.id]) != [None]
    token = TokenRecord(queue, "name", "read", "digest", now)  # the queue is another one each time
    await TOKENS.put(driver, [token])
    assert token in await TOKENS.all(driver)
    assert await TOKENS.drop(driver, [token.id]) == 1
    session = SessionRecord("0" * 64, token.id, token.created_at)
    await SESSIONS.put(driver, [session])
    assert session in await SESSIONS.all(driver)
    assert await SESSIONS.drop(driver, [session.digest]) == 1
    await collect(driver, now + HOUR)
    await driver._settler.fold_tallies()
    old = dict.fromkeys((State.SUCCEEDED, State.DEAD, State.CANCELLED), now + HOUR)
    assert await driver.prune(old, 10_000, now=now + HOUR) >= 2
    assert not await driver.prune(old, 10_000, now=now + HOUR)  # what successes shared goes after them
    assert await driver.get([dead3], now=now) == [None]
