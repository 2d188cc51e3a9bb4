"""What onlookers read: pages of jobs and workflows, leases, workers, findings."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.records import JobRecord, WorkflowRecord

PRESENCE_LASTS = 50 * MICROS_PER_SECOND  # a worker's record; it signs on again after 15 s at most


class Page(Struct, frozen=True):
    """Jobs, newest first. A search without an index ends with its `SearchBudget`, and says how far it got."""

    jobs: list[JobRecord]
    next_cursor: str | None
    examined: int = 0  # jobs that were looked at for it
    reached: int | None = None  # when the last of them was enqueued; None: it saw all that it had to


class JobCount(Struct, frozen=True):
    """How many jobs match, as far as they were looked at; with a cursor, there may be more."""

    jobs: int
    next_cursor: str | None
    examined: int = 0
    reached: int | None = None


class SearchBudget(Struct, frozen=True):
    """How many jobs one search looks at, and for how long: whichever ends first."""

    jobs: int = 100_000
    seconds: float = 0.1
    clock: Callable[[], float] = time.monotonic


class Search:
    """One search within its budget: how many jobs it has looked at, and whether it is to end."""

    def __init__(self, budget: SearchBudget) -> None:
        self.examined = 0
        self._budget = budget
        self._began = budget.clock()

    @property
    def is_over(self) -> bool:
        return self.examined >= self._budget.jobs or self._spent >= self._budget.seconds

    @property
    def _spent(self) -> float:
        return self._budget.clock() - self._began


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


class StreamPartition(Struct, frozen=True, omit_defaults=True):
    """A partition that a stream worker has, as the worker sees it."""

    partition: int
    committed: int | None  # the offset that the group has committed; None: none yet
    position: int  # the offset of the next message to read
    end: int | None = None  # the offset of the next message that a producer writes; None: not known yet
    incomplete: int = 0  # messages that were read and are not finished
    ahead: int = 0  # messages that are finished beyond the committed offset
    paused: bool = False  # it reads no more for now

    @property
    def lag(self) -> int | None:
        """How many messages the group has still to commit; None if that is not known."""
        return None if self.end is None else max(0, self.end - (self.committed or 0))


class StreamPresence(Struct, frozen=True, omit_defaults=True):
    """What a stream worker reads, as part of its record."""

    topic: str
    group: str
    partitions: tuple[StreamPartition, ...] = ()
    retries: str | None = None  # where failed messages are retried; None: a version that does not say it


class WorkerVitals(Struct, frozen=True):
    """How the process of a worker did when it last said so."""

    memory_mib: int
    lag_ms: int  # the longest that its event loop ran late since it said so before


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
    tasks: tuple[str, ...] | None = None  # that it knows, with their aliases; None: it may know any
    stream: StreamPresence | None = None  # if it reads a topic
    lease: int | None = None  # of its claims, in microseconds: it extends them after each third of it
    version: str | None = None  # of its application
    vitals: WorkerVitals | None = None


class Check(Struct, frozen=True):
    """One finding of `doctor`."""

    name: str
    ok: bool
    detail: str
    severe: bool = True  # not ok is a failure, and otherwise worth a word
