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
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from taskharbor.clock import Clock
from taskharbor.errors import ConfigurationError
from taskharbor.job import (
    AttemptRecord,
    AttemptStatus,
    Delivery,
    JobFilter,
    JobRecord,
    MemberResult,
    NewJob,
    NewWorkflow,
    Options,
    Progress,
    QueueRecord,
    Reason,
    State,
    StepRecord,
    TokenRecord,
    WorkflowRecord,
    repr_without_secrets,
)

# -- enqueue -------------------------------------------------------------------------------------


class Enqueued(Struct, frozen=True, gc=False):
    """The job that now stands for the one given: itself, or the one that existed."""

    id: str
    existed: bool
    state: State
    run_at: int
    enqueued_at: int


class WorkflowEnqueued(Struct, frozen=True):
    """The workflow that now stands for the one given: itself, or the one that existed."""

    id: str
    existed: bool
    enqueued_at: int


# -- claim ---------------------------------------------------------------------------------------


class ClaimRequest(Struct, frozen=True):
    token: str
    lease: int  # microseconds
    limit: int
    queues: tuple[str, ...] | None = None  # None: every queue
    # At most so many at_most_once jobs: they are never claimed beyond the free slots. The claim ends
    # before the first one too many, so that the order stays strict and the search bounded.
    once_limit: int = 0
    suspects: bool = False  # claim from the suspects' place instead, to execute alone
    supervised: bool = False  # another process watches over this worker


class Claimed(Struct, frozen=True, array_like=True, gc=False):
    """A job under a lease, with what executing and settling it takes. (A store may hand it over as an array.)"""

    __repr__ = repr_without_secrets

    id: str
    task: str
    payload: str
    queue: str
    priority: int
    number: int
    attempts: int  # failures so far in this run
    first_number: int
    run_at: int  # its place, which it keeps when it is handed back
    enqueued_at: int
    due_at: int | None = None
    expires_at: int | None = None  # None once the run has begun
    delivery: Delivery | None = None
    options: str | None = None  # the JSON of `Options`; None for the defaults
    version: int = 1


class Claim(Struct, frozen=True):
    now: int  # the store's time
    expires_at: int
    jobs: list[Claimed]
    next_due: int | None = None  # when the next job ahead becomes runnable, if fewer than `limit` were
    suspects_waiting: bool = False  # somebody should execute a suspect alone
    # False: jobs may be runnable that this claim had room for and did not look for. One at `next_due` does.
    searched: bool = True


# -- heartbeat -----------------------------------------------------------------------------------


class Extension(Struct, frozen=True):
    token: str
    lease: int  # microseconds from the store's now
    running: tuple[tuple[str, int], ...] = ()  # (job id, started at) of what runs for longer than a beat
    # Jobs that only the worker's declaration knows to be at_most_once: written before they begin.
    at_most_once: tuple[str, ...] = ()


class Answer(StrEnum):
    """What became of a fenced write."""

    DONE = "done"
    NOT_RUNNING = "not_running"
    LEASE_MISMATCH = "lease_mismatch"
    LEASE_EXPIRED = "lease_expired"
    CHANGED = "changed"  # the schedule's version is another: compute the next occurrence anew


class Extended(Struct, frozen=True):
    token: str
    answer: Answer
    expires_at: int = 0
    cancel_requested: tuple[str, ...] = ()


class Heartbeat(Struct, frozen=True):
    now: int
    leases: list[Extended]
    paused: frozenset[str] = frozenset()  # the queues whose unbegun jobs are to be handed back


# -- collecting ----------------------------------------------------------------------------------


class ExpiredLease(Struct, frozen=True):
    """An expired lease, now held under the collector's token, for the policy to decide."""

    token: str
    now: int
    expires_at: int
    worker: str  # that let it expire
    alone: bool  # it held a suspect
    supervised: bool
    outlived: bool  # its worker has shown itself alive since
    jobs: list[Claimed]  # unfinished ones
    running: dict[str, int]  # job id → started at, as far as a heartbeat told
    expired_at: int


# -- settle --------------------------------------------------------------------------------------


class Occurrence(Struct, frozen=True):
    """The next occurrence of a recurring job, computed from the schedule at `version`.

    `run_at` is its place where that is not its due time: a paused one is parked, an extra run comes at once.
    """

    due_at: int
    version: int
    run_at: int | None = None


