"""What a store may offer beyond the core: each capability is a small class of its own.

A driver offers a capability by inheriting its class. A caller that needs one asks with `Records.of(driver)`, which
refuses with `MissingCapability` where the store lacks it; a caller that can do without asks with
`Records.offered_by(driver)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

from taskharbor.drivers.contract.audit import Action, ActionFilter, ActionPage, ActionRecord, PauseRecord
from taskharbor.drivers.contract.copying import Row
from taskharbor.drivers.contract.enqueueing import WorkflowEnqueued
from taskharbor.drivers.contract.handing_over import Advanced, HandedOver, HandOverAnswer, Owner
from taskharbor.drivers.contract.holds import HoldKind, HoldRecord
from taskharbor.drivers.contract.ingesting import Ingested, MessageBatch
from taskharbor.drivers.contract.leasing import SettleAnswer
from taskharbor.drivers.contract.reading import WorkflowPage
from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.drivers.contract.rollups import Period, Rollup
from taskharbor.drivers.contract.settling import Note
from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.errors import MissingCapability
from taskharbor.records import (
    GroupRecord,
    JobFilter,
    MemberResult,
    NewJob,
    NewWorkflow,
    State,
    StepRecord,
    WorkflowRecord,
)


class Capability(ABC):
    CAPABILITY: ClassVar[str]  # its name in errors
    INSTEAD: ClassVar[str]  # what a user does on a store without it

    @classmethod
    def offered_by(cls, driver: object) -> Self | None:
        """Return the driver as one that offers this capability, or None."""
        return driver if isinstance(driver, cls) else None

    @classmethod
    def of(cls, driver: object) -> Self:
        """Return the driver as one that offers this capability, or raise `MissingCapability`."""
        if isinstance(driver, cls):
            return driver
        # A source of jobs that is no store may say why it has none.
        why = getattr(driver, "WHY_NOT", None) or f"this store ({type(driver).__name__}) has no"
        raise MissingCapability(f"{why} {cls.CAPABILITY}: {cls.INSTEAD}", cls.CAPABILITY)


class Workflows(Capability):
    """Jobs that depend on other jobs, and workflows: jobs that are stored, kept and pruned as a whole.

    A store without this capability never receives a job with `depends_on`.
    """

    CAPABILITY = "workflows"
    INSTEAD = "enqueue the jobs one after the other, or use a store that has workflows"

    @abstractmethod
    async def enqueue_workflow(
        self, workflow: NewWorkflow, jobs: Sequence[NewJob], *, now: int | None = None
    ) -> WorkflowEnqueued:
        """Store a workflow and all of its jobs, or nothing.

        If a workflow of this id or key is kept already, nothing is stored, whatever the jobs are. The jobs have
        the ids that follow the workflow's, in their order (see `member_id`), and no keys; an id among
        them that is taken is refused with `ConfigurationError`.
        """

    @abstractmethod
    async def results(
        self, ids: Sequence[str], *, bytes_limit: int | None = None
    ) -> list[list[MemberResult]]:
        """For each of these jobs: what those it depends on have come to, in the order it named them.

        From the first job on with which all results together would have more than `bytes_limit` bytes, its members
        and those of the jobs after it come without their results, marked as `left_out`.
        """

    @abstractmethod
    async def get_workflows(self, ids: Sequence[str]) -> list[WorkflowRecord | None]:
        """The workflows with these ids, each with how many of its jobs stand where."""

    @abstractmethod
    async def list_workflows(self, *, cursor: str | None = None, limit: int = 100) -> WorkflowPage:
        """Workflows by id, newest first."""


class Steps(Capability):
    """What an attempt stores while it runs: the results of its durable steps, and its progress."""

    CAPABILITY = "durable steps"
    INSTEAD = "leave out ctx.step, ctx.sleep and ctx.progress, or use a store that has durable steps"

    @abstractmethod
    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> list[SettleAnswer]:
        """Store progress and steps, fenced and refused as a settle is."""

    @abstractmethod
    async def steps(self, job_id: str) -> dict[str, StepRecord]:
        """The job's durable steps, by name."""


