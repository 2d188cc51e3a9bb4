"""The memory driver: each call takes the lock, reads the clock, and does its work in one step."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import ClassVar

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
    Groups,
    HandOver,
    Holds,
    Ingest,
    Records,
    Rollups,
    Steps,
    Upkeep,
    Waits,
    Workflows,
)
from taskharbor.drivers.contract.handing_over import Advanced, HandedOver, HandOverAnswer, Owner
from taskharbor.drivers.contract.holds import HoldKind, HoldRecord
from taskharbor.drivers.contract.ingesting import Ingested, MessageBatch
from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.drivers.contract.rollups import Period, Rollup
from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.drivers.memory import (
    audit,
    backlogs,
    enqueue,
    groups,
    handing_over,
    ingesting,
    leases,
    operate,
    reads,
    rollups,
    settle,
    waits,
)
from taskharbor.drivers.memory.changes import Changes
from taskharbor.drivers.memory.store import Store
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
from taskharbor.sync import in_sync_call


class MemoryDriver(
    Driver, Workflows, Steps, Upkeep, Records, Rollups, Audit, Waits, Holds, Groups, HandOver, Ingest
):
    """A store in this process's memory, and the reference of what a store does.

    It may be used from any number of threads and event loops. Every instance is a store of its own; it
    lasts as long as the instance and outlives `close`. After a fork the child has a copy of the store as
    it was at that moment, leases included, and from then on the two know nothing of each other.
    """

    inline: ClassVar[bool] = True

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._store = Store()
        self._changes = Changes()

    def _time(self, now: int | None) -> int:
        """Called with the lock held: an instant read before might be older than what others have done."""
        return self.clock.now() if now is None else now

    # -- life --

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        with self._changes.lock:
            self._changes.post()  # no waiter is left

    async def migrate(self) -> list[str]:
        return []

    async def check(self) -> list[Check]:
        return [
            Check("reachable", True, "in this process"),
            # A caller that names memory:// expects that.
            Check("durability", False, "jobs are kept in memory and end with this process", severe=False),
            Check("schema", True, "memory has none"),
        ]

    async def now(self) -> int:
        return self.clock.now()

    # -- the hot path --

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        with self._changes.lock:
            answers = enqueue.enqueue(self._store, jobs, self._time(now))
            self._changes.post()
            return answers

    async def enqueue_workflow(
        self, workflow: NewWorkflow, jobs: Sequence[NewJob], *, now: int | None = None
    ) -> WorkflowEnqueued:
        with self._changes.lock:
            answer = enqueue.enqueue_workflow(self._store, workflow, jobs, self._time(now))
            self._changes.post()
            return answer

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Claim:
        with self._changes.lock:
            return leases.claim(self._store, request, self._time(now))

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        with self._changes.lock:
            return leases.extend(self._store, extensions, self._time(now))

    async def cancel_requests(self, tokens: Sequence[str], since: int | None = None) -> CancelRequests:
        with self._changes.lock:
            mark = self._store.cancel_requests
            if mark == since:
                return CancelRequests(mark)
            return CancelRequests(mark, leases.cancel_requests(self._store, tokens))

    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> ExpiredLease | None:
        with self._changes.lock:
            return leases.take_expired(self._store, token, lease, self._time(now))

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        with self._changes.lock:
            try:
                return settle.settle(self._store, transitions, self._time(now))
            finally:  # jobs before one that was refused for its content are settled
                self._changes.post()

    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> list[SettleAnswer]:
        with self._changes.lock:
            return settle.note(self._store, notes, self._time(now))

    def change_token(self) -> int:
        return self._changes.count

    async def wait_for_change(self, token: int, seconds: float) -> None:
        """See the contract. In a synchronous call `seconds` are real ones, whatever the clock."""
        if in_sync_call():
            self._changes.block(token, seconds)
        else:
            await self._changes.suspend(token, seconds, self.clock)

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
        with self._changes.lock:
            instant = self._time(now)
            expires_at = None if lasts is None else instant + lasts
            kept = {record.key: record for record in self._store.live_records(kind, instant)}
            new = {key: Record(key, text, expires_at) for key, text in about.items()}
            self._store.records[kind] = kept | new
            if action is not None:
                audit.record(self._store, action, 0, instant)

    async def records(self, kind: RecordKind, *, now: int | None = None) -> list[Record]:
        with self._changes.lock:
            return self._store.live_records(kind, self._time(now))

    async def drop_records(
        self, kind: RecordKind, keys: Sequence[str], *, now: int | None = None, action: Action | None = None
    ) -> int:
        with self._changes.lock:
            kept = self._store.records[kind]
            dropped = sum(kept.pop(key, None) is not None for key in keys)
            if action is not None and dropped:
                audit.record(self._store, action, 0, self._time(now))
            return dropped

    # -- messages of a log --

    async def hand_over(
        self, jobs: Sequence[HandedOver], *, owners: Sequence[Owner] = (), now: int | None = None
    ) -> list[HandOverAnswer]:
        with self._changes.lock:
            answers = handing_over.hand_over(self._store, jobs, owners, self._time(now))
            self._changes.post()
            return answers

    async def handed_over(self, queue: str, first: str, last: str, limit: int) -> list[str]:
        with self._changes.lock:
            return handing_over.keys_between(self._store, queue, first, last, limit)

    async def own(self, partition: str) -> Owner:
        with self._changes.lock:
            return handing_over.own(self._store, partition)

    async def backlogs(self, first: str, last: str, limit: int) -> list[str]:
        with self._changes.lock:
            return backlogs.keys_between(self._store, first, last, limit)

    async def advance(self, limit: int, cursor: str | None = None, *, now: int | None = None) -> Advanced:
        with self._changes.lock:
            advanced = backlogs.advance(self._store, limit, cursor)
            if advanced.released:
                self._changes.post()
            return advanced

    async def before_in_backlog(self, job_id: str) -> str | None:
        with self._changes.lock:
            return backlogs.before(self._store, job_id)

    async def ingest(self, batches: Sequence[MessageBatch], *, now: int | None = None) -> list[Ingested]:
        with self._changes.lock:
            answers = ingesting.ingest(self._store, batches, self._time(now))
            self._changes.post()
            return answers

    async def ingested(self, log: str, partitions: Sequence[int]) -> dict[int, int]:
        with self._changes.lock:
            return ingesting.ingested(self._store, log, partitions)

    # -- roll-ups --

    async def append_rollups(self, rows: Sequence[Rollup]) -> None:
        with self._changes.lock:
            self._store.appended_rollups += rows

    async def fold_rollups(self, limit: int, *, now: int | None = None) -> int:
        with self._changes.lock:
            return rollups.fold(self._store, limit, self._time(now))

    async def rollups(
        self, begin: int, end: int, period: Period, *, queue: str | None = None, task: str | None = None
    ) -> list[Rollup]:
        with self._changes.lock:
            return rollups.read(self._store, begin, end, period, queue, task)

    # -- waits --

    async def count_before(
        self, job_id: str, queues: Sequence[str] | None, limit: int, *, now: int | None = None
    ) -> int | None:
        with self._changes.lock:
            return waits.count_before(self._store, job_id, queues, limit, self._time(now))

    async def waits_for(self, job_id: str, limit: int) -> builtins.list[str]:
        with self._changes.lock:
            return waits.waits_for(self._store, job_id, limit)

    async def begun_at(self, job_id: str) -> int | None:
        with self._changes.lock:
            return waits.begun_at(self._store, job_id)

    async def worker_loads(self, *, now: int | None = None) -> dict[str, WorkerLoad]:
        with self._changes.lock:
            return waits.worker_loads(self._store, self._time(now))

    # -- operators --

    async def operate(
        self,
        operation: Operation,
        ids: Sequence[str],
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> list[OperationResult]:
        with self._changes.lock:
            instant = self._time(now)
            answers = operate.operate(self._store, operation, ids, instant)
            if action is not None:
                audit.record_operation(self._store, action, answers, instant)
            self._changes.post()
            return answers

    async def pause(
        self, queue: str, paused: bool, *, now: int | None = None, action: Action | None = None
    ) -> None:
        with self._changes.lock:
            audit.pause(self._store, queue, paused, action, self._time(now))
            self._changes.post()

    async def hold(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        with self._changes.lock:
            changed = audit.hold(self._store, kind, name, action, self._time(now))
            self._changes.post()
            return changed

    async def release(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        with self._changes.lock:
            changed = audit.release(self._store, kind, name, action, self._time(now))
            self._changes.post()
            return changed

    async def holds(self) -> builtins.list[HoldRecord]:
        with self._changes.lock:
            return [hold for _, hold in sorted(self._store.holds.items())]

    async def actions(
        self, where: ActionFilter, *, cursor: str | None = None, limit: int = 100
    ) -> ActionPage:
        with self._changes.lock:
            return audit.page(self._store, where, cursor, limit)

    async def get_actions(self, ids: Sequence[str]) -> builtins.list[ActionRecord | None]:
        with self._changes.lock:
            return [self._store.actions.get(action_id) for action_id in ids]

    async def pauses(self) -> builtins.list[PauseRecord]:
        with self._changes.lock:
            return [pause for _, pause in sorted(self._store.paused.items())]

    async def expire(self, limit: int, *, now: int | None = None) -> builtins.list[str]:
        with self._changes.lock:
            expired = operate.expire(self._store, limit, self._time(now))
            if expired:
                self._changes.post()
            return expired

    async def prune(self, before: dict[State, int], limit: int, *, now: int | None = None) -> int:
        with self._changes.lock:
            return operate.prune(self._store, before, limit)

    async def prune_history(
        self, ids: Sequence[str], keep: int, before: int, *, now: int | None = None
    ) -> int:
        with self._changes.lock:
            return operate.prune_history(self._store, ids, keep, before)

    # -- reads --

    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]:
        with self._changes.lock:
            instant = self._time(now)
            found = [self._store.jobs.get(job_id) for job_id in ids]
            return [reads.record(job, instant) if job is not None else None for job in found]

    async def counts(self, queue: str | None = None, *, now: int | None = None) -> dict[State, int]:
        with self._changes.lock:
            return reads.counts(self._store, queue, self._time(now))

    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        with self._changes.lock:
            job = self._store.jobs.get(job_id)
            return reads.history(job, limit) if job is not None else []

    async def steps(self, job_id: str) -> dict[str, StepRecord]:
        with self._changes.lock:
            job = self._store.jobs.get(job_id)
            return dict(job.steps) if job is not None else {}

    async def results(
        self, ids: Sequence[str], *, bytes_limit: int | None = None
    ) -> builtins.list[builtins.list[MemberResult]]:
        with self._changes.lock:
            return reads.results(self._store, ids, bytes_limit)

    async def get_workflows(self, ids: Sequence[str]) -> builtins.list[WorkflowRecord | None]:
        with self._changes.lock:
            found = [self._store.workflows.get(workflow_id) for workflow_id in ids]
            return [None if each is None else reads.workflow_record(self._store, each) for each in found]

    async def list_workflows(self, *, cursor: str | None = None, limit: int = 100) -> WorkflowPage:
        with self._changes.lock:
            return reads.workflow_page(self._store, cursor, limit)

    async def queues(self, *, now: int | None = None) -> list[QueueRecord]:
        with self._changes.lock:
            return reads.queues(self._store, self._time(now))

    async def leases(self, *, now: int | None = None) -> list[LeaseRecord]:
        with self._changes.lock:
            return reads.leases(self._store, self._time(now))

    async def groups(self, where: JobFilter, limit: int) -> builtins.list[GroupRecord]:
        with self._changes.lock:
            return groups.groups(self._store, where, limit, self._time(None))

    # The last one, because from here on `list` in this class means the verb.

    async def list(
        self,
        where: JobFilter,
        *,
        cursor: str | None = None,
        limit: int = 100,
        now: int | None = None,
    ) -> Page:
        with self._changes.lock:
            return reads.page(self._store, where, cursor, limit, self._time(now), self.search_budget)
