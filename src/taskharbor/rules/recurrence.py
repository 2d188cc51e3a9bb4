"""Recurring jobs: which occurrence follows the end of a run. Pure functions, as all of the policy is.

Every transition of a recurring job carries its next occurrence, also one that only puts the job back: an operator may
have asked to cancel it, and the version that comes with the occurrence tells whether the schedule has been changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import MICROS_PER_SECOND, from_micros
from taskharbor.drivers.base import Claimed, Occurrence, SettleResult, Transition
from taskharbor.errors import ConfigurationError
from taskharbor.records import (
    NO_OPTIONS,
    SCHEDULE_TAG,
    AttemptRecord,
    AttemptStatus,
    JobRecord,
    Misfire,
    NewJob,
    Options,
    Recurrence,
    State,
)
from taskharbor.rules.standing import PARKED_AT
from taskharbor.schedule import parse

# Begins the `detail` of an attempt that failed or fell asleep in an extra run.
RUN_NOW = "run now"
LATER = 60 * MICROS_PER_SECOND  # for what cannot be computed here: another worker may be able to
DELETED = "its schedule was deleted while it ran"

# What puts a job back in another place than it had, so that the place no longer tells that its run was asked for.
_PLACED_ANEW = (AttemptStatus.FAILED, AttemptStatus.TIMED_OUT, AttemptStatus.SLEPT)

_decode_options = msgspec.json.Decoder(Options).decode


class Run(Struct, frozen=True):
    """What bears on the next occurrence: which one this run was for, and since when it has been under way."""

    due_at: int
    began_at: int | None = None
    is_extra: bool = False  # an operator asked for it, so that it consumes no occurrence

    @classmethod
    def of(cls, job: Claimed, started_at: int | None, rows: Sequence[AttemptRecord]) -> Run:
        """From its latest attempt and the rows of the ones before; those of earlier runs do not count."""
        earlier = [row for row in rows if row.number >= job.first_number]
        begins = [begin for begin in (started_at, *(row.started_at for row in earlier)) if begin is not None]
        due_at = job.run_at if job.due_at is None else job.due_at
        # An ordinary run has its place at its due time, and a retry has it later. One that was placed earlier was
        # asked for; so was one that a retry has placed later since.
        is_extra = job.run_at < due_at or any(
            (row.detail or "").startswith(RUN_NOW) or row.finished_at < due_at for row in earlier
        )
        return cls(due_at, min(begins, default=None), is_extra)


def decoded_options(job: Claimed) -> Options | None:
    """A claimed job's options; None where a newer version wrote what cannot be read here."""
    try:
        return NO_OPTIONS if job.options is None else _decode_options(job.options)
    except msgspec.DecodeError:
        return None


def next_due(recurrence: Recurrence, run: Run, now: int) -> int:
    """When it is due after this run, seen at the store's time `now`."""
    try:
        schedule = parse(recurrence.schedule, recurrence.timezone)
        if run.is_extra and (run.due_at > now or recurrence.misfire is Misfire.SKIP):
            # As if it had not been: the worker that claims a due occurrence drops it if it is too late by then.
            return run.due_at
        if recurrence.misfire is Misfire.RUN_ONCE:
            # What was due before this run began, it has made up for; what came due since was missed.
            begun = run.due_at - 1 if run.is_extra else max(run.due_at, run.began_at or run.due_at)
            missed = schedule.latest_micros(begun, now, run.due_at) if now > begun else None
            if missed is not None:
                return missed
        return schedule.next_micros(max(run.due_at, now), run.due_at)
    except ConfigurationError:  # a newer version, or a machine with more time zones, wrote it
        return max(run.due_at, now) + LATER


