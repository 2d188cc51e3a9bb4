"""Leases: claiming a batch, extending it, and taking over what has expired."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from taskharbor.records import Delivery, repr_without_secrets

# Of payloads, options and meta that one claim hands out. At 1 MB/s it arrives within a few seconds, well inside a
# lease.
CLAIM_BYTES = 4 * 1_048_576
DEFAULT_MAX_LOSSES = 5


class SettleAnswer(StrEnum):
    """What became of a fenced write."""

    DONE = "done"
    NOT_RUNNING = "not_running"
    LEASE_MISMATCH = "lease_mismatch"
    LEASE_EXPIRED = "lease_expired"
    CHANGED = "changed"  # the schedule's version is another: look again whether it recurs, and when
    # Nothing was done: a producer's open transaction is storing the key of a child. Settle it again in a moment.
    LATER = "later"


class ClaimRequest(Struct, frozen=True):
    token: str
    lease: int  # microseconds
    limit: int
    queues: tuple[str, ...] | None = None  # None: every queue
    # The most at_most_once jobs to claim: they are never claimed beyond the free slots. The claim ends
    # before the first one too many, so that the order stays strict and the search bounded.
    once_limit: int = 0
    suspects: bool = False  # claim from the suspects' place instead, to execute alone
    supervised: bool = False  # another process watches over this worker
    # The bytes of payloads, options and meta at most, but always one job if there is one. The claim ends before the
    # first job too large, for the same reason.
    bytes_limit: int = CLAIM_BYTES
    # With which loss while alone a job is poison. The store keeps it with the lease, so that every process that
    # settles a loss uses the setting of the worker that claimed the job.
    max_losses: int = DEFAULT_MAX_LOSSES
    # Labels of places aside to look into as well, each in every queue that is served; see `rules.aside`. The label of a
    # hold that is in force is looked into by no claim.
    aside: tuple[str, ...] = ()
    # Those of them whose jobs this worker knows: at most `limit` jobs there whose time is ahead are due from now on.
    recall: tuple[str, ...] = ()


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
    meta: str | None = None  # as stored; see `rules.meta.read_meta`


class Claim(Struct, frozen=True):
    now: int  # the store's time
    expires_at: int
    jobs: list[Claimed]
    # When the next job ahead becomes runnable, if neither limit was reached.
    next_due: int | None = None
    suspects_waiting: bool = False  # a worker should execute a suspect alone
    # False: jobs may be runnable that this claim had room for and did not look for. One at `next_due` does.
    searched: bool = True
    more: bool = False  # it ended at `bytes_limit`: there is more to claim at once
    unreadable: tuple[str, ...] = ()  # jobs that were to be claimed and could not be read: dead now
    max_losses: int = (
        DEFAULT_MAX_LOSSES  # of the lease: a repeated claim answers what the first one asked for
    )
    # The labels under which jobs stood aside in the queues that are served when the claim began, by name, without those
    # of holds in force. At most `LABELS_MAX` of them; a repeated claim need not name any.
    aside: tuple[str, ...] = ()
    holds: frozenset[str] = frozenset()  # the labels of the holds in force


class Extension(Struct, frozen=True):
    token: str
    lease: int  # microseconds from the store's now
    running: tuple[tuple[str, int], ...] = ()  # (job id, started at) of what runs for longer than a beat
    # Jobs that only the worker's declaration knows to be at_most_once: written before they begin.
    at_most_once: tuple[str, ...] = ()


class Extended(Struct, frozen=True):
    token: str
    answer: SettleAnswer
    expires_at: int = 0
    cancel_requested: tuple[str, ...] = ()


class Heartbeat(Struct, frozen=True):
    now: int
    leases: list[Extended]
    paused: frozenset[str] = frozenset()  # the queues whose unbegun jobs are to be handed back
    holds: frozenset[str] = frozenset()  # the labels of the holds whose unbegun jobs are to be put aside


class CancelRequests(Struct, frozen=True):
    """What a look between two heartbeats found."""

    mark: int  # to be given to the next look; the driver alone knows what it means
    jobs: dict[str, tuple[str, ...]] = {}  # token → ids of the unsettled jobs that were asked to end


class ExpiredLease(Struct, frozen=True):
    """An expired lease, now held under the collector's token, for the policy to decide."""

    token: str
    now: int
    expires_at: int
    worker: str  # that let it expire
    alone: bool  # it held a suspect
    supervised: bool
    worker_survived: bool  # its worker has asked for something since: it is alive
    jobs: list[Claimed]  # unfinished ones
    running: dict[str, int]  # job id → started at, as far as a heartbeat told
    expired_at: int
    max_losses: int  # as its worker claimed it


class Outlook(Struct, frozen=True):
    """What the latest `take_expired` saw besides: a worker looks less often where there is nothing to do."""

    leases: bool = True  # there is a lease, which may expire
    late: bool = True  # `catch_up` may find something to do
    backlogs: bool = True  # `advance` may find something to do


def worker_of(token: str) -> str:
    return token.rpartition("/")[0]