class Transition(Struct, frozen=True, gc=False):
    """The end of one attempt: what it proves, what to record, and where the job goes.

    To `READY`, the job is runnable after `delay` from the store's now, or, when `delay` is None, at once
    and in the place it had. With `occurrence`, any ending re-arms the job instead of finishing it.
    A job that somebody asked to cancel ends cancelled, whatever this says, unless it succeeded; an
    `occurrence` that came with `READY` is used only then.
    """

    token: str
    job_id: str
    number: int
    status: AttemptStatus
    to: State  # READY, SUCCEEDED, DEAD or CANCELLED
    attempts: int = 0  # failures in the run, after this attempt
    started_at: int | None = None  # None: it never began
    delay: int | None = None
    suspect: bool = False
    reason: Reason | None = None
    error: str | None = None
    traceback: str | None = None
    result: str | None = None
    detail: str | None = None
    worker: str | None = None  # whose attempt it was, when not the token's
    outlived: bool = False
    inserts: tuple[NewJob, ...] = ()  # children: they exist if and only if this is applied
    occurrence: Occurrence | None = None
    # With `occurrence`, to `DEAD`: a one-off copy of the job that is dead from the start, for `reason`, and has the
    # run's attempts for its history. It exists if and only if this is applied as it says; with any other ending, never.
    dead_letter: NewJob | None = None


class Settled(Struct, frozen=True, gc=False):
    answer: Answer
    state: State | None = None  # where the job went
    run_at: int | None = None  # when it is runnable again
    recorded: AttemptStatus | None = None  # what the attempt's row already says, if it has one
    released: tuple[str, ...] = ()  # dependants that stopped waiting
    at: int = 0  # the store's time


class ProgressNote(Struct, frozen=True):
    token: str
    job_id: str
    number: int
    progress: Progress


class StepNote(Struct, frozen=True):
    """The result of a durable step; the first one stored under a name stays."""

    token: str
    job_id: str
    number: int
    name: str
    result: str


Note = ProgressNote | StepNote


# -- operators -----------------------------------------------------------------------------------


class Cancel(Struct, frozen=True):
    """End what has not begun; ask a running one to end.

    With `occurrence`, what has not begun is not ended but re-armed; a row of history says what became of the
    occurrence that was cancelled. A job that waits for others has no occurrences: that is a conflict.
    """

    occurrence: Occurrence | None = None


class Discard(Struct, frozen=True):
    """Take a dead job out of the dead-letter queue for good."""


class Delete(Struct, frozen=True):
    """Remove the job and its history."""


class RunNow(Struct, frozen=True):
    """Make a scheduled job ready."""


class Requeue(Struct, frozen=True):
    """Begin a new run of a dead or cancelled job.

    Then those that were cancelled because of it, and that nothing else stands against, wait again, and so on.
    """

    run_at: int | None = None
    reset_attempts: bool = True


class Update(Struct, frozen=True):
    """Change what is set here, and nothing else.

    A job with an idempotency key stays in its queue. `while_running` changes a running job as well, from its
    next run on: its place and due time are then the settle's to set, which will be told that it changed.
    """

    priority: int | UnsetType = UNSET
    run_at: int | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    max_attempts: int | None | UnsetType = UNSET
    timeout: float | None | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    expires_at: int | None | UnsetType = UNSET
    task: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    delivery: Delivery | None | UnsetType = UNSET
    options: Options | UnsetType = UNSET  # all of them
    due_at: int | UnsetType = UNSET  # of one that waits for others: nothing
    at_due: bool = False  # its place is its due time, if it has one
    while_running: bool = False
    version: int | None = None  # only if this is still the job's version


# The row of history that a cancelled occurrence leaves which nobody had claimed.
OPERATOR = "operator/cancel"  # as a token
NOT_BEGUN = "cancelled before it began"

Operation = Cancel | Discard | Delete | RunNow | Requeue | Update


class Verdict(StrEnum):
    DONE = "done"
    REQUESTED = "requested"  # a running job has been asked to end
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    CHANGED = "changed"  # the job's version is another than the operation relies on


class Operated(Struct, frozen=True):
    job_id: str
    verdict: Verdict
    state: State | None = None  # before the operation; what a conflict is about


class Page(Struct, frozen=True):
    jobs: list[JobRecord]
    next_cursor: str | None


class WorkflowPage(Struct, frozen=True):
    workflows: list[WorkflowRecord]
    next_cursor: str | None


class LeaseRecord(Struct, frozen=True):
    """One lease as `stats` shows it."""

    token: str
    worker: str
    expires_at: int
    expired: bool
    open: int  # jobs not settled yet
    running: dict[str, int]


class WorkerRecord(Struct, frozen=True, omit_defaults=True):
    """A worker that is there, as it told the store itself: one that is idle holds no lease to be known by."""

    name: str
    host: str
    pid: int
    slots: int
    started_at: int
    queues: tuple[str, ...] | None = None  # None: every queue
    supervisor: str | None = None  # who looks after it
    expires_at: int = 0  # from then on it is forgotten, unless it signs on again