def armed(
    transition: Transition,
    job: Claimed,
    options: Options,
    version: int,
    *,
    now: int,
    rows: Sequence[AttemptRecord] = (),
    copy_id: str | None = None,
) -> Transition:
    """The same ending with the occurrence that follows it, for a job whose options say that it recurs.

    One that does so no longer ends, unless it was made a schedule again.
    """
    recurrence = options.recurrence
    if recurrence is None:
        return replace(transition, version=version)
    run = Run.of(job, transition.started_at, rows)
    if run.is_extra and version != job.version and _has_other_times(job, recurrence):
        due_at = next_due(recurrence, Run(now), now)  # the occurrence that it leaves alone is none any more
    else:
        due_at = next_due(recurrence, run, now)
    run_at = None
    if recurrence.paused:
        run_at = PARKED_AT
    elif recurrence.again_after >= job.first_number:
        run_at = min(now, due_at - 1)  # before it is due: that makes it an extra run
    transition = replace(transition, occurrence=Occurrence(due_at, version, run_at))
    if transition.to is State.READY:
        if run.is_extra and transition.status in _PLACED_ANEW:
            detail = RUN_NOW if transition.detail is None else f"{RUN_NOW}, {transition.detail}"
            transition = replace(transition, detail=detail)
        return replace(transition, delay=PARKED_AT - now) if recurrence.paused else transition
    if transition.to is State.DEAD and recurrence.dead_letter and copy_id is not None:
        return replace(transition, dead_letter=_copy(job, options, copy_id))
    return transition


def _has_other_times(job: Claimed, recurrence: Recurrence) -> bool:
    """Whether the schedule is due by another rule than when the job was claimed."""
    options = decoded_options(job)
    former = None if options is None else options.recurrence
    return former is None or (former.schedule, former.timezone) != (recurrence.schedule, recurrence.timezone)


def armed_blindly(transition: Transition, job: Claimed, version: int, now: int) -> Transition:
    """For one whose options only a newer version can read: a little later, when that one may have its turn."""
    due_at = max(now, job.due_at or now) + LATER
    return replace(transition, occurrence=Occurrence(due_at, version))


def _copy(job: Claimed, options: Options, copy_id: str) -> NewJob:
    """A one-off job that is like an occurrence of this one."""
    tags = tuple(tag for tag in options.tags if tag != SCHEDULE_TAG)
    one_off = replace(options, recurrence=None, tags=tags)
    return NewJob(
        copy_id, job.task, job.payload, job.queue, job.priority, delivery=job.delivery, options=one_off, meta=job.meta
    )  # fmt: skip


def is_missed(job: Claimed, recurrence: Recurrence, now: int) -> bool:
    """Whether this occurrence is to be dropped: not begun, and later than its grace."""
    if (
        recurrence.misfire is not Misfire.SKIP
        or job.due_at is None
        or job.run_at < job.due_at
        or job.attempts
    ):
        return False
    return now - job.due_at > recurrence.misfire_grace * MICROS_PER_SECOND


def has_begun(job: Claimed, rows: Sequence[AttemptRecord]) -> bool:
    """Whether an earlier attempt of this run began, or may have."""
    return any(
        row.number >= job.first_number and (row.started_at is not None or row.status is AttemptStatus.LOST)
        for row in rows
    )


def after_cancelling(record: JobRecord, now: int) -> Occurrence:
    """The occurrence that follows one that was cancelled before it began."""
    recurrence = record.options.recurrence
    assert recurrence is not None, "only a recurring job has occurrences"
    due_at = record.due_at if record.due_at is not None else record.run_at
    is_extra = record.run_at < due_at
    if not is_extra:
        skipping = replace(recurrence, misfire=Misfire.SKIP)  # what was cancelled is not made up for
        due_at = next_due(skipping, Run(due_at), now)
    return Occurrence(due_at, record.version, PARKED_AT if recurrence.paused else None)


# -- telling of it -------------------------------------------------------------------------------


def was_rearmed(transition: Transition, settled: SettleResult) -> bool:
    """Whether this ended an occurrence. One that was put back has ended it if a caller had asked to cancel it."""
    next_one = transition.occurrence
    if next_one is None or settled.run_at is None:
        return False
    return transition.to is not State.READY or settled.run_at == (next_one.run_at or next_one.due_at)


def next_run(transition: Transition) -> dict[str, str]:
    """For a log line: when the next occurrence is due."""
    if transition.occurrence is None:
        return {}
    due_at = from_micros(transition.occurrence.due_at)
    return {"next_run": due_at.isoformat(timespec="seconds").replace("+00:00", "Z")}
