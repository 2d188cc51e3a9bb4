"""How the SQL stores search: which table leads to the jobs, what is left to check, and how much at a time."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from taskharbor.drivers.contract.reading import Search, SearchBudget
from taskharbor.records import JobFilter, State
from taskharbor.rules.filtering import possible_states

SLICE_MIN, SLICE_FIRST_MAX, SLICE_MAX = 500, 2_000, 20_000  # jobs that one statement looks at
READY_MANY = 50_000  # ready and scheduled jobs: more than this are not sorted for a page


class Source(StrEnum):
    """The table, or the index, that gives the jobs to look at, newest first."""

    IDS = "ids"
    WORKFLOW = "workflow"
    CORRELATION = "correlation"
    TAG = "tag"
    ENDED = "ended"
    ENDED_QUEUE = "ended_queue"
    ENDED_TASK = "ended_task"
    ENDED_GROUP = "ended_group"
    WAITING = "waiting"
    RUNNING = "running"
    READY = "ready"  # and scheduled; in another order, so that it is a scan
    JOBS = "jobs"  # all of them


_ENDED = frozenset({Source.ENDED, Source.ENDED_QUEUE, Source.ENDED_TASK, Source.ENDED_GROUP})
_HAS_JOB = frozenset({Source.JOBS, Source.WORKFLOW, Source.CORRELATION, Source.IDS})
_RUNNABLE = (State.READY, State.SCHEDULED)


class Plan(Struct, frozen=True):
    """Where to look, and which other tables the rest of the filter has to be looked up in."""

    source: Source
    ended_as: State | None = None  # the state of the source's rows, if it is `ended`
    state: State | None = None  # to check, because the source holds others as well
    reads_job: bool = False
    reads_ended: bool = False
    reads_latest: bool = False
    reads_waiting: bool = False
    reads_running: bool = False
    is_exact: bool = False  # all that the source gives matches


def plan(where: JobFilter, *, many_ready: bool) -> Plan | None:
    """Return how to search for this; None if nothing can match."""
    states = possible_states(where)
    if not states or where.ids == ():
        return None
    only = next(iter(states)) if len(states) == 1 else None
    source = _source(where, only, many_ready)
    is_ended = source in _ENDED
    is_of_state = is_ended or source in (Source.WAITING, Source.RUNNING, Source.READY)
    state = None if is_of_state else only
    checks_range = where.finished_after is not None or where.finished_before is not None
    checks_enqueued = where.enqueued_after is not None or where.enqueued_before is not None
    checks_name = where.queue is not None or where.task is not None
    return Plan(
        source=source,
        ended_as=only if is_ended else None,
        state=state,
        reads_job=source not in _HAS_JOB
        and (
            (checks_name and not is_ended)
            or checks_enqueued
            or where.correlation_id is not None
            or state in _RUNNABLE
        ),
        reads_ended=not is_ended
        and (state is not None or where.reason is not None or where.fingerprint is not None or checks_range),
        reads_latest=not is_ended
        and (state in (State.SUCCEEDED, *_RUNNABLE) or where.error is not None or checks_range),
        reads_waiting=state in (State.WAITING, *_RUNNABLE),
        reads_running=source is Source.RUNNING or state in (State.RUNNING, *_RUNNABLE),
        is_exact=_is_exact(where, source, state),
    )


def _source(where: JobFilter, only: State | None, many_ready: bool) -> Source:
    if where.ids is not None:
        return Source.IDS
    if where.workflow is not None:
        return Source.WORKFLOW
    if where.correlation_id is not None:
        return Source.CORRELATION
    if where.tag is not None:
        return Source.TAG
    match only:
        case State.DEAD | State.CANCELLED:
            if where.fingerprint is not None:
                return Source.ENDED_GROUP
            if where.task is not None:
                return Source.ENDED_TASK
            return Source.ENDED if where.queue is None else Source.ENDED_QUEUE
        case State.WAITING:
            return Source.WAITING
        case State.RUNNING:
            return Source.RUNNING
        case State.READY | State.SCHEDULED if not many_ready:
            return Source.READY
        case _:
            return Source.JOBS


_SERVES: dict[Source, frozenset[str]] = {
    Source.IDS: frozenset({"ids"}),
    Source.WORKFLOW: frozenset({"workflow"}),
    Source.CORRELATION: frozenset({"correlation_id"}),
    Source.TAG: frozenset({"tag"}),
    Source.ENDED: frozenset({"state"}),
    Source.ENDED_QUEUE: frozenset({"state", "queue"}),
    Source.ENDED_TASK: frozenset({"state", "task"}),
    Source.ENDED_GROUP: frozenset({"state", "fingerprint"}),
    Source.WAITING: frozenset({"state"}),
    Source.RUNNING: frozenset({"state"}),
    Source.READY: frozenset({"state", "queue"}),
    Source.JOBS: frozenset(),
}


def _is_exact(where: JobFilter, source: Source, state: State | None) -> bool:
    asked = {name for name in where.__struct_fields__ if getattr(where, name) is not None}
    return state is None and asked <= _SERVES[source]


class Slices(Search):
    """How many jobs each statement of a search looks at: few at first, then as many as the time allows."""

    def __init__(self, budget: SearchBudget, plan: Plan, wanted: int) -> None:
        super().__init__(budget)
        self._size = min(wanted, SLICE_MAX) if plan.is_exact else min(max(wanted, SLICE_MIN), SLICE_FIRST_MAX)

    def next_size(self) -> int:
        size, spent = self._size, self._spent
        if self.examined and spent > 0:
            left = (self._budget.seconds - spent) * self.examined / spent / 2  # the next ones may take longer
            size = min(size, max(int(left), SLICE_MIN))
        self._size = min(max(self._size * 4, SLICE_MIN), SLICE_MAX)
        return max(min(size, self._budget.jobs - self.examined), 1)
