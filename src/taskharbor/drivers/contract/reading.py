"""What onlookers read: pages of jobs and workflows, leases, workers, findings."""

from __future__ import annotations

from msgspec import Struct

from taskharbor.records import JobRecord, WorkflowRecord


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
