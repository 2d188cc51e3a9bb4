"""What the memory driver keeps: jobs, their places in the order, and the leases over them.

A job always stands in exactly one spot: among those that wait, in a place of the order, under a lease, or among the
endings of its state. The rules say where it goes; `Store.move` is the one way it gets there: it leaves its spot, is
changed, and enters the next one. Nothing else touches the indexes, so they cannot disagree with the jobs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from taskharbor.drivers.contract.audit import ActionRecord, PauseRecord
from taskharbor.drivers.contract.holds import HoldKind, HoldRecord
from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.drivers.contract.rollups import Figures, Rollup
from taskharbor.drivers.memory.order import Order
from taskharbor.records import AttemptRecord, Progress, Reason, State, StepRecord
from taskharbor.rules.aside import hold_label, label_of, lane_of, queue_of
from taskharbor.rules.lifecycle import LEGAL, TERMINAL
from taskharbor.rules.operating import Change, new_run
from taskharbor.rules.rollups import Key
from taskharbor.rules.settling import finished
from taskharbor.rules.standing import Standing, StoredJob, claimed

DEADLINES_SLACK = 64  # stale ones that are not worth a sweep
Placed = tuple[int, str]  # (run_at, id), or (finished_at, id) among the endings


class Attempt(Struct, gc=False):
    """A row of history, the token that wrote it (a repeated settle proves itself by it), and the result."""

    token: str
    record: AttemptRecord
    result: str | None = None
    origin: str | None = None  # of a loss that a collector settled: the token of the claim


class Lease(Struct, eq=False):
    token: str  # the collector's, once it has been collected
    claimed_as: str  # the token of the claim, which its worker knows it by
    worker: str
    expires_at: int
    alone: bool  # it was claimed from the suspects' place
    supervised: bool
    max_losses: int
    worker_survived: bool = False
    expired_at: int | None = None  # the expiry it had when it was first collected
    open: dict[str, Job] = field(default_factory=dict)  # what is not settled yet
    told_running: dict[str, int] = field(default_factory=dict)
    cancel_requested: set[str] = field(default_factory=set)

    def expired(self, now: int) -> bool:
        return now >= self.expires_at

    def running(self) -> dict[str, int]:
        """Job id → started at, of the open jobs that the last heartbeat reported."""
        return {job_id: since for job_id, since in self.told_running.items() if job_id in self.open}


class Job(Struct, eq=False):
    row: StoredJob
    # READY stands for scheduled as well: which of them it is depends on the time; see `standing_at`.
    at: Standing
    depends_on: tuple[str, ...] = ()
    unmet: frozenset[str] = frozenset()  # the dependencies that have not succeeded
    ends_with_members: bool = False
    workflow: Workflow | None = None
    begun: bool = False  # has an attempt of the current run begun, or may it have?
    lease: Lease | None = None
    progress: Progress | None = None
    steps: dict[str, StepRecord] = field(default_factory=dict)
    history: dict[int, Attempt] = field(default_factory=dict)  # by number, ascending

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def state(self) -> State:
        return self.at.state

    def standing_at(self, now: int) -> Standing:
        if self.at.state is State.READY and self.at.run_at > now:
            return replace(self.at, state=State.SCHEDULED)
        return self.at

    @property
    def lane(self) -> str:
        return lane_of(self.row.queue, self.at.aside)

    @property
    def spot(self) -> Placed:
        return (self.at.run_at, self.row.id)


class Workflow(Struct, eq=False):
    id: str
    about: str
    enqueued_at: int
    idempotency_key: str | None
    members: tuple[str, ...]


class Backlog(Struct, eq=False):
    """Jobs of one key that execute one after the other, by position."""

    holds: bool
    jobs: dict[int, str] = field(default_factory=dict)


class Places:
    """The runnable jobs of one kind (suspects or not), by lane and priority, each in the order of time.

    The lane of an ordinary job has the name of its queue; see `rules.aside` for the others.
    """

    def __init__(self) -> None:
        self._orders: dict[str, dict[int, Order[Placed]]] = defaultdict(dict)

    def add(self, job: Job) -> None:
        self._orders[job.lane].setdefault(job.row.priority, Order()).add(job.spot)

    def remove(self, job: Job) -> None:
        by_priority = self._orders[job.lane]
        order = by_priority[job.row.priority]
        order.remove(job.spot)
        if not order:  # empty ones go, so that a claim looks only where there is something
            del by_priority[job.row.priority]
            if not by_priority:
                del self._orders[job.lane]

    def queues(self) -> list[str]:
        """The queues of ordinary jobs."""
        return [lane for lane in self._orders if label_of(lane) is None]

    def lanes(self) -> Iterable[str]:
        return self._orders.keys()

    def lanes_of(self, queue: str) -> list[str]:
        return [lane for lane in self._orders if queue_of(lane) == queue]

    def orders(self, lanes: Iterable[str]) -> Iterator[tuple[int, Order[Placed]]]:
        """Every (priority, order) of these lanes."""
        for lane in lanes:
            yield from self._orders.get(lane, {}).items()


class Store:
    """All of the state, and the one way a job changes its spot. The caller holds the lock."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.ids: Order[str] = Order()
        self.keys: dict[tuple[str, str], str] = {}  # (queue, idempotency key) → id
        self.dependants: dict[str, set[str]] = defaultdict(set)  # id → those that depend on it
        self.workflows: dict[str, Workflow] = {}
        self.workflow_keys: dict[str, str] = {}
        self.leases: dict[str, Lease] = {}
        self.cancel_requests = 0  # how many there have been
        self.holds: dict[tuple[HoldKind, str], HoldRecord] = {}  # by kind and name
        self.paused: dict[str, PauseRecord] = {}  # by queue
        self.actions: dict[str, ActionRecord] = {}  # by id, the oldest first
        self.records: dict[RecordKind, dict[str, Record]] = {kind: {} for kind in RecordKind}  # by key
        self.backlogs: dict[str, Backlog] = {}  # by key
        self.backlog_of: dict[str, str] = {}  # job → key of its backlog
        self.epochs: dict[str, int] = {}  # of the partitions of logs
        self.ingested: dict[tuple[str, int], int] = {}  # (log, partition) → its next offset
        self.appended_rollups: list[Rollup] = []
        self.folded_rollups: dict[Key, Figures] = {}
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
        if job.row.idempotency_key is not None:
            self.keys[job.row.queue, job.row.idempotency_key] = job.id
        for dependency in job.depends_on:
            self.dependants[dependency].add(job.id)
        self._enter(job)

    def delete(self, job: Job) -> None:
        self._leave(job)
        del self.jobs[job.id]
        self.ids.remove(job.id)
        if job.row.idempotency_key is not None:
            del self.keys[job.row.queue, job.row.idempotency_key]
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

    def live_records(self, kind: RecordKind, now: int) -> list[Record]:
        """The records of this kind that have not expired, by key."""
        kept = (record for _, record in sorted(self.records[kind].items()))
        return [record for record in kept if record.expires_at is None or record.expires_at > now]

    def hold_labels(self) -> frozenset[str]:
        return frozenset(hold_label(kind, name) for kind, name in self.holds)

    # -- dependants that end with a job, and begin again with it --

    def cancel_dependants(self, ended: Iterable[str], now: int) -> tuple[str, ...]:
        """Cancel the dependants that end with a job that ended without success; and theirs."""
        ends = list(ended)
        cancelled: list[str] = []
        while ends:
            member = ends.pop()
            for job_id in self.dependants.get(member, ()):
                dependant = self.jobs[job_id]
                waits = dependant.state is State.WAITING and member in dependant.unmet
                if waits and dependant.ends_with_members:
                    self.move(dependant, finished(dependant.at, State.CANCELLED, Reason.DEPENDENCY, now))
                    ends.append(job_id)
                    cancelled.append(job_id)
        return tuple(sorted(cancelled))

    def cancelled_with(self, job_id: str, ended_at: int) -> set[str]:
        """Return the dependants that were cancelled when this job ended, at that time, and theirs."""
        found: set[str] = set()
        ends = [job_id]
        while ends:
            for dependant in self.dependants.get(ends.pop(), ()):
                at = self.jobs[dependant].at
                if (at.reason, at.finished_at) == (Reason.DEPENDENCY, ended_at) and dependant not in found:
                    found.add(dependant)
                    ends.append(dependant)
        return found

    def restore_dependants(self, requeued: Iterable[str], now: int) -> None:
        """Those that were cancelled because of these wait again, unless another one stands against it."""
        again = list(requeued)
        while again:
            for job_id in self.dependants.get(again.pop(), ()):
                dependant = self.jobs[job_id]
                if dependant.at.reason is Reason.DEPENDENCY and not any(
                    self.jobs[member].state in (State.DEAD, State.CANCELLED) for member in dependant.unmet
                ):
                    row, waits = dependant.row, bool(dependant.unmet)
                    self.begin_new_run(dependant, new_run(row, dependant.at, row.run_at, now, waits=waits))
                    again.append(job_id)

    def _forget_dependant(self, dependency: str, dependant: str) -> None:
        dependants = self.dependants.get(dependency)
        if dependants is not None:
            dependants.discard(dependant)
            if not dependants:
                del self.dependants[dependency]

    # -- changing spots --

    def move(self, job: Job, to: Standing, row: StoredJob | None = None) -> None:
        """Put a job where it stands from now on, with its row as it is from now on."""
        assert _kind(to) is job.state or to.state in LEGAL[job.state], f"{job.state} → {to.state}"
        self._leave(job)
        job.at = to
        job.row = row or job.row
        self._enter(job)

    def begin_new_run(self, job: Job, change: Change) -> None:
        self.move(job, change.to, change.job)
        job.begun = False
        job.progress = None

    def rearm(self, job: Job, to: Standing) -> None:
        """Nothing of the run before is left but its history."""
        self.move(job, to)
        job.begun = False
        job.progress = None
        job.steps.clear()

    def change_running(self, job: Job, row: StoredJob) -> None:
        """The job stays under its lease; its next run takes the changes."""
        self.tally[job.row.queue][State.RUNNING] -= 1
        job.row = row
        self.tally[row.queue][State.RUNNING] += 1

    def lease_out(self, job: Job, lease: Lease) -> None:
        self.move(job, claimed(job.at))
        job.lease = lease
        lease.open[job.id] = job

    def _leave(self, job: Job) -> None:
        at = job.at
        self.tally[job.row.queue][at.state] -= 1
        if must_begin(job):
            self._awaited -= 1
            self._sweep_deadlines()
        if at.state is State.READY:
            self.places(at.suspect).remove(job)
        elif at.state is State.RUNNING:
            self._close(job)
        elif at.finished_at is not None:
            self.endings[at.state].remove((at.finished_at, job.id))

    def _enter(self, job: Job) -> None:
        if job.at.state is State.SCHEDULED:
            job.at = replace(job.at, state=State.READY)
        at = job.at
        self.tally[job.row.queue][at.state] += 1
        if at.state is State.READY:
            self.places(at.suspect).add(job)
        elif at.finished_at is not None:
            self.endings[at.state].add((at.finished_at, job.id))
        if must_begin(job):
            assert at.begin_by is not None
            self._awaited += 1
            heapq.heappush(self.deadlines, (at.begin_by, job.id))
            self._sweep_deadlines()

    def _sweep_deadlines(self) -> None:
        if len(self.deadlines) <= 2 * self._awaited + DEADLINES_SLACK:
            return
        self.deadlines = [
            (begin_by, job_id)
            for begin_by, job_id in set(self.deadlines)
            if (job := self.jobs.get(job_id)) is not None and job.at.begin_by == begin_by and must_begin(job)
        ]
        heapq.heapify(self.deadlines)

    def _close(self, job: Job) -> None:
        """Strike a job out of its lease; a lease disappears with the last of its jobs."""
        lease = job.lease
        assert lease is not None
        job.lease = None
        del lease.open[job.id]
        lease.cancel_requested.discard(job.id)
        if not lease.open:
            del self.leases[lease.token]


def _kind(at: Standing) -> State:
    return State.READY if at.state is State.SCHEDULED else at.state


def must_begin(job: Job) -> bool:
    """Whether the job is cancelled if no worker begins it in time."""
    return job.at.begin_by is not None and job.state in (State.READY, State.WAITING)