class Upkeep(Capability):
    """Deleting and cancelling by age. Each worker calls these verbs now and then."""

    CAPABILITY = "upkeep"
    INSTEAD = "it keeps every job; delete single jobs, or use a store that has upkeep"

    @abstractmethod
    async def expire(self, limit: int, *, now: int | None = None) -> list[str]:
        """Cancel at most `limit` jobs that were not begun by their `expires_at`.

        Which, the first to expire first; and then, by id, the dependants that ended with them.
        """

    async def catch_up(self, limit: int, *, now: int | None = None) -> list[str]:
        """Release or cancel the dependants that a member's end missed, since they were being stored at that moment.

        At most `limit` dependencies are looked at. Gives the jobs that it released or cancelled, by id. Only a store
        in which a producer's transaction stays open beside settles has anything to do here; each worker asks about
        once a second.
        """
        return []

    @abstractmethod
    async def prune(self, before: dict[State, int], limit: int, *, now: int | None = None) -> int:
        """Delete at most `limit` jobs that came to one of these terminal states before the instant given.

        A job that an unfinished one depends on stays. So does a member of a workflow for as long as any
        other member of it has to stay.
        """

    @abstractmethod
    async def prune_history(
        self, ids: Sequence[str], keep: int, before: int, *, now: int | None = None
    ) -> int:
        """Delete the attempts of these jobs beyond the newest `keep`, and those that ended before the instant given.

        The attempts of a job's present run stay, its latest one stays, and so does what a live lease still names.
        How many were deleted.
        """


