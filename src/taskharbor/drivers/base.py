"""The driver contract: the few batched verbs that a store offers, and the values they exchange.

A driver holds no policy. What should happen to a job is decided outside, by pure functions, and arrives
as a `Transition`; the driver's duty is to apply it atomically, or to refuse it and change nothing.

Rules for every verb:

- `now` is an instant in microseconds. None, as in production, means the store's own clock, read after
  whatever lock the verb needs is held. A given time makes the verb deterministic.
- A batch is answered member by member, in the order it was given. `enqueue` alone is all or nothing.
- Tokens are made by the caller, so that a verb whose answer was lost can be repeated with the same
  token and gives the same answer.
- A token is `worker/serial`: it names its worker, so that no attempt row has to repeat it.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from taskharbor.clock import Clock
from taskharbor.drivers.contract.enqueueing import (
    Enqueued,
    WorkflowEnqueued,
    member_exists,
    member_id,
)
from taskharbor.drivers.contract.leasing import (
    CLAIM_BYTES,
    CancelRequests,
    Claim,
    Claimed,
    ClaimRequest,
    ExpiredLease,
    Extended,
    Extension,
    Heartbeat,
    Outlook,
    SettleAnswer,
    worker_of,
)
from taskharbor.drivers.contract.operating import (
    NOT_BEGUN,
    OPERATOR,
    Cancel,
    Delete,
    Discard,
    Operation,
    OperationResult,
    OperationVerdict,
    Requeue,
    RunNow,
    Seen,
    Update,
    with_dependants,
)
from taskharbor.drivers.contract.reading import (
    Check,
    LeaseRecord,
    Page,
    WorkerRecord,
    WorkflowPage,
)
from taskharbor.drivers.contract.settling import (
    Note,
    Occurrence,
    ProgressNote,
    SettleResult,
    StepNote,
    Transition,
)
from taskharbor.drivers.contract.sizes import (
    SETTLE_BYTES,
    claimed_size,
    job_size,
    pieces,
    text_size,
    transition_size,
)
from taskharbor.errors import ConfigurationError
from taskharbor.records import (
    AttemptRecord,
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


class Driver(ABC):
    """A store. Every verb is a coroutine; see the module's rules.

    A driver whose `inline` is true never suspends when `sync_call` is active, so that the synchronous
    surface can step its coroutines in the caller's own thread, without a loop.
    """

    inline: ClassVar[bool] = False
    clock: Clock
    outlook = Outlook()  # a driver that knows better says so with every `take_expired`

    # -- life --

    @abstractmethod
    async def open(self) -> None:
        """Connect and check the schema. Idempotent; every other verb opens on first use."""

    async def open_for_work(self) -> None:
        """Open, and refuse with `AccessDenied` where a worker would not be let do all that it has to."""
        await self.open()

    @abstractmethod
    async def close(self) -> None:
        """Let go of every connection and thread. Idempotent."""

    @abstractmethod
    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that were applied."""

    @abstractmethod
    async def check(self) -> list[Check]:
        """Is the store reachable, durable, up to date, its clock sane?"""

    @abstractmethod
    async def now(self) -> int:
        """The store's time."""

    # -- the hot path --

    @abstractmethod
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        """Store all of the jobs or none, durably.

        A job whose id, or whose (queue, idempotency key), is already kept, or comes twice in the batch,
        is answered with the one that exists; nothing of that one changes. A job that depends on others
        waits for them; a dependency that nobody knows is refused with `ConfigurationError`.
        """

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
    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Claim:
        """Lease the first runnable jobs, by priority, then due time, then id, over all the queues.

        Paused queues give nothing. Each claim raises the job's attempt number by one. Repeated with the
        same token it gives the same jobs, as far as they are not settled.

        It ends at `limit` jobs, and before the job that would bring it over `bytes_limit`, unless that is the first
        one; `more` then says that it did. What does not fit stays where it is.

        A driver for which looking everywhere is dear at the moment may do so only now and then: it says when by
        `next_due`, and that it has not by `searched`. A drain does not end before it has.
        """

    @abstractmethod
    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        """Push the expiry of live leases out, and return what operators have asked for since.

        A refusal marks the lease as one that its worker survived, as in `settle`.
        """

    @abstractmethod
    async def cancel_requests(self, tokens: Sequence[str], since: int | None = None) -> CancelRequests:
        """Say which unsettled jobs under these leases were asked to end. Nothing is written or extended.

        `since` is the mark of an earlier look. A driver that has learnt of no request after it answers without a
        look at the store, so that asking costs nothing. It may miss a request of another process; the next heartbeat
        does not.
        """

    @abstractmethod
    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> ExpiredLease | None:
        """Take over the lease that expired first, for the policy to decide; None when none has.

        Repeated with the same token, it gives the same lease again.
        """

    @abstractmethod
    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        """Apply each transition that its lease and attempt number prove; refuse the others.

        Refusals, in this order: `NOT_RUNNING` (no lease covers the job), `LEASE_MISMATCH` (another lease
        or number does), `LEASE_EXPIRED`. One that already took effect under the same token, number and
        status answers `DONE` again; under another status `NOT_RUNNING`, with what is recorded.

        In the same transaction a success releases those for whom it was the last one to wait for, and any other
        end of a job cancels those that end with it, and those that end with them. (So it is when an operator
        or its age ends a job.) One that would have ended with several of a batch is told of the first of them.

        A refused settle, heartbeat or note proves that the worker which claimed under this token is alive. If its lease
        is over, the store marks it `worker_survived`, under whatever token a collector holds it, and so it does with
        the `lost` rows that collectors have settled from it. A transition that names a `worker` proves nothing.
        """

    @abstractmethod
    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> list[SettleAnswer]:
        """Store progress and steps, fenced and refused as a settle is."""

    @abstractmethod
    def change_token(self) -> int:
        """Return a number that differs after any change. Take it, look at the store, then call `wait_for_change`."""

    @abstractmethod
    async def wait_for_change(self, token: int, seconds: float) -> None:
        """Return as soon as the store has changed since `token`, or after `seconds`.

        A change is anything that a caller may wait for: new work, a finished job, an operator's action.
        Spurious wake-ups are allowed; missed ones are not.
        """

    # -- reads --

    @abstractmethod
    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]: ...

    @abstractmethod
    async def counts(self, queue: str | None = None, *, now: int | None = None) -> dict[State, int]:
        """How many jobs stand in each state, all seven of them."""

    @abstractmethod
    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        """The job's attempts, newest first."""

    @abstractmethod
    async def steps(self, job_id: str) -> dict[str, StepRecord]:
        """The job's durable steps, by name."""

    @abstractmethod
    async def results(
        self, ids: Sequence[str], *, bytes_limit: int | None = None
    ) -> builtins.list[builtins.list[MemberResult]]:
        """For each of these jobs: what those it depends on have come to, in the order it named them.

        From the first job on with which all results together would have more than `bytes_limit` bytes, its members
        and those of the jobs after it come without their results, marked as `left_out`.
        """

    @abstractmethod
    async def get_workflows(self, ids: Sequence[str]) -> builtins.list[WorkflowRecord | None]:
        """The workflows with these ids, each with how many of its jobs stand where."""

    @abstractmethod
    async def list_workflows(self, *, cursor: str | None = None, limit: int = 100) -> WorkflowPage:
        """Workflows by id, newest first."""

    @abstractmethod
    async def queues(self, *, now: int | None = None) -> list[QueueRecord]:
        """Every queue that holds runnable or running jobs, or is paused, by name."""

    @abstractmethod
    async def leases(self, *, now: int | None = None) -> list[LeaseRecord]: ...

    # -- operators --

    @abstractmethod
    async def operate(
        self, operation: Operation, ids: Sequence[str], *, now: int | None = None
    ) -> list[OperationResult]:
        """Do one thing to each of these jobs whose state allows it; see `taskharbor.rules.lifecycle`.

        A dependant that ended with several of them is told of the first one, by id.
        """

    @abstractmethod
    async def pause(self, queue: str, paused: bool) -> None:
        """Set or lift the flag that keeps a queue from being claimed."""

    @abstractmethod
    async def expire(self, limit: int, *, now: int | None = None) -> builtins.list[str]:
        """Cancel at most `limit` jobs that were not begun by their `expires_at`.

        Which, the first to expire first; and then, by id, the dependants that ended with them.
        """

    async def catch_up(self, limit: int, *, now: int | None = None) -> builtins.list[str]:
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

    # -- the caller's own transaction --

    def in_transaction(self) -> bool:
        """Whether this context takes part in a caller's transaction that is open."""
        return False

    def uses_callers_thread(self) -> bool:
        """Whether an enqueue in this context runs in the thread of whoever calls it, and never has to suspend."""
        return self.inline

    def transaction(self, connection: Any) -> AbstractContextManager[None]:
        """While this is active, enqueues of this context run on the caller's connection."""
        raise ConfigurationError(
            f"{type(self).__name__} cannot enqueue inside a caller's transaction; "
            "enqueue after committing it, or use a store that keeps its jobs in the same database"
        )

    # The last one, because from here on `list` in this class means the verb.

    @abstractmethod
    async def list(
        self,
        where: JobFilter,
        *,
        cursor: str | None = None,
        limit: int = 100,
        now: int | None = None,
    ) -> Page:
        """Jobs by id, newest first. A page may be short, even empty; the end is a cursor of None."""
