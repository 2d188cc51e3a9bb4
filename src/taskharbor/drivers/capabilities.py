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

from taskharbor.drivers.contract.enqueueing import WorkflowEnqueued
from taskharbor.drivers.contract.leasing import SettleAnswer
from taskharbor.drivers.contract.reading import WorkflowPage
from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.drivers.contract.rollups import Period, Rollup
from taskharbor.drivers.contract.settling import Note
from taskharbor.errors import MissingCapability
from taskharbor.records import MemberResult, NewJob, NewWorkflow, State, StepRecord, WorkflowRecord


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
        raise MissingCapability(
            f"this store ({type(driver).__name__}) has no {cls.CAPABILITY}: {cls.INSTEAD}", cls.CAPABILITY
        )


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
        self, kind: RecordKind, about: Mapping[str, str], lasts: int | None, *, now: int | None = None
    ) -> None:
        """Keep these documents, by key, durably, in place of those that had their keys.

        They expire `lasts` microseconds after the store's now; with None they never do. An expired record may be
        deleted by any later put of its kind.
        """

    @abstractmethod
    async def records(self, kind: RecordKind, *, now: int | None = None) -> list[Record]:
        """Return the records of this kind that have not expired, by key."""

    @abstractmethod
    async def drop_records(self, kind: RecordKind, keys: Sequence[str]) -> int:
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


class Transactions(Capability):
    """Enqueueing inside a caller's own database transaction."""

    CAPABILITY = "callers' transactions"
    INSTEAD = "enqueue after committing yours, or use a store that keeps its jobs in the same database"

    @abstractmethod
    def in_transaction(self) -> bool:
        """Return whether this context takes part in a caller's transaction that is open."""

    @abstractmethod
    def uses_callers_thread(self) -> bool:
        """Return whether an enqueue in this context runs in the caller's thread and never has to suspend."""

    @abstractmethod
    def transaction(self, connection: Any) -> AbstractContextManager[None]:
        """While this is active, enqueues of this context run on the caller's connection."""


CAPABILITIES: tuple[type[Capability], ...] = (Workflows, Steps, Upkeep, Records, Rollups, Transactions)