class Records(Capability):
    """Documents with an optional expiry, by kind and key. No job depends on them."""

    CAPABILITY = "records"
    INSTEAD = (
        "it keeps neither tokens nor the list of workers; use a store that does, or authorize=… for a server"
    )

    @abstractmethod
    async def put_records(
        self,
        kind: RecordKind,
        about: Mapping[str, str],
        lasts: int | None,
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> None:
        """Keep these documents, by key, durably, in place of those that had their keys.

        They expire `lasts` microseconds after the store's now; with None they never do. An expired record may be
        deleted by any later put of its kind.
        """

    @abstractmethod
    async def records(self, kind: RecordKind, *, now: int | None = None) -> list[Record]:
        """Return the records of this kind that have not expired, by key."""

    @abstractmethod
    async def drop_records(
        self, kind: RecordKind, keys: Sequence[str], *, now: int | None = None, action: Action | None = None
    ) -> int:
        """Delete the records with these keys; return how many there were."""


class Rollups(Capability):
    """What workers have counted, by minute for a day and by hour for 30 days. No job depends on it.

    The rules of folding are in `taskharbor.rules.rollups`.
    """

    CAPABILITY = "roll-ups"
    INSTEAD = "it keeps no rates; take them from the workers' metrics, or use a store that has roll-ups"

    @abstractmethod
    async def append_rollups(self, rows: Sequence[Rollup]) -> None:
        """Keep these rows of single minutes beside all others: rows of one minute, queue and task add up."""

    @abstractmethod
    async def fold_rollups(self, limit: int, *, now: int | None = None) -> int:
        """Fold at most `limit` rows, the oldest first: appended ones into minutes, old minutes into hours.

        A row whose minute is no longer kept goes to its hour. Hours that are too old are deleted. Gives how many rows
        were folded or deleted; 0 also while another caller folds.
        """

    @abstractmethod
    async def rollups(
        self, begin: int, end: int, period: Period, *, queue: str | None = None, task: str | None = None
    ) -> list[Rollup]:
        """Return the sums of the periods that begin from `begin` on and before `end`, by period, queue and task.

        Both are begins of periods. Minutes that were folded into hours are only in those.
        """


class Waits(Capability):
    """What keeps a job from running: `why` asks for it. No job depends on it, and every answer is bounded."""

    CAPABILITY = "waits"
    INSTEAD = "`why` says less: it knows neither the place of a job in the line nor since when it runs"

    @abstractmethod
    async def count_before(
        self, job_id: str, queues: Sequence[str] | None, limit: int, *, now: int | None = None
    ) -> int | None:
        """Return how many runnable jobs a claim of these queues would take before this one; at most `limit`.

        None for `queues` means every queue. Paused queues count as empty. A suspect stands in the line of the suspects.
        None if the job is not ready.
        """

    @abstractmethod
    async def waits_for(self, job_id: str, limit: int) -> list[str]:
        """Return the jobs that a waiting job still waits for, in the order it named them; at most `limit`."""

    @abstractmethod
    async def begun_at(self, job_id: str) -> int | None:
        """Return when the attempt that is under way began, as the latest heartbeat of its lease said.

        None if no lease covers the job, or if the heartbeat did not name it: it names what runs for longer than a beat.
        """

    @abstractmethod
    async def worker_loads(self, *, now: int | None = None) -> dict[str, WorkerLoad]:
        """Return what each worker holds, by its name: of the leases that have not expired."""


class Holds(Capability):
    """Places aside, for jobs that only some workers take, and holds, which keep the jobs of a task or a tag back.

    A store without this capability never receives a transition or a claim with a label. Where it is offered: a job that
    stands aside keeps its state, queue, priority and place in the order, every verb finds it there, and whatever moves
    it (an operator's change, a requeue) brings it back to its ordinary place. A hold moves no job: workers put aside
    what they meet, and look into the place of a hold that is over.
    """

    CAPABILITY = "holds"
    INSTEAD = "pause the queue of these jobs, or use a store that has holds"

    @abstractmethod
    async def hold(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        """Keep the jobs of this task or tag back; return False, and change nothing, if they are held already.

        The store keeps the action with the hold, as in `Driver.operate`, and its actor as the one who holds them.
        """

    @abstractmethod
    async def release(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        """End a hold; return whether there was one."""

    @abstractmethod
    async def holds(self) -> list[HoldRecord]:
        """Return every hold in force, by kind and name."""


class Audit(Capability):
    """Who did what and when. No job depends on it.

    A store with this capability is given an `Action` with `operate`, `pause`, `put_records` and `drop_records`, and
    keeps it in the transaction of the change. If nothing changed, it keeps nothing. A job that was changed, and a
    dependant that ended with it, keep the action's id as their `action_id`. A store without it is never given one.
    """

    CAPABILITY = "audit"
    INSTEAD = "it does not record who did what; use a store that does"

    @abstractmethod
    async def actions(
        self, where: ActionFilter, *, cursor: str | None = None, limit: int = 100
    ) -> ActionPage:
        """Return the actions that match, the latest first. The store keeps at least the newest `ACTIONS_KEPT`."""

    @abstractmethod
    async def get_actions(self, ids: Sequence[str]) -> list[ActionRecord | None]:
        """Return the actions with these ids; None for one that is not kept (any more)."""

    @abstractmethod
    async def pauses(self) -> list[PauseRecord]:
        """Return the paused queues, by name."""


class Groups(Capability):
    """Dead jobs by cause. The fingerprints are those of `taskharbor.rules.fingerprint`."""

    CAPABILITY = "groups of dead jobs"
    INSTEAD = "list its dead jobs, each of which has its fingerprint, or use a store that has groups"

    @abstractmethod
    async def groups(self, where: JobFilter, limit: int) -> list[GroupRecord]:
        """Return the groups of the matching dead jobs, the largest first, then by fingerprint; at most `limit`.

        A dead job counts in the group of its latest attempt's fingerprint; without one, in that of its task and reason.
        The filter has nothing beyond `rules.grouping.GROUPED_BY`.
        """


class HandOver(Capability):
    """Jobs that come from a log of messages, in the middle of their first run."""

    CAPABILITY = "hand-over of messages"
    INSTEAD = "use a store that has it (memory, SQLite, PostgreSQL) beside the topic"

    @abstractmethod
    async def hand_over(
        self, jobs: Sequence[HandedOver], *, owners: Sequence[Owner] = (), now: int | None = None
    ) -> list[HandOverAnswer]:
        """Store all of these jobs or none, durably, each with its attempt and what goes with it.

        A message that is handed over twice is one job: the answer is KNOWN, and nothing is stored. The first job of a
        backlog stands where it would without one, and those behind it wait. Raises `NotOwner`, with nothing stored,
        unless the epoch of each of `owners` is the latest of its partition.
        """

    @abstractmethod
    async def handed_over(self, queue: str, first: str, last: str, limit: int) -> list[str]:
        """Return the idempotency keys of jobs of this queue from one key to another, in order, at most `limit`."""

    @abstractmethod
    async def own(self, partition: str) -> Owner:
        """Raise the epoch of a partition: hand-overs with an older one are refused from now on."""

    @abstractmethod
    async def backlogs(self, first: str, last: str, limit: int) -> list[str]:
        """Return the keys of the backlogs from one key to another, in order, at most `limit`."""

    @abstractmethod
    async def advance(self, limit: int, cursor: str | None = None, *, now: int | None = None) -> Advanced:
        """Look at backlogs, at most `limit`, and let each go on whose first job has ended or is gone.

        The next job of it that waits is released; a backlog without a job ends. See `rules.backlogs.step`. A backlog
        that another client is changing is left to the next round.
        """

    @abstractmethod
    async def before_in_backlog(self, job_id: str) -> str | None:
        """Return the job right before this one in its backlog; None if it has none before it, or no backlog."""


class Ingest(Capability):
    """Messages of a log that become jobs once each: the store keeps the next offset of every partition.

    The offset moves by compare-and-set in the transaction that stores the jobs. So a batch that is repeated, or that
    comes late from a reader that has been replaced, is refused whole, also when its jobs were pruned long ago.
    """

    CAPABILITY = "ingesting of messages"
    INSTEAD = "use a store that has it (memory, SQLite, PostgreSQL) behind the topic"

    @abstractmethod
    async def ingest(self, batches: Sequence[MessageBatch], *, now: int | None = None) -> list[Ingested]:
        """Store each batch whole if the store is at its `expected` offset, and move that to its `next`; else nothing.

        All of it is one durable transaction. Each batch is of another partition, or of another log.
        """

    @abstractmethod
    async def ingested(self, log: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the next offset of each of these partitions that the store knows."""


class Transactions(Capability):
    """Enqueueing inside a caller's own database transaction."""

    CAPABILITY = "callers' transactions"
    INSTEAD = (
        "enqueue after committing yours, or use a store that keeps its jobs in the same database; in tests, use the "
        "fixture `harbor` of TaskHarbor's pytest plugin, or taskharbor.testing.staged(harbor)"
    )

    @abstractmethod
    def in_transaction(self) -> bool:
        """Return whether this context takes part in a caller's transaction that is open."""

    @abstractmethod
    def uses_callers_thread(self) -> bool:
        """Return whether an enqueue in this context runs in the caller's thread and never has to suspend."""

    @abstractmethod
    def transaction(self, connection: Any, *, same_database: bool = False) -> AbstractContextManager[None]:
        """While this is active, enqueues of this context run on the caller's connection.

        With `same_database` the caller knows that the connection is to the store's database, and no connection of the
        driver's own is needed to compare the two. Reads of a job and of its history then run on it as well, also
        outside of a transaction.
        """


class Copying(Capability):
    """Everything that the store keeps, as rows that another store takes over. See `drivers.contract.copying`."""

    CAPABILITY = "copying"
    INSTEAD = "copy between SQLite and PostgreSQL; a store in memory ends with its process"

    @abstractmethod
    async def export_rows(self, kind: str, after: Row | None, limit: int, bytes_limit: int) -> Sequence[Row]:
        """Return the rows of this kind that follow `after` by their key, or the first ones; none at the end.

        At most `limit` rows, and no more after the one that brings their text over `bytes_limit`.
        """

    @abstractmethod
    async def missing_rows(self, kind: str, rows: Sequence[Row]) -> Sequence[Row]:
        """Return those of these rows that the store does not have, or has with other values."""

    @abstractmethod
    async def import_rows(self, kind: str, rows: Sequence[Row]) -> int:
        """Store those of these rows that do not exist yet, all or none; return how many were new.

        A row that exists and differs is refused with a `ConfigurationError`.
        """

    @abstractmethod
    async def finish_import(self) -> None:
        """Make what follows from the rows, such as counts, after the last of them. Idempotent."""


CAPABILITIES: tuple[type[Capability], ...] = (
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
    Transactions,
    Copying,
)
