"""The PostgreSQL driver: many workers on many machines, one database."""

from __future__ import annotations

import asyncio
import builtins
import contextvars
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from taskharbor.clock import Clock, SystemClock
from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import (
    Action,
    ActionFilter,
    ActionPage,
    ActionRecord,
    AlikeJobs,
    Cancel,
    CancelRequests,
    Check,
    Claim,
    ClaimRequest,
    Delete,
    Driver,
    Enqueued,
    ExpiredLease,
    Extension,
    Heartbeat,
    JobCount,
    LeaseRecord,
    Note,
    Operation,
    OperationResult,
    OperationVerdict,
    Page,
    PauseRecord,
    SettleAnswer,
    SettleResult,
    Transition,
    WorkflowEnqueued,
    WorkflowPage,
    are_plain,
    jobs_size,
    settle_pieces,
)
from taskharbor.drivers.callers import PostgresCaller, caller_of
from taskharbor.drivers.capabilities import (
    Audit,
    Copying,
    Groups,
    HandOver,
    Holds,
    Ingest,
    Records,
    Rollups,
    Steps,
    Transactions,
    Upkeep,
    Waits,
    Workflows,
)
from taskharbor.drivers.contract.copying import Row, kind_of
from taskharbor.drivers.contract.handing_over import Advanced, HandedOver, HandOverAnswer, Owner
from taskharbor.drivers.contract.holds import HoldKind, HoldRecord
from taskharbor.drivers.contract.ingesting import Ingested, MessageBatch
from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.drivers.contract.rollups import Period, Rollup
from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.drivers.postgres import (
    aside,
    audit,
    backlogs,
    copying,
    endings,
    enqueue,
    handing_over,
    health,
    ingesting,
    leases,
    operate,
    reads,
    roles,
    rollups,
    schema,
    search,
    settle,
    sql,
    waits,
    workflows,
)
from taskharbor.drivers.postgres.address import CONNECTIONS, address_of, checked_connections, read_url
from taskharbor.drivers.postgres.caller_session import CallerSession
from taskharbor.drivers.postgres.changes import Changes
from taskharbor.drivers.postgres.claim_hints import ClaimHints
from taskharbor.drivers.postgres.connections import (
    ALONE_BYTES,
    TRANSACTION_BYTES,
    Connections,
    Lane,
    Session,
    Work,
)
from taskharbor.drivers.postgres.enqueue_batcher import EnqueueBatcher
from taskharbor.drivers.postgres.explain import Contended
from taskharbor.errors import StoreUnavailable
from taskharbor.records import (
    AttemptRecord,
    GroupRecord,
    JobFilter,
    JobRecord,
    MemberResult,
    NewJob,
    NewWorkflow,
    QueueRecord,
    State,
    StepRecord,
    WorkflowRecord,
)
from taskharbor.rules.lifecycle import check_prunable
from taskharbor.rules.settling import proves_survival
from taskharbor.sync import import_ahead, in_sync_call, run_on_loop_thread

T = TypeVar("T")

OPERATED_AT_ONCE = 200  # jobs changed in one transaction
CANCELLED_AT_ONCE = 5_000  # that takes no more statements than one does
OPERATE_ROUNDS_MAX = 100
FOLD_EVERY = 200  # settles of this process between two foldings of the tallies
FOLD_GROUPS_EVERY = 5_000  # deaths that it settles between two foldings of the groups


