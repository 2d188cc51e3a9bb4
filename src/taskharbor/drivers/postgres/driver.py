"""The PostgreSQL driver: many workers on many machines, one database."""

from __future__ import annotations

import asyncio
import builtins
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from taskharbor.clock import Clock, SystemClock
from taskharbor.drivers.base import (
    Action,
    ActionFilter,
    ActionPage,
    ActionRecord,
    CancelRequests,
    Check,
    Claim,
    ClaimRequest,
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
    Connections,
    Lane,
    Session,
)
from taskharbor.drivers.postgres.enqueuer import Enqueuer
from taskharbor.drivers.postgres.opened_store import OpenedStore
from taskharbor.drivers.postgres.settler import Settler
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
        self._sql = sql.statements(schema)
        self._connections = Connections(
            dsn, schema, self._sql, pooler=not listen, most=checked_connections(connections)
        )
        self._store = store = OpenedStore(self._connections, dsn, schema, clock)
        self._run, self._transact = store.run, store.transact
        self._changes = Changes(self._connections, listen=listen, clock=self.clock)
        self._enqueuer = Enqueuer(store, self._changes, listen=listen)
        self._settler = Settler(store)
        self._trails = ClaimHints(self.clock)
        self._listen = listen
        self._identity: str | None = None
        self._caller_session: contextvars.ContextVar[CallerSession | None] = contextvars.ContextVar(
            f"taskharbor_transaction_{id(self)}", default=None
        )
        self._counted = reads.Counted()

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

    # -- life --

    async def open(self) -> None:
        await self._store.open()

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
        self._store.is_checked = False
        self._identity = None

    async def migrate(self) -> list[str]:
        async with self._connections.dedicated() as connection:
            applied = await schema.migrate(connection, self._sql, self.dsn, self.schema)
        self._store.is_checked = False
        return applied

    async def check(self) -> list[Check]:
        return await self._connections.run(Lane.REST, lambda s: health.checks(s, self.dsn, self.schema))

    async def now(self) -> int:
        return await self._connections.run(Lane.REST, lambda s: s.now(), self._store.time(None))

    # -- the hot path --

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        if not jobs:
            return []
        session = self._caller_session.get()
        if session is not None:
            session.caller.refuse_synchronous()
            return await session.enqueue(jobs, await self._expected(session), self._store.time(now))
        try:
            if are_plain(jobs):
                answers = await self._enqueuer.gathering.store(jobs, now)
            else:
                answers = await self._enqueuer.store_each(jobs, now)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), [job.id for job in jobs]) from error
        return answers

    async def enqueue_workflow(
        self, workflow: NewWorkflow, jobs: Sequence[NewJob], *, now: int | None = None
    ) -> WorkflowEnqueued:
        session = self._caller_session.get()
        if session is not None:
            session.caller.refuse_synchronous()
            expected = await self._expected(session)
            return await session.enqueue_workflow(workflow, jobs, expected, self._store.time(now))
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
            self._settler.covered.remember(request.token, claim)
        return claim

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        # A mark of at_most_once belongs into the same transaction as the proof that the lease is live.
        run = self._transact if any(each.at_most_once for each in extensions) else self._run
        heartbeat = await run(Lane.SETTLE, lambda s: leases.extend(s, extensions), now, prompt=True)
        alive = [each.token for each in heartbeat.leases if proves_survival(each.answer)]
        await self._settler.mark_survived(alive, now)
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
            answers += await self._settler.settle(batch, now, self.shared_from)
            self._changes.tell(urgent=False)
            await self._settler.fold_now_and_then()
        return answers

    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> list[SettleAnswer]:
        return await self._settler.note(notes, now) if notes else []

    async def catch_up(self, limit: int, *, now: int | None = None) -> builtins.list[str]:
        rows = await self._run(Lane.REST, lambda s: s.rows("catch_up", limit, s.given_now), now, prompt=True)
        if rows:
            self._changes.tell(urgent=any(row["released"] for row in rows))
        return sorted(row["id"] for row in rows)

    def change_token(self) -> int:
        return self._changes.count()

    async def wait_for_change(self, token: int, seconds: float) -> None:
        await self._changes.wait(token, seconds)

    # -- reads --

    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]:
        session = self._caller_session.get()
        if session is not None and session.caller.reaches_here():
            return await session.get(ids, self._store.time(now))
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
        answers = await operate.in_rounds(self._store, operation, ids, action, now)
        if ids:
            self._counted.forget()
            requested = any(answer.verdict is OperationVerdict.REQUESTED for answer in answers)
            self._changes.tell(urgent=True, cancels=requested)
        return answers

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
