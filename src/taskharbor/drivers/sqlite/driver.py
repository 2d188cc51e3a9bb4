"""The SQLite driver: the embedded default, one file, no server."""

from __future__ import annotations

import builtins
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    Page,
    PauseRecord,
    SettleAnswer,
    SettleResult,
    Transition,
    WorkflowEnqueued,
    WorkflowPage,
)
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
from taskharbor.drivers.sqlite import (
    aside,
    audit,
    backlogs,
    changes,
    claim,
    copying,
    endings,
    enqueue,
    handing_over,
    ingesting,
    leases,
    operate,
    places,
    reads,
    records,
    rollups,
    schema,
    search,
    settle,
    waits,
    workflows,
)
from taskharbor.drivers.sqlite.caller_session import CallerSession
from taskharbor.drivers.sqlite.depths import CountedDepths
from taskharbor.drivers.sqlite.engine import Engine
from taskharbor.drivers.sqlite.session import Session
from taskharbor.errors import ConfigurationError, StoreUnavailable
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


class SQLiteDriver(
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
    """Jobs in one SQLite file, for any number of processes on one machine.

    `synchronous` is SQLite's own setting: FULL (the default) makes every accepted job survive a power
    cut, as far as the disk tells the truth; NORMAL survives a crash of any process, not of the machine.
    """

    inline = True

    def __init__(self, path: str, *, synchronous: str = "FULL", clock: Clock | None = None) -> None:
        if synchronous.upper() not in ("FULL", "NORMAL", "EXTRA"):
            raise ConfigurationError(
                f"synchronous must be FULL, NORMAL or EXTRA, not {synchronous!r}; leave it out for FULL"
            )
        self.path = path
        self.clock = clock or SystemClock()
        self._engine = Engine(path, synchronous=synchronous.upper(), clock=self.clock)
        self._watch = changes.Watch(self._engine)
        self._depths = CountedDepths()
        self._caller_session: contextvars.ContextVar[CallerSession | None] = contextvars.ContextVar(
            f"taskharbor_transaction_{id(self)}", default=None
        )

    # -- life --

    async def open(self) -> None:
        self._engine.open()

    async def close(self) -> None:
        self._watch.close()
        self._engine.close()

    async def migrate(self) -> list[str]:
        return self._engine.migrate()

    async def check(self) -> list[Check]:
        return await self._engine.read_apart(lambda connection: schema.checks(connection, self.path))

    async def now(self) -> int:
        return self.clock.now()

    # -- the hot path --

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        writer = self._caller_session.get() or self._engine
        try:
            return await writer.write(lambda s: enqueue.enqueue(s, jobs), now)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), [job.id for job in jobs]) from error

    async def enqueue_workflow(
        self, workflow: NewWorkflow, jobs: Sequence[NewJob], *, now: int | None = None
    ) -> WorkflowEnqueued:
        writer = self._caller_session.get() or self._engine
        try:
            return await writer.write(lambda s: workflows.enqueue_workflow(s, workflow, jobs), now)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), [job.id for job in jobs]) from error

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Claim:
        return await self._engine.write(lambda s: _claim(s, request), now)

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        return await self._engine.write(lambda s: leases.extend(s, extensions), now)

    async def cancel_requests(self, tokens: Sequence[str], since: int | None = None) -> CancelRequests:
        mark = self._engine.data_version()  # before the look: what is committed during it is looked for again
        if mark == since:
            return CancelRequests(mark)
        return CancelRequests(mark, await self._engine.read(lambda s: leases.cancel_requests(s, tokens)))

    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> ExpiredLease | None:
        return await self._engine.write(lambda s: leases.take_expired(s, token, lease), now)

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        return await self._engine.write(lambda s: settle.settle(s, transitions), now)

    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> list[SettleAnswer]:
        return await self._engine.write(lambda s: settle.note(s, notes), now)

    def change_token(self) -> int:
        return self._engine.data_version()

    async def wait_for_change(self, token: int, seconds: float) -> None:
        await self._watch.wait(token, seconds)

    # -- reads --

    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]:
        return await self._reader().read(lambda s: [places.record(s, job_id) for job_id in ids], now)

    async def count(
        self, where: JobFilter, *, cursor: str | None = None, limit: int = 10_000, now: int | None = None
    ) -> JobCount:
        return await self._engine.read(
            lambda s: search.count_jobs(s, where, cursor, limit, self.search_budget), now
        )

    async def counts(self, queue: str | None = None, *, now: int | None = None) -> dict[State, int]:
        return await self._depths.read(self._engine, now, lambda s, depths: reads.counts(s, depths, queue))

    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        return await self._reader().read(lambda s: reads.history(s, job_id, limit))

    async def steps(self, job_id: str) -> dict[str, StepRecord]:
        return await self._engine.read(lambda s: reads.steps(s, job_id))

    async def results(
        self, ids: Sequence[str], *, bytes_limit: int | None = None
    ) -> builtins.list[builtins.list[MemberResult]]:
        return await self._engine.read(lambda s: workflows.results(s, ids, bytes_limit))

    async def get_workflows(self, ids: Sequence[str]) -> builtins.list[WorkflowRecord | None]:
        return await self._reader().read(lambda s: [workflows.get(s, workflow_id) for workflow_id in ids])

    async def list_workflows(self, *, cursor: str | None = None, limit: int = 100) -> WorkflowPage:
        return await self._engine.read(lambda s: workflows.page(s, cursor, limit))

    async def queues(self, *, now: int | None = None) -> list[QueueRecord]:
        return await self._depths.read(self._engine, now, reads.queues)

    async def leases(self, *, now: int | None = None) -> list[LeaseRecord]:
        return await self._engine.read(reads.lease_records, now)

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
        await self._engine.write(lambda s: records.put(s, kind, about, lasts, action), now)

    async def records(self, kind: RecordKind, *, now: int | None = None) -> list[Record]:
        return await self._engine.read(lambda s: records.read(s, kind), now)

    async def drop_records(
        self, kind: RecordKind, keys: Sequence[str], *, now: int | None = None, action: Action | None = None
    ) -> int:
        return await self._engine.write(lambda s: records.drop(s, kind, keys, action), now)

    # -- messages of a log --

    async def hand_over(
        self, jobs: Sequence[HandedOver], *, owners: Sequence[Owner] = (), now: int | None = None
    ) -> builtins.list[HandOverAnswer]:
        return await self._engine.write(lambda s: handing_over.hand_over(s, jobs, owners), now)

    async def handed_over(self, queue: str, first: str, last: str, limit: int) -> builtins.list[str]:
        return await self._engine.read(lambda s: handing_over.keys_between(s, queue, first, last, limit))

    async def own(self, partition: str) -> Owner:
        return await self._engine.write(lambda s: backlogs.own(s, partition))

    async def backlogs(self, first: str, last: str, limit: int) -> builtins.list[str]:
        return await self._engine.read(lambda s: backlogs.keys_between(s, first, last, limit))

    async def advance(self, limit: int, cursor: str | None = None, *, now: int | None = None) -> Advanced:
        look = await self._engine.read(lambda s: backlogs.look(s, limit, cursor), now)
        if not look.due:
            return Advanced([], look.cursor)
        return Advanced(await self._engine.write(lambda s: backlogs.advance(s, look.due), now), look.cursor)

    async def before_in_backlog(self, job_id: str) -> str | None:
        return await self._engine.read(lambda s: backlogs.before(s, job_id))

    async def ingest(
        self, batches: Sequence[MessageBatch], *, now: int | None = None
    ) -> builtins.list[Ingested]:
        return await self._engine.write(lambda s: ingesting.ingest(s, batches), now)

    async def ingested(self, log: str, partitions: Sequence[int]) -> dict[int, int]:
        return await self._engine.read(lambda s: ingesting.ingested(s, log, partitions))

    # -- roll-ups --

    async def append_rollups(self, rows: Sequence[Rollup]) -> None:
        await self._engine.write(lambda s: rollups.append(s, rows))

    async def fold_rollups(self, limit: int, *, now: int | None = None) -> int:
        return await self._engine.write(lambda s: rollups.fold(s, limit), now)

    async def rollups(
        self, begin: int, end: int, period: Period, *, queue: str | None = None, task: str | None = None
    ) -> list[Rollup]:
        return await self._engine.read(lambda s: rollups.read(s, begin, end, period, queue, task))

    # -- copying --

    async def export_rows(
        self, kind: str, after: Row | None, limit: int, bytes_limit: int
    ) -> builtins.list[Row]:
        wanted = kind_of(kind)
        return await self._engine.read(lambda s: copying.export(s, wanted, after, limit, bytes_limit))

    async def missing_rows(self, kind: str, rows: Sequence[Row]) -> builtins.list[Row]:
        wanted, given = kind_of(kind), builtins.list(rows)
        return await self._engine.read(lambda s: copying.missing(s, wanted, given))

    async def import_rows(self, kind: str, rows: Sequence[Row]) -> int:
        wanted, given = kind_of(kind), builtins.list(rows)
        return await self._engine.write(lambda s: copying.insert(s, wanted, given)) if given else 0

    async def finish_import(self) -> None:
        await self._engine.write(copying.finish)

    # -- waits --

    async def count_before(
        self, job_id: str, queues: Sequence[str] | None, limit: int, *, now: int | None = None
    ) -> int | None:
        return await self._engine.read(lambda s: waits.count_before(s, job_id, queues, limit), now)

    async def waits_for(self, job_id: str, limit: int) -> builtins.list[str]:
        return await self._engine.read(lambda s: waits.waits_for(s, job_id, limit))

    async def begun_at(self, job_id: str) -> int | None:
        return await self._engine.read(lambda s: waits.begun_at(s, job_id))

    async def worker_loads(self, *, now: int | None = None) -> dict[str, WorkerLoad]:
        return await self._engine.read(waits.worker_loads, now)

    # -- operators --

    async def operate(
        self,
        operation: Operation,
        ids: Sequence[str],
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> list[OperationResult]:
        answers = await self._engine.write(lambda s: _operate(s, operation, ids, action), now)
        self._depths.forget()
        return answers

    async def pause(
        self, queue: str, paused: bool, *, now: int | None = None, action: Action | None = None
    ) -> None:
        await self._engine.write(lambda s: audit.pause(s, queue, paused, action), now)

    async def actions(
        self, where: ActionFilter, *, cursor: str | None = None, limit: int = 100
    ) -> ActionPage:
        return await self._engine.read(lambda s: audit.page(s, where, cursor, limit))

    async def get_actions(self, ids: Sequence[str]) -> builtins.list[ActionRecord | None]:
        return await self._engine.read(lambda s: audit.get(s, ids))

    async def pauses(self) -> builtins.list[PauseRecord]:
        return await self._engine.read(audit.pauses)

    async def hold(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        return await self._engine.write(lambda s: aside.hold(s, kind, name, action), now)

    async def release(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        return await self._engine.write(lambda s: aside.release(s, kind, name, action), now)

    async def holds(self) -> builtins.list[HoldRecord]:
        return await self._engine.read(aside.holds)

    async def expire(self, limit: int, *, now: int | None = None) -> builtins.list[str]:
        return await self._engine.write(lambda s: operate.expire(s, limit), now)

    async def prune(self, before: dict[State, int], limit: int, *, now: int | None = None) -> int:
        return await self._engine.write(lambda s: operate.prune(s, before, limit), now)

    async def prune_history(
        self, ids: Sequence[str], keep: int, before: int, *, now: int | None = None
    ) -> int:
        return await self._engine.write(lambda s: operate.prune_history(s, ids, keep, before), now)

    # -- the caller's own transaction --

    def in_transaction(self) -> bool:
        session = self._caller_session.get()
        return session is not None and session.caller.in_transaction()

    def uses_callers_thread(self) -> bool:
        return True

    @contextmanager
    def transaction(self, connection: Any, *, same_database: bool = False) -> Iterator[None]:
        session = CallerSession(connection, self.path, self.clock, same_database=same_database)
        reset = self._caller_session.set(session)
        try:
            yield
        finally:
            self._caller_session.reset(reset)

    def _reader(self) -> CallerSession | Engine:
        """What a caller's open transaction has written, only its own connection sees."""
        session = self._caller_session.get()
        return session if session is not None and session.can_read() else self._engine

    async def groups(self, where: JobFilter, limit: int) -> builtins.list[GroupRecord]:
        return await self._engine.read(lambda s: endings.groups(s, where, limit))

    # The last one, because from here on `list` in this class means the verb.

    async def list(
        self, where: JobFilter, *, cursor: str | None = None, limit: int = 100, now: int | None = None
    ) -> Page:
        return await self._engine.read(
            lambda s: search.list_jobs(s, where, cursor, limit, self.search_budget), now
        )


def _operate(
    session: Session, operation: Operation, ids: Sequence[str], action: Action | None
) -> list[OperationResult]:
    answers = operate.operate(session, operation, ids)
    if action is not None:
        audit.record_operation(session, action, answers)
    return answers


def _claim(session: Session, request: ClaimRequest) -> Claim:
    claimed = claim.claim(session, request)
    if claimed.unreadable:
        workflows.cancel_dependants(session, claimed.unreadable)
    return claimed
