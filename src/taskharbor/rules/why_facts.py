"""What `taskharbor.rules.why` goes by, and what it answers: the facts of a job, the reasons, the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from taskharbor.drivers.base import WorkerRecord
from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.records import AttemptRecord, JobRecord, Reason, State

BEFORE_MAX = 10_000  # jobs before it that are counted; beyond, there are "more than" these
WAITS_MAX = 1_000  # the same for the jobs that it waits for


class WhyCode(StrEnum):
    """The reasons, in the order in which they are checked."""

    FINISHED = "finished"
    LEASE_EXPIRED = "lease_expired"
    WORKER_GONE = "worker_gone"
    CANCEL_REQUESTED = "cancel_requested"
    RUNNING = "running"
    CLAIMED = "claimed"
    SCHEDULE_PAUSED = "schedule_paused"
    WAITS_FOR_JOBS = "waits_for_jobs"
    RETRY = "retry"
    ASLEEP = "asleep"
    PUT_BACK = "put_back"
    NOT_DUE = "not_due"
    QUEUE_PAUSED = "queue_paused"
    HELD = "held"
    NO_WORKER = "no_worker"
    UNKNOWN_TASK = "unknown_task"
    SUSPECT = "suspect"
    SLOTS_BUSY = "slots_busy"
    IN_LINE = "in_line"


class AwaitedJob(Struct, frozen=True):
    """A job that another one waits for."""

    id: str
    task: str | None  # None: it was deleted meanwhile
    state: State | None


class WhyFacts(Struct, frozen=True, kw_only=True):
    """The facts behind a reason, as of `at`. What does not bear on it is None."""

    at: datetime  # the store's time
    state: State
    queue: str
    task: str
    reason: Reason | None = None  # why it is finished, or was put back
    error: str | None = None
    attempts: int | None = None  # failures in its run
    max_attempts: int | None = None  # as far as its own options or a known declaration say
    finished_at: datetime | None = None
    until: datetime | None = None  # when this reason ends by itself
    since: datetime | None = None  # since when it runs, or is paused or held
    by: str | None = None  # who paused or held it
    dead_at: datetime | None = None  # when a job that is put back would be dead
    worker: str | None = None  # that holds it
    schedule: str | None = None
    held_task: str | None = None
    held_tag: str | None = None
    waits_for: list[AwaitedJob] | None = (
        None  # the first ones, those that ended without success before the others
    )
    waits_for_count: int | None = None  # at most 1,001, which means more than 1,000
    workers: int | None = None  # that serve it
    slots: int | None = None  # of these workers
    claimed: int | None = None  # jobs that they hold: claimed and not settled
    running: int | None = None  # jobs of these that they have reported as running
    before: int | None = None  # jobs before it in the line: at most 10,001, which means more than 10,000
    per_second: float | None = None  # jobs that began, by the roll-ups of the last minutes
    seconds: float | None = None  # until it begins, at that rate
    records_age_seconds: float | None = (
        None  # seconds since the oldest of the workers' records that this rests on
    )


class Why(Struct, frozen=True):
    """Why a job does not run, or does. `str()` gives the sentence."""

    code: WhyCode
    sentence: str
    facts: WhyFacts

    def __str__(self) -> str:
        return self.sentence


class Stop(Struct, frozen=True):
    """A flag that keeps jobs from being claimed: a paused queue, or a task or tag that is held."""

    name: str
    by: str | None = None
    since: int | None = None
    is_tag: bool = False


class Facts(Struct, frozen=True, kw_only=True):
    """What `explain` knows of a job. A reader leaves out what cannot matter in the state of the job."""

    job: JobRecord
    now: int
    store: str = ""  # what a line to copy ends with, so that it acts on this store
    history: Sequence[AttemptRecord] = ()  # newest first
    max_attempts: int | None = None
    waits_for: Sequence[AwaitedJob] = ()  # the first ones
    waits_for_count: int = 0  # at most WAITS_MAX + 1
    is_in_backlog: bool = False  # what it waits for is the message before it of its key
    pause: Stop | None = None  # of its queue
    hold: Stop | None = None  # of its task or one of its tags
    workers: Sequence[WorkerRecord] | None = None  # all that have signed on; None: the store keeps no records
    loads: Mapping[str, WorkerLoad] = {}  # by the worker's name
    begun_at: int | None = None  # as far as a heartbeat has said
    before: int | None = None  # at most BEFORE_MAX + 1; None: not known
    per_second: float | None = None

    @property
    def serving(self) -> list[WorkerRecord]:
        """The workers that serve its queue."""
        return [each for each in self.workers or () if each.queues is None or self.job.queue in each.queues]

    @property
    def holder(self) -> WorkerRecord | None:
        """The worker that holds it, if it has signed on."""
        return next((each for each in self.workers or () if each.name == self.job.worker), None)
