"""What the memory driver keeps: jobs, their places in the order, and the leases over them.

A job always stands in exactly one spot: among those that wait, in a place of the order, under a lease, or
among the endings of its state. Every change of spot is the same three steps: it leaves where it stands, is
changed, and enters where it goes. Nothing else touches the indexes, so they cannot disagree with the jobs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from taskharbor.drivers.base import WorkerRecord
from taskharbor.drivers.memory.order import Order
from taskharbor.job import (
    NO_OPTIONS,
    AttemptRecord,
    Delivery,
    Options,
    Progress,
    Reason,
    State,
    StepRecord,
    TokenRecord,
)
from taskharbor.lifecycle import LEGAL, TERMINAL

DEADLINES_SLACK = 64  # stale ones that are not worth a sweep
Placed = tuple[int, str]  # (run_at, id), or (finished_at, id) among the endings


class Attempt(Struct, gc=False):
    """A row of history, and the token that wrote it: a repeated settle proves itself by it."""

    token: str
    record: AttemptRecord


class Lease(Struct, eq=False):
    token: str  # the collector's, once it has been collected
    claimed_as: str  # the token of the claim, which its worker knows it by
    worker: str
    expires_at: int
    alone: bool  # it was claimed from the suspects' place
    supervised: bool
    outlived: bool = False
    expired_at: int | None = None  # the expiry it had when it was first collected
    open: dict[str, Job] = field(default_factory=dict)  # what is not settled yet
    told_running: dict[str, int] = field(default_factory=dict)
    cancel_requested: set[str] = field(default_factory=set)

    def expired(self, now: int) -> bool:
        return now >= self.expires_at

    def running(self) -> dict[str, int]:
        """Job id → started at, of the open jobs that the last heartbeat told of."""
        return {job_id: since for job_id, since in self.told_running.items() if job_id in self.open}


class Job(Struct, eq=False):
    id: str
    task: str
    payload: str
    queue: str
    priority: int
    enqueued_at: int
    run_at: int  # as an enqueue or an operator said; where it goes when it stops waiting
    place: int  # its place in the order now: run_at, or a retry time, or the next occurrence
    # READY stands for scheduled as well: which of them it is depends on the time; see `state_at`.
    state: State = State.READY
    expires_at: int | None = None  # as an enqueue or an operator said
    begin_by: int | None = None  # expires_at for as long as the current run has not begun
    idempotency_key: str | None = None
    delivery: Delivery | None = None
    options: Options = NO_OPTIONS
    options_json: str | None = None
    depends_on: tuple[str, ...] = ()
    unmet: frozenset[str] = frozenset()  # the dependencies that have not succeeded
    ends_with_members: bool = False
    workflow: Workflow | None = None
    version: int = 1
    attempts: int = 0
    number: int = 0
    first_number: int = 1  # of the current run
    begun: bool = False  # has an attempt of the current run begun, or may it have?
    suspect: bool = False
    due_at: int | None = None
    lease: Lease | None = None
    reason: Reason | None = None
    finished_at: int | None = None
    result: str | None = None
    progress: Progress | None = None
    steps: dict[str, StepRecord] = field(default_factory=dict)
    history: dict[int, Attempt] = field(default_factory=dict)  # by number, ascending

    def state_at(self, now: int) -> State:
        return State.SCHEDULED if self.state is State.READY and self.place > now else self.state

    @property
    def spot(self) -> Placed:
        return (self.place, self.id)

    @property
    def shown_run_at(self) -> int:
        """When it is next to run; of a terminal one, when it was to."""
        return self.run_at if self.state in TERMINAL else self.place


class Workflow(Struct, eq=False):
    id: str
    about: str
    enqueued_at: int
    idempotency_key: str | None
    members: tuple[str, ...]


class Places:
    """The runnable jobs of one kind (suspects or not), by queue and priority, each in the order of time."""

    def __init__(self) -> None:
        self._orders: dict[str, dict[int, Order[Placed]]] = defaultdict(dict)

    def add(self, job: Job) -> None:
        self._orders[job.queue].setdefault(job.priority, Order()).add(job.spot)

    def remove(self, job: Job) -> None:
        by_priority = self._orders[job.queue]
        order = by_priority[job.priority]
        order.remove(job.spot)
        if not order:  # empty ones go, so that a claim looks only where there is something
            del by_priority[job.priority]
            if not by_priority:
                del self._orders[job.queue]

    def queues(self) -> Iterable[str]:
        return self._orders.keys()

    def orders(self, queues: Iterable[str]) -> Iterator[tuple[int, Order[Placed]]]:
        """Every (priority, order) of these queues."""
        for queue in queues:
            yield from self._orders.get(queue, {}).items()


class Store:
    """All of the state, and the one way a job changes its spot. Whoever calls holds the lock."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.ids: Order[str] = Order()
        self.keys: dict[tuple[str, str], str] = {}  # (queue, idempotency key) → id
        self.dependants: dict[str, set[str]] = defaultdict(set)  # id → those that depend on it
        self.workflows: dict[str, Workflow] = {}
        self.workflow_keys: dict[str, str] = {}
        self.leases: dict[str, Lease] = {}
        self.cancel_requests = 0  # how many there have been
        self.paused: set[str] = set()
        self.tokens: dict[str, TokenRecord] = {}
        self.workers: dict[str, WorkerRecord] = {}  # who is there, by name
        self.ordinary = Places()
        self.suspects = Places()
        self.endings: dict[State, Order[Placed]] = {state: Order() for state in TERMINAL}
        # A heap of (begin_by, id). An entry is not taken out when its job moves on; it is checked against
        # the job when its time has come, and swept out when most of them are so.
        self.deadlines: list[Placed] = []
        self._awaited = 0  # how many jobs must begin by some time
        self.tally: dict[str, dict[State, int]] = defaultdict(lambda: dict.fromkeys(State, 0))

    def places(self, suspects: bool) -> Places:
        return self.suspects if suspects else self.ordinary

    # -- being kept --

    def add(self, job: Job) -> None:
        self.jobs[job.id] = job
        self.ids.add(job.id)
        if job.idempotency_key is not None:
            self.keys[job.queue, job.idempotency_key] = job.id
        for dependency in job.depends_on:
            self.dependants[dependency].add(job.id)
        self.enter(job, job.state if job.state in TERMINAL else runnable_or_waiting(job))

    def delete(self, job: Job) -> None:
        self.leave(job)
        del self.jobs[job.id]
        self.ids.remove(job.id)
        if job.idempotency_key is not None:
            del self.keys[job.queue, job.idempotency_key]
        for dependency in set(job.depends_on):
            self._forget_dependant(dependency, job.id)
        # Those that depended on it are terminal. Should one of them be requeued, it cannot wait for a
        # job that no longer exists.
        for dependant in self.dependants.pop(job.id, ()):
            self.jobs[dependant].unmet -= {job.id}

    def is_needed(self, job: Job) -> bool:
        """Does an unfinished job depend on this one?"""
        dependants = self.dependants.get(job.id, ())
        return any(self.jobs[dependant].state not in TERMINAL for dependant in dependants)

    def members(self, workflow: Workflow) -> Iterator[Job]:
        """Those of its jobs that are still kept."""
        return (self.jobs[job_id] for job_id in workflow.members if job_id in self.jobs)

    # -- dependants that end with a job, and begin again with it --

    def cancel_dependants(self, ended: Iterable[str], now: int) -> tuple[str, ...]:
        """Whoever waits for one that ended without success and ends with it; and so on."""
        ends = list(ended)
        cancelled: list[str] = []
        while ends:
            member = ends.pop()
            for job_id in self.dependants.get(member, ()):
                dependant = self.jobs[job_id]
                waits = dependant.state is State.WAITING and member in dependant.unmet
                if waits and dependant.ends_with_members:
                    self.finish(dependant, State.CANCELLED, Reason.DEPENDENCY, now)
                    ends.append(job_id)
                    cancelled.append(job_id)
        return tuple(sorted(cancelled))

    def restore_dependants(self, requeued: Iterable[str], now: int) -> None:
        """Those that were cancelled because of these wait again, unless another one stands against it."""
        again = list(requeued)
        while again:
            for job_id in self.dependants.get(again.pop(), ()):
                dependant = self.jobs[job_id]
                if dependant.reason is Reason.DEPENDENCY and not any(
                    self.jobs[member].state in (State.DEAD, State.CANCELLED) for member in dependant.unmet
                ):
                    self.leave(dependant)
                    begin_new_run(dependant, dependant.run_at, now)
                    self.place_again(dependant)
                    again.append(job_id)

    def _forget_dependant(self, dependency: str, dependant: str) -> None:
        dependants = self.dependants.get(dependency)
        if dependants is not None:
            dependants.discard(dependant)
            if not dependants:
                del self.dependants[dependency]

    # -- changing spots --

    def leave(self, job: Job) -> None:
        self.tally[job.queue][job.state] -= 1
        if must_begin(job):
            self._awaited -= 1
            self._sweep_deadlines()
        if job.state is State.READY:
            self.places(job.suspect).remove(job)
        elif job.state is State.RUNNING:
            self._close(job)
        elif job.state in TERMINAL:
            assert job.finished_at is not None
            self.endings[job.state].remove((job.finished_at, job.id))

    def enter(self, job: Job, state: State) -> None:
        assert state is job.state or state in LEGAL[job.state], f"{job.state} → {state}"
        job.state = state
        self.tally[job.queue][state] += 1
        if state is State.READY:
            self.places(job.suspect).add(job)
        elif state in TERMINAL:
            assert job.finished_at is not None
            self.endings[state].add((job.finished_at, job.id))
        if must_begin(job):
            assert job.begin_by is not None
            self._awaited += 1
            heapq.heappush(self.deadlines, (job.begin_by, job.id))
            self._sweep_deadlines()

    def _sweep_deadlines(self) -> None:
        if len(self.deadlines) <= 2 * self._awaited + DEADLINES_SLACK:
            return
        self.deadlines = [
            (begin_by, job_id)
            for begin_by, job_id in set(self.deadlines)
            if (job := self.jobs.get(job_id)) is not None and job.begin_by == begin_by and must_begin(job)
        ]
        heapq.heapify(self.deadlines)

    def place_again(self, job: Job) -> None:
        """After a change to a job that is not running: into its place, or among those that wait."""
        self.enter(job, runnable_or_waiting(job))

    def finish(self, job: Job, state: State, reason: Reason | None, now: int) -> None:
        self.leave(job)
        job.reason = reason
        job.finished_at = now
        job.due_at = None
        job.suspect = False
        self.enter(job, state)

    def lease_out(self, job: Job, lease: Lease) -> None:
        self.leave(job)
        job.number += 1
        job.lease = lease
        lease.open[job.id] = job
        self.enter(job, State.RUNNING)

    def _close(self, job: Job) -> None:
        """Strike a job out of its lease; a lease disappears with the last of its jobs."""
        lease = job.lease
        assert lease is not None
        job.lease = None
        del lease.open[job.id]
        lease.cancel_requested.discard(job.id)
        if not lease.open:
            del self.leases[lease.token]


def begin_new_run(job: Job, run_at: int, now: int, *, reset_attempts: bool = True) -> None:
    """History, steps and the attempt number go on; everything else of the old run is over."""
    job.run_at = job.place = run_at
    job.first_number = job.number + 1
    if reset_attempts:
        job.attempts = 0
    if job.expires_at is not None and job.expires_at <= now:
        job.expires_at = None
    job.begun = False
    job.begin_by = job.expires_at
    job.reason = None
    job.finished_at = None
    job.progress = None


def must_begin(job: Job) -> bool:
    """Whether it is to be cancelled if nobody begins it in time."""
    return job.begin_by is not None and job.state in (State.READY, State.WAITING)


def runnable_or_waiting(job: Job) -> State:
    return State.WAITING if job.unmet else State.READY