class Check(Struct, frozen=True):
    """One finding of `doctor`."""

    name: str
    ok: bool
    detail: str
    severe: bool = True  # not ok is a failure, and otherwise worth a word


class Driver(ABC):
    """A store. Every verb is a coroutine; see the module's rules.

    A driver whose `inline` is true never suspends when `sync_call` is active, so that the synchronous
    surface can step its coroutines in the caller's own thread, without a loop.
    """

    inline: ClassVar[bool] = False
    clock: Clock

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

        A driver for which looking everywhere is dear at the moment may do so only now and then: it says when by
        `next_due`, and that it has not by `searched`. A drain does not end before it has.
        """

    @abstractmethod
    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        """Push the expiry of live leases out, and hear what has been asked meanwhile."""

    @abstractmethod
    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> ExpiredLease | None:
        """Take over the lease that expired first, for the policy to decide; None when none has.

        Repeated with the same token, it gives the same lease again.
        """

    @abstractmethod
    async def settle(self, transitions: Sequence[Transition], *, now: int | None = None) -> list[Settled]:
        """Apply each transition that its lease and attempt number prove; refuse the others.

        Refusals, in this order: `NOT_RUNNING` (no lease covers the job), `LEASE_MISMATCH` (another lease
        or number does), `LEASE_EXPIRED`. One that already took effect under the same token, number and
        status answers `DONE` again; under another status `NOT_RUNNING`, with what is recorded.

        In the same transaction a success releases those for whom it was the last one to wait for, and any other
        end of a job cancels those that end with it, and those that end with them. (So it is when an operator
        or its age ends a job.)
        """

    @abstractmethod
    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> list[Answer]:
        """Store progress and steps, fenced as a settle is."""

    @abstractmethod
    async def outlive(self, token: str, jobs: Sequence[tuple[str, int]]) -> None:
        """A worker that was refused for expiry is alive: mark these (job, number) as outlived.

        The lease, if nobody has collected it yet, and the `lost` rows, if somebody has.
        """

    @abstractmethod
    def news(self) -> int:
        """A number that is another one once anything has changed. Take it, look at the store, then `wait`."""

    @abstractmethod
    async def wait(self, news: int, seconds: float) -> None:
        """Return once there are other news than these, at the latest after `seconds`.

        News are new work, the end of a job, an operator's doing: whatever somebody might wait for. A
        driver may have more news than there are; it never has fewer.
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
    async def results(self, ids: Sequence[str]) -> builtins.list[builtins.list[MemberResult]]:
        """For each of these jobs: what those it depends on have come to, in the order it named them."""

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

    # -- who is there --

    @abstractmethod
    async def sign_on(self, workers: Sequence[WorkerRecord], lasts: int, *, now: int | None = None) -> None:
        """Remember that these workers are there, for `lasts` microseconds; repeated now and then by each.

        Whoever has not repeated it in time is forgotten. Nothing else depends on this: it is for onlookers.
        """

    @abstractmethod
    async def sign_off(self, names: Sequence[str]) -> None:
        """Forget these workers: they have stopped."""

    @abstractmethod
    async def workers(self, *, now: int | None = None) -> list[WorkerRecord]:
        """Every worker that is there, by name."""

    # -- operators --

    @abstractmethod
    async def operate(
        self, operation: Operation, ids: Sequence[str], *, now: int | None = None
    ) -> list[Operated]:
        """Do one thing to each of these jobs whose state allows it; see `taskharbor.lifecycle`."""

    @abstractmethod
    async def pause(self, queue: str, paused: bool) -> None:
        """Set or lift the flag that keeps a queue from being claimed."""

    @abstractmethod
    async def expire(self, limit: int, *, now: int | None = None) -> builtins.list[str]:
        """Cancel at most `limit` jobs that were not begun by their `expires_at`: which, the first to expire first."""

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

    # -- tokens of the REST interface --

    @abstractmethod
    async def add_token(self, token: TokenRecord) -> None:
        """Keep a token, durably. Its id is new."""

    @abstractmethod
    async def tokens(self) -> builtins.list[TokenRecord]:
        """Every token, the oldest first."""

    @abstractmethod
    async def remove_token(self, token_id: str) -> bool:
        """Forget a token; whether there was one."""

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


def member_id(workflow_id: str, index: int) -> str:
    """The id of a workflow's job: it follows the workflow's own, so that all of them are one range."""
    return str(UUID(int=UUID(workflow_id).int + 1 + index))


def member_exists(job_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"a job has the id {job_id} already, which a job of this workflow would have; "
        "give the workflow another id, or leave it out: random ones never come so close to each other"
    )


def worker_of(token: str) -> str:
    return token.rpartition("/")[0]