class PostgresDriver(
    Driver,
    Workflows,
    Steps,
    Upkeep,
    Records,
    Rollups,
    Audit,
    Waits,
    Groups,
    Holds,
    HandOver,
    Ingest,
    Copying,
    Transactions,
):
    """Jobs in one schema of a PostgreSQL database, version 13 or newer.

    The server's clock decides about everything, unless a `clock` is given, as tests do. `listen=False` is for a
    pooler that lends connections for one transaction at a time: no session state, and changes by polling alone.
    """

    inline = False
    shared_from = settle.SHARED_FROM  # a test's to change
    stores_in_turn = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "taskharbor",
        listen: bool = True,
        clock: Clock | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        import_ahead()
        self.dsn = dsn
        self.schema = schema
        self.clock = clock or SystemClock()
        self._decides = clock  # None: the server's
        self._sql = sql.statements(schema)
        self._connections = Connections(
            dsn, schema, self._sql, pooler=not listen, most=checked_connections(connections)
        )
        self._changes = Changes(self._connections, listen=listen, clock=self.clock)
        self._gathering = EnqueueBatcher(self._store_plain)
        self._covered = settle.Covered()
        self._trails = ClaimHints(self.clock)
        self._listen = listen
        self._identity: str | None = None
        self._caller_session: contextvars.ContextVar[CallerSession | None] = contextvars.ContextVar(
            f"taskharbor_transaction_{id(self)}", default=None
        )
        self._counted = reads.Counted()
        self._checked = False
        self._settles = 0
        self._deaths = 0

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> PostgresDriver:
        """postgresql://user@host:5432/database?schema=taskharbor&listen=on, and whatever else asyncpg takes."""
        address = read_url(url)
        return cls(
            address.dsn,
            schema=address.schema,
            listen=address.listen,
            clock=clock,
            connections=address.connections,
        )

    def __repr__(self) -> str:
        return f"PostgresDriver({address_of(self.dsn)!r}, schema={self.schema!r})"

    def _time(self, now: int | None) -> int | None:
        """The time that was given, or None for the server's."""
        return now if now is not None or self._decides is None else self._decides.now()

    async def _run(self, lane: Lane, work: Work[T], now: int | None = None, *, prompt: bool = False) -> T:
        if not self._checked:
            await self.open()
        return await self._connections.run(lane, work, self._time(now), prompt=prompt)

    async def _transact(
        self, lane: Lane, work: Work[T], now: int | None = None, *, prompt: bool = False
    ) -> T:
        if not self._checked:
            await self.open()
        return await self._connections.transact(lane, work, self._time(now), prompt=prompt)

    # -- life --

    async def open(self) -> None:
        if not self._checked:
            await self._connections.run(Lane.REST, lambda s: schema.ensure(s, self.dsn, self.schema))
            self._checked = True

    async def open_for_work(self) -> None:
        await self.open()
        await asyncio.gather(
            self._connections.run(Lane.REST, lambda s: roles.ensure_worker(s, self.dsn, self.schema)),
            # What the first job would otherwise wait for: connections, and the types that a settle's arrays are of.
            self._connections.run(Lane.CLAIM, _nothing),
            self._connections.run(Lane.SETTLE, _learn_types if self._listen else _nothing),
        )

    async def close(self) -> None:
        await self._changes.close()
        await self._connections.close()
        self._checked = False
        self._identity = None

    async def migrate(self) -> list[str]:
        async with self._connections.dedicated() as connection:
            applied = await schema.migrate(connection, self._sql, self.dsn, self.schema)
        self._checked = False
        return applied

    async def check(self) -> list[Check]:
        return await self._connections.run(Lane.REST, lambda s: health.checks(s, self.dsn, self.schema))

    async def now(self) -> int:
        return await self._connections.run(Lane.REST, lambda s: s.now(), self._time(None))

    # -- the hot path --

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        if not jobs:
            return []
        session = self._caller_session.get()
        if session is not None:
            session.caller.refuse_synchronous()
            return await session.enqueue(jobs, await self._expected(session), self._time(now))
        try:
            if are_plain(jobs):
                answers = await self._gathering.store(jobs, now)
            else:
                answers = await self._store_each(jobs, now)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), [job.id for job in jobs]) from error
        return answers

    async def _store_plain(self, jobs: Sequence[NewJob], now: int | None) -> list[Enqueued]:
        if isinstance(jobs, AlikeJobs) and len(jobs) > enqueue.BATCH_MAX:
            return await self._store_in_turn(jobs, now)
        if len(jobs) > 1 and jobs_size(jobs) > ALONE_BYTES:
            return await self._store_each(jobs, now)
        announced = False
        if len(jobs) == 1 and self._listen and (sender := self._changes.sender_if_quiet()) is not None:
            [job], channel = jobs, self._changes.channel
            stored, announced = await self._run(
                Lane.REST, lambda s: enqueue.enqueue_announced(s, job, channel, sender), now
            )
        else:
            stored = await self._run(Lane.REST, lambda s: enqueue.enqueue_plain(s, jobs), now)
        if stored is None:
            return await self._store_each(jobs, now)
        if announced:
            self._changes.post()
        else:
            self._changes.tell(urgent=True)
        return stored

    async def _store_in_turn(self, jobs: AlikeJobs, now: int | None) -> list[Enqueued]:
        try:
            stored = await self._transact(Lane.REST, lambda s: enqueue.enqueue_in_turn(s, jobs), now)
        except enqueue.NotNew:
            return await self._store_each(jobs, now)
        self._changes.tell(urgent=True)
        return stored

    async def _store_each(self, jobs: Sequence[NewJob], now: int | None) -> list[Enqueued]:
        stored = await self._transact(Lane.REST, lambda s: enqueue.enqueue(s, jobs), now)
        self._changes.tell(urgent=True)
        return stored

    async def enqueue_workflow(
        self, workflow: NewWorkflow, jobs: Sequence[NewJob], *, now: int | None = None
    ) -> WorkflowEnqueued:
        session = self._caller_session.get()
        if session is not None:
            session.caller.refuse_synchronous()
            expected = await self._expected(session)
            return await session.enqueue_workflow(workflow, jobs, expected, self._time(now))
        try:
            answer = await self._transact(
                Lane.REST, lambda s: workflows.enqueue_workflow(s, workflow, jobs), now
            )
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), [job.id for job in jobs]) from error
        self._changes.tell(urgent=True)
        return answer

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Claim:
        look = self._trails.look(request)
        claim, seen = await self._run(Lane.CLAIM, lambda s: leases.claim(s, request, look), now, prompt=True)
        claim = self._trails.learn(request, look, claim, seen)
        if seen is not None:  # else the answer to a repeated claim: not all that the lease covers
            self._covered.remember(request.token, claim)
        return claim

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        # A mark of at_most_once belongs into the same transaction as the proof that the lease is live.
        run = self._transact if any(each.at_most_once for each in extensions) else self._run
        heartbeat = await run(Lane.SETTLE, lambda s: leases.extend(s, extensions), now, prompt=True)
        alive = [each.token for each in heartbeat.leases if proves_survival(each.answer)]
        await self._mark_survived(alive, now)
        return heartbeat

    async def cancel_requests(self, tokens: Sequence[str], since: int | None = None) -> CancelRequests:
        mark = self._changes.cancel_count()  # before the look: what is heard during it is looked for again
        if mark == since:
            return CancelRequests(mark)
        jobs = await self._run(Lane.REST, lambda s: leases.cancel_requests(s, tokens), prompt=True)
        return CancelRequests(mark, jobs)

    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> ExpiredLease | None:
        look = partial(leases.take_expired, token=token, duration=lease)
        expired, self.outlook = await self._run(Lane.REST, look, now, prompt=True)
        return expired

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        answers: list[SettleResult] = []
        for batch in settle_pieces(transitions, ALONE_BYTES):
            answers += await self._settle(batch, now)
            self._changes.tell(urgent=False)
            await self._fold_now_and_then()
        return answers

    async def _settle(
        self, transitions: Sequence[Transition], now: int | None
    ) -> builtins.list[SettleResult]:
        plain = settle.plain_successes(self._covered, transitions)
        if plain is not None:
            answers = await self._run(
                Lane.SETTLE,
                lambda s: settle.settle_plainly(s, transitions, plain, self.shared_from),
                now,
                prompt=True,
            )
            if answers is not None:
                return answers
        # Several transactions rather than one: no lease is locked while the whole of the batch is on its way.
        answers = []
        for some in settle_pieces(transitions, TRANSACTION_BYTES):
            answers += await self._settle_beside_producers(some, now)
        self._deaths += sum(settled.state is State.DEAD for settled in answers)
        return answers

    async def _settle_beside_producers(
        self, transitions: Sequence[Transition], now: int | None
    ) -> builtins.list[SettleResult]:
        """Settle a batch. A child with a key that an open transaction of a producer stores delays only its parent."""
        try:
            return await self._settle_together(transitions, now, settle.KEY_WAIT)
        except Contended:
            pass
        keyed = [i for i, t in enumerate(transitions) if settle.has_keyed_children(t)]
        others = sorted(set(range(len(transitions))) - set(keyed))
        settled = await self._settle_together([transitions[i] for i in others], now, settle.KEY_WAIT)
        answers = dict(zip(others, settled, strict=True))
        for i in keyed:
            try:
                [answers[i]] = await self._settle_together([transitions[i]], now, settle.KEY_WAIT_ALONE)
            except Contended:
                answers[i] = SettleResult(SettleAnswer.LATER)
        return [answers[i] for i in range(len(transitions))]

    async def _settle_together(
        self, transitions: Sequence[Transition], now: int | None, key_wait: str
    ) -> builtins.list[SettleResult]:
        if not transitions:
            return []
        work = partial(settle.settle, transitions=transitions, key_wait=key_wait)
        answers = await self._transact(Lane.SETTLE, work, now, prompt=True)
        pairs = zip(transitions, answers, strict=True)
        alive = {t.token for t, settled in pairs if proves_survival(settled.answer, t.worker)}
        await self._mark_survived(alive, now)
        return answers

    async def _fold_now_and_then(self) -> None:
        self._settles += 1
        if self._deaths >= FOLD_GROUPS_EVERY:
            self._deaths = 0
            await self._run(Lane.SETTLE, lambda s: s.do("fold_groups"), prompt=True)
        if self._settles % FOLD_EVERY == 0:
            await self._fold_tallies()

    async def _fold_tallies(self) -> None:
        await self._run(Lane.SETTLE, lambda s: s.do("fold_tallies"), prompt=True)
        await self._run(Lane.SETTLE, lambda s: s.do("fold_groups"), prompt=True)

    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> list[SettleAnswer]:
        if not notes:
            return []
        answers = await self._transact(Lane.SETTLE, lambda s: settle.note(s, notes), now, prompt=True)
        alive = {n.token for n, answer in zip(notes, answers, strict=True) if proves_survival(answer)}
        await self._mark_survived(alive, now)
        return answers

    async def catch_up(self, limit: int, *, now: int | None = None) -> builtins.list[str]:
        rows = await self._run(Lane.REST, lambda s: s.rows("catch_up", limit, s.given_now), now, prompt=True)
        if rows:
            self._changes.tell(urgent=any(row["released"] for row in rows))
        return sorted(row["id"] for row in rows)

    async def _mark_survived(self, tokens: Iterable[str], now: int | None) -> None:
        """Mark one lease after the other, each in its own transaction: none of them waits with a lock in its hands."""
        for token in tokens:
            await self._transact(Lane.REST, partial(leases.mark_survived, token=token), now, prompt=True)

    def change_token(self) -> int:
        return self._changes.count()

    async def wait_for_change(self, token: int, seconds: float) -> None:
        await self._changes.wait(token, seconds)

    # -- reads --

    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]:
        session = self._caller_session.get()
        if session is not None and session.caller.reaches_here():
            return await session.get(ids, self._time(now))
        return await self._run(Lane.REST, lambda s: reads.get(s, ids), now, prompt=True)

    async def count(
        self, where: JobFilter, *, cursor: str | None = None, limit: int = 10_000, now: int | None = None
    ) -> JobCount:
        budget = self.search_budget
        return await self._run(Lane.REST, lambda s: search.count_jobs(s, where, cursor, limit, budget), now)

    async def counts(self, queue: str | None = None, *, now: int | None = None) -> dict[State, int]:
        return await self._run(Lane.REST, lambda s: reads.counts(s, queue, self._counted), now)

    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        session = self._caller_session.get()
        if session is not None and session.caller.reaches_here():
            return await session.history(job_id, limit)
        return await self._run(Lane.REST, lambda s: reads.history(s, job_id, limit), prompt=True)

    async def steps(self, job_id: str) -> dict[str, StepRecord]:
        return await self._run(Lane.REST, lambda s: reads.steps(s, job_id), prompt=True)

    async def results(
        self, ids: Sequence[str], *, bytes_limit: int | None = None
    ) -> builtins.list[builtins.list[MemberResult]]:
        return await self._run(Lane.REST, lambda s: workflows.results(s, ids, bytes_limit))

    async def get_workflows(self, ids: Sequence[str]) -> builtins.list[WorkflowRecord | None]:
        session = self._caller_session.get()
        if session is not None and session.caller.reaches_here():
            return await session.get_workflows(ids)
        return await self._run(Lane.REST, lambda s: workflows.get(s, ids))

    async def list_workflows(self, *, cursor: str | None = None, limit: int = 100) -> WorkflowPage:
        return await self._run(Lane.REST, lambda s: workflows.page(s, cursor, limit))

    async def queues(self, *, now: int | None = None) -> list[QueueRecord]:
        return await self._run(Lane.REST, lambda s: reads.queues(s, self._counted), now)

    async def leases(self, *, now: int | None = None) -> list[LeaseRecord]:
        return await self._run(Lane.REST, reads.lease_records, now)

    # -- records --

    async def put_records(
        self,
        kind: RecordKind,
        about: Mapping[str, str],
        lasts: int | None,
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> None:
        run = self._run if action is None else self._transact
        await run(Lane.REST, lambda s: audit.put_records(s, kind, about, lasts, action), now)

    async def records(self, kind: RecordKind, *, now: int | None = None) -> list[Record]:
        rows = await self._run(Lane.REST, lambda s: s.rows(f"read_{kind}", s.given_now), now)
        return [Record(*row) for row in rows]

    async def drop_records(
        self, kind: RecordKind, keys: Sequence[str], *, now: int | None = None, action: Action | None = None
    ) -> int:
        return await self._transact(Lane.REST, lambda s: audit.drop_records(s, kind, keys, action), now)

    # -- messages of a log --

    async def hand_over(
        self, jobs: Sequence[HandedOver], *, owners: Sequence[Owner] = (), now: int | None = None
    ) -> builtins.list[HandOverAnswer]:
        answers = await self._transact(Lane.REST, lambda s: handing_over.hand_over(s, jobs, owners), now)
        self._changes.tell(urgent=True)
        return answers

    async def handed_over(self, queue: str, first: str, last: str, limit: int) -> builtins.list[str]:
        return await self._run(Lane.REST, lambda s: handing_over.keys_between(s, queue, first, last, limit))

    async def own(self, partition: str) -> Owner:
        return await self._run(Lane.REST, lambda s: backlogs.own(s, partition))

    async def backlogs(self, first: str, last: str, limit: int) -> builtins.list[str]:
        return await self._run(Lane.REST, lambda s: backlogs.keys_between(s, first, last, limit))

    async def advance(self, limit: int, cursor: str | None = None, *, now: int | None = None) -> Advanced:
        look = await self._run(Lane.REST, lambda s: backlogs.look(s, limit, cursor))
        if not look.due:
            return Advanced([], look.cursor)
        released = await self._transact(Lane.REST, lambda s: backlogs.advance(s, look.due), now)
        if released:
            self._changes.tell(urgent=True)
        return Advanced(released, look.cursor)

    async def before_in_backlog(self, job_id: str) -> str | None:
        return await self._run(Lane.REST, lambda s: backlogs.before(s, job_id))

    async def ingest(
        self, batches: Sequence[MessageBatch], *, now: int | None = None
    ) -> builtins.list[Ingested]:
        answers = await self._transact(Lane.REST, lambda s: ingesting.ingest(s, batches), now)
        self._changes.tell(urgent=True)
        return answers

    async def ingested(self, log: str, partitions: Sequence[int]) -> dict[int, int]:
        return await self._run(Lane.REST, lambda s: ingesting.ingested(s, log, partitions))

    # -- roll-ups --

    async def append_rollups(self, rows: Sequence[Rollup]) -> None:
        await self._run(Lane.REST, lambda s: rollups.append(s, rows))

    async def fold_rollups(self, limit: int, *, now: int | None = None) -> int:
        return await self._transact(Lane.REST, lambda s: rollups.fold(s, limit), now)

    async def rollups(
        self, begin: int, end: int, period: Period, *, queue: str | None = None, task: str | None = None
    ) -> list[Rollup]:
        return await self._run(Lane.REST, lambda s: rollups.read(s, begin, end, period, queue, task))

    # -- copying --

    async def export_rows(
        self, kind: str, after: Row | None, limit: int, bytes_limit: int
    ) -> builtins.list[Row]:
        wanted = kind_of(kind)
        return await self._transact(
            Lane.REST, lambda s: copying.export(s, self.schema, wanted, after, limit, bytes_limit)
        )

    async def missing_rows(self, kind: str, rows: Sequence[Row]) -> builtins.list[Row]:
        wanted, given = kind_of(kind), builtins.list(rows)
        if not given:
            return []
        return await self._transact(Lane.REST, lambda s: copying.missing(s, self.schema, wanted, given))

    async def import_rows(self, kind: str, rows: Sequence[Row]) -> int:
        wanted, given = kind_of(kind), builtins.list(rows)
        if not given:
            return 0
        return await self._transact(Lane.REST, lambda s: copying.insert(s, self.schema, wanted, given))

    async def finish_import(self) -> None:
        await self._transact(Lane.REST, lambda s: copying.finish(s, self.schema))
        self._changes.tell(urgent=True)

    # -- waits --

    async def count_before(
        self, job_id: str, queues: Sequence[str] | None, limit: int, *, now: int | None = None
    ) -> int | None:
        return await self._run(
            Lane.REST, lambda s: waits.count_before(s, job_id, queues, limit), now, prompt=True
        )

    async def waits_for(self, job_id: str, limit: int) -> builtins.list[str]:
        return await self._run(Lane.REST, lambda s: waits.waits_for(s, job_id, limit), prompt=True)

    async def begun_at(self, job_id: str) -> int | None:
        return await self._run(Lane.REST, lambda s: waits.begun_at(s, job_id), prompt=True)

    async def worker_loads(self, *, now: int | None = None) -> dict[str, WorkerLoad]:
        return await self._run(Lane.REST, waits.worker_loads, now, prompt=True)

    # -- operators --

    async def operate(
        self,
        operation: Operation,
        ids: Sequence[str],
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> list[OperationResult]:
        answers: dict[int, OperationResult] = {}
        size = CANCELLED_AT_ONCE if isinstance(operation, Cancel) else OPERATED_AT_ONCE
        for chunk in operate.rounds(operation, ids, size):
            await self._operate(operation, ids, chunk, answers, now, action)
        if ids:
            self._counted.forget()
            requested = any(answer.verdict is OperationVerdict.REQUESTED for answer in answers.values())
            self._changes.tell(urgent=True, cancels=requested)
        return [answers[position] for position in range(len(ids))]

    async def _operate(
        self,
        operation: Operation,
        ids: Sequence[str],
        chunk: list[int],
        answers: dict[int, OperationResult],
        now: int | None,
        action: Action | None,
    ) -> None:
        """Until each has an answer: one that moved while we looked is looked for again, in a new transaction."""
        left = chunk
        for _ in range(OPERATE_ROUNDS_MAX):
            wanted = [ids[position] for position in left]
            done = await self._transact(
                Lane.REST, partial(operate.operate, operation=operation, ids=wanted, action=action), now
            )
            answers.update({position: done[ids[position]] for position in left if ids[position] in done})
            left = [position for position in left if position not in answers]
            if not left:
                return
            await asyncio.sleep(0)
            if isinstance(operation, Delete):
                held = [ids[position] for position in left]
                await self._run(Lane.REST, lambda s, h=held: s.rows("wait_for_jobs", h))  # type: ignore[misc]
        they = agreeing(len(left), "it", "they")
        raise StoreUnavailable(
            f"{counted(len(left), 'job')} moved faster than {they} could be changed; try again"
        )

    async def pause(
        self, queue: str, paused: bool, *, now: int | None = None, action: Action | None = None
    ) -> None:
        await self._transact(Lane.REST, lambda s: audit.pause(s, queue, paused, action), now)
        self._changes.tell(urgent=True)

    async def hold(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        changed = await self._transact(Lane.REST, lambda s: aside.hold(s, kind, name, action), now)
        self._changes.tell(urgent=True)
        return changed

    async def release(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        changed = await self._transact(Lane.REST, lambda s: aside.release(s, kind, name, action), now)
        self._changes.tell(urgent=True)
        return changed

    async def holds(self) -> builtins.list[HoldRecord]:
        return await self._run(Lane.REST, aside.holds)

    async def actions(
        self, where: ActionFilter, *, cursor: str | None = None, limit: int = 100
    ) -> ActionPage:
        return await self._run(Lane.REST, lambda s: audit.page(s, where, cursor, limit))

    async def get_actions(self, ids: Sequence[str]) -> builtins.list[ActionRecord | None]:
        return await self._run(Lane.REST, lambda s: audit.get(s, ids), prompt=True)

    async def pauses(self) -> builtins.list[PauseRecord]:
        return await self._run(Lane.REST, audit.pauses)

    async def expire(self, limit: int, *, now: int | None = None) -> builtins.list[str]:
        overdue, at = await self._run(Lane.REST, lambda s: operate.overdue(s, limit), now, prompt=True)
        if not overdue:
            return []
        expired = await self._transact(Lane.REST, lambda s: operate.expire(s, overdue, at), now)
        if expired:
            self._changes.tell(urgent=False)
        return expired

    async def prune(self, before: dict[State, int], limit: int, *, now: int | None = None) -> int:
        check_prunable(before)
        return await self._transact(Lane.REST, lambda s: operate.prune(s, before, limit), now)

    async def prune_history(
        self, ids: Sequence[str], keep: int, before: int, *, now: int | None = None
    ) -> int:
        return await self._run(Lane.REST, lambda s: operate.prune_history(s, ids, keep, before), now)

    # -- the caller's own transaction --

    def in_transaction(self) -> bool:
        session = self._caller_session.get()
        return session is not None and session.caller.in_transaction()

    def uses_callers_thread(self) -> bool:
        session = self._caller_session.get()
        return session is not None and not session.caller.asynchronous

    @contextmanager
    def transaction(self, connection: Any, *, same_database: bool = False) -> Iterator[None]:
        caller = caller_of(connection, PostgresCaller)  # type: ignore[type-abstract]
        session = CallerSession(
            caller, self._sql, self.schema, notify=self._listen, same_database=same_database
        )
        reset = self._caller_session.set(session)
        try:
            yield
        finally:
            self._caller_session.reset(reset)

    async def _expected(self, session: CallerSession) -> str | None:
        """Which database a caller's connection must be to; None if the caller knows that it is the harbor's."""
        return None if session.same_database else await self._own_identity()

    async def _own_identity(self) -> str:
        """Which database the harbor is on. Asked once."""
        if self._identity is None:
            asked = self._run(Lane.REST, lambda s: s.value("identity"))
            # Stepped in the thread of a synchronous caller, this cannot wait for connections of ours by itself.
            self._identity = run_on_loop_thread(asked) if in_sync_call() else await asked
        return self._identity

    async def groups(self, where: JobFilter, limit: int) -> builtins.list[GroupRecord]:
        return await self._run(Lane.REST, lambda s: endings.groups(s, where, limit))

    # The last one, because from here on `list` in this class means the verb.

    async def list(
        self, where: JobFilter, *, cursor: str | None = None, limit: int = 100, now: int | None = None
    ) -> Page:
        budget = self.search_budget
        return await self._run(Lane.REST, lambda s: search.list_jobs(s, where, cursor, limit, budget), now)


async def _nothing(session: Session) -> None:
    """What needs a connection, and nothing of it."""


async def _learn_types(session: Session) -> None:
    """asyncpg asks the server, in a slow query, for arrays whose elements have a codec of ours."""
    await session.connection.prepare(session.sql["settle_and_release"])
