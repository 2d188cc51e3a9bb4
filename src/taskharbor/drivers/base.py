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

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from taskharbor.clock import Clock
from taskharbor.drivers.contract.audit import (
    Action,
    ActionFilter,
    ActionPage,
    ActionRecord,
    PauseRecord,
    Verb,
)
from taskharbor.drivers.contract.enqueueing import (
    AlikeJobs,
    Enqueued,
    WorkflowEnqueued,
    are_plain,
    have_keys,
    member_exists,
    member_id,
    unknown_dependency,
)
from taskharbor.drivers.contract.leasing import (
    CLAIM_BYTES,
    DEFAULT_MAX_LOSSES,
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
    DECLARED,
    NOT_BEGUN,
    OPERATOR,
    Cancel,
    DeadLetter,
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
    JobCount,
    LeaseRecord,
    Page,
    Search,
    SearchBudget,
    WorkerRecord,
    WorkflowPage,
)
from taskharbor.drivers.contract.settling import (
    Note,
    Occurrence,
    PlainSuccesses,
    ProgressNote,
    SettleResult,
    StepNote,
    Transition,
)
from taskharbor.drivers.contract.sizes import (
    SETTLE_BYTES,
    claimed_size,
    job_size,
    jobs_size,
    pieces,
    settle_pieces,
    text_size,
    transition_size,
)
from taskharbor.records import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    NewJob,
    QueueRecord,
    State,
)


class Leasing(ABC):
    """Jobs under a lease, from the claim to the settle: all that a worker needs of a source of jobs."""

    outlook = Outlook()  # what the latest `take_expired` saw; a driver that knows less leaves the default

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
        status answers `DONE` again, with the same dependants as far as they are still what it made them; under another
        status `NOT_RUNNING`, with what is recorded.

        In the same transaction a success releases those for whom it was the last one to wait for, and any other
        end of a job cancels those that end with it, and those that end with them. (So it is when an operator
        or its age ends a job.) A dependant cancelled by several jobs of the batch is reported with the first.

        A refused settle, heartbeat or note proves that the worker which claimed under this token is alive. If its lease
        is over, the store marks it `worker_survived`, under whatever token a collector holds it, and so it does with
        the `lost` rows that collectors have settled from it. A transition that names a `worker` proves nothing.
        """


class JobSource(Leasing):
    """All that the pipeline of a worker asks: jobs under a lease, whether there are new ones, and what became of a job.

    Every store is one. So is a topic of messages, which keeps nothing of a job that succeeds.
    """

    # Whether a job has no row until its first attempt has ended. If it needs one before, it ends and begins again.
    ROWS_COME_LATER: ClassVar[bool] = False

    clock: Clock

    @abstractmethod
    def change_token(self) -> int:
        """Return a number that differs after any change. Take it, look at the store, then call `wait_for_change`."""

    @abstractmethod
    async def wait_for_change(self, token: int, seconds: float) -> None:
        """Return as soon as the store has changed since `token`, or after `seconds`.

        A change is anything that a caller may wait for: new work, a finished job, an operator's action.
        Spurious wake-ups are allowed; missed ones are not.
        """

    @abstractmethod
    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]:
        """Return the jobs with these ids; None for one that is not kept."""

    @abstractmethod
    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        """The job's attempts, newest first."""


class Driver(JobSource):
    """The core that every store has. What a store may offer beyond it is in `taskharbor.drivers.capabilities`.

    A driver whose `inline` is true never suspends while `in_sync_call` is true. The synchronous surface then steps its
    coroutines in the caller's own thread, without a loop.

    A driver whose `stores_in_turn` is true may be given `AlikeJobs` that are not made yet, and has them made while it
    stores those before them. Any other is given complete ones.
    """

    inline: ClassVar[bool] = False
    stores_in_turn: ClassVar[bool] = False
    search_budget = SearchBudget()  # of each `list` and `count`

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
        waits for them; an unknown one is refused with the error of `unknown_dependency`.
        """

    # -- reads --

    async def count(
        self, where: JobFilter, *, cursor: str | None = None, limit: int = 10_000, now: int | None = None
    ) -> JobCount:
        """Count the jobs that `list` would give from this cursor on, up to `limit` and within the same budget.

        A store that can count without reading the jobs does that instead.
        """
        found = examined = 0
        while found < limit:
            page = await self.list(where, cursor=cursor, limit=min(limit - found, 1_000), now=now)
            found, examined, cursor = found + len(page.jobs), examined + page.examined, page.next_cursor
            if cursor is None or page.reached is not None:
                return JobCount(found, cursor, examined, page.reached)
        return JobCount(found, cursor, examined)

    @abstractmethod
    async def counts(self, queue: str | None = None, *, now: int | None = None) -> dict[State, int]:
        """How many jobs stand in each state, all seven of them."""

    @abstractmethod
    async def queues(self, *, now: int | None = None) -> list[QueueRecord]:
        """Every queue that holds runnable or running jobs, or is paused, by name."""

    @abstractmethod
    async def leases(self, *, now: int | None = None) -> list[LeaseRecord]: ...

    # -- operators --

    @abstractmethod
    async def operate(
        self,
        operation: Operation,
        ids: Sequence[str],
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> list[OperationResult]:
        """Do one thing to each of these jobs whose state allows it; see `taskharbor.rules.lifecycle`.

        A dependant that ended with several of them is reported with the first one, by id. Only a driver with the
        capability `Audit` is given an `action`; any other may leave the parameter out.
        """

    @abstractmethod
    async def pause(
        self, queue: str, paused: bool, *, now: int | None = None, action: Action | None = None
    ) -> None:
        """Set or lift the flag that keeps a queue from being claimed. A queue that is paused stays so as it was.

        Only a driver with the capability `Audit` is given `now` or an `action`; any other may leave them out.
        """

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
        """The jobs that `rules.filtering` says match, by id, newest first. The end is a cursor of None.

        A page is full, or holds the rest, unless `search_budget` is used up first: then `reached` says how far the
        search got, and the cursor goes on from there. A page that is not full has every match among the jobs that were
        looked at.
        """
