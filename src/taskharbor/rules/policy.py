"""The policy: pure functions from what happened to what shall become of the job.

No driver decides, and nothing here knows a driver: a claimed job, an outcome and the settings in force go
in, a transition comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import random as uniform
from typing import Any

from msgspec import Struct

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import DEFAULT_MAX_LOSSES, Claimed, ExpiredLease, Transition
from taskharbor.records import AttemptRecord, AttemptStatus, Delivery, NewJob, Reason, State
from taskharbor.rules.aside import task_label
from taskharbor.rules.fingerprint import of_kind
from taskharbor.rules.outcome import (
    CancelledOnRequest,
    Crashed,
    Disturbed,
    Expired,
    Failed,
    HandedBack,
    Held,
    Interrupted,
    Missed,
    Outcome,
    Slept,
    Succeeded,
    Unrunnable,
)
from taskharbor.rules.retry import UNSET, Decision, RetryPolicy
from taskharbor.rules.retry_decision import decide_failure

SUPERVISED_MAX_LOSSES = 20  # losses although a supervisor was there: deployments, not poison
# Losses in a row that the worker survived: a handler may block the worker's loop for longer than the lease. An outage
# of the store looks the same, so the limits are high. From the first on the job runs alone; with the second it is dead.
SURVIVED_LOSSES_SUSPECT = 10
SURVIVED_LOSSES_MAX = 20
UNRUNNABLE_GRACE_SECONDS = 300.0
UNRUNNABLE_DELAY_MAX_SECONDS = 30.0
UNSETTLED_MAX = 20  # times that a bug of ours may keep a job from being settled: more than an hour
UNSETTLED_DELAY_MAX_SECONDS = 300.0

# How an attempt was lost: the `detail` of its row, which later losses are weighed by.
LOST_TOGETHER = "together"  # with others, so it is unknown whose fault it was
LOST_ALONE = "alone"  # executed alone: its own doing
LOST_SUPERVISED = "supervised"  # the whole tree was killed
ASIDE = "aside: "  # not lost: put aside under this label, a `released` row
DISTURBED = "disturbed"  # not lost, but cut off by other code in its worker: a `released` row
LOST_ENDED = "ended"  # its handler had returned, but its worker died before that was settled


class Rules(Struct, frozen=True):
    """What bears on one job: its own options, its task's declaration, the worker's settings."""

    worker_policy: RetryPolicy | None
    job_max_attempts: int | None = None
    job_policy: Any = UNSET  # RetryPolicy, None for none, or UNSET
    task_max_attempts: int | None = None
    task_policy: Any = UNSET
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    job: Callable[[], Any] | None = None  # the handle that functions of a policy are given


def settle_outcome(
    token: str,
    job: Claimed,
    outcome: Outcome,
    rules: Rules,
    *,
    started_at: int | None,
    suspect: bool = False,
    random: Callable[[], float] = uniform,
) -> tuple[Transition, Decision | None]:
    """The transition that an outcome makes, and for a failure what was decided about it.

    A suspect that was not executed to an end is one still.
    """

    def ending(status: AttemptStatus, to: State, **more: Any) -> Transition:
        more.setdefault("attempts", job.attempts)
        return Transition(token, job.id, job.number, status, to, started_at=started_at, **more)

    once = rules.delivery is Delivery.AT_MOST_ONCE
    match outcome:
        case Succeeded():
            return settle_success(token, job, outcome, started_at), None
        case Failed():
            return _failure(job, outcome, rules, ending, random)
        case Expired():
            detail = "not begun by its expires_at"
            return ending(
                AttemptStatus.CANCELLED, State.CANCELLED, reason=Reason.EXPIRED, detail=detail
            ), None
        case Missed(late, grace):
            detail = f"missed: {late:.0f} s late, and its misfire_grace is {grace:g} s"
            return ending(
                AttemptStatus.CANCELLED, State.CANCELLED, reason=Reason.EXPIRED, detail=detail
            ), None
        case HandedBack():
            return ending(AttemptStatus.RELEASED, State.READY, suspect=suspect), None
        case Held(label):
            detail = ASIDE + label
            return ending(
                AttemptStatus.RELEASED, State.READY, suspect=suspect, aside=label, detail=detail
            ), None
        case Interrupted() if once:
            detail = "the worker was shut down"
            fingerprint = of_kind(job.task, Reason.INTERRUPTED)
            return ending(
                AttemptStatus.CANCELLED,
                State.DEAD,
                reason=Reason.INTERRUPTED,
                detail=detail,
                fingerprint=fingerprint,
            ), None
        case Interrupted():
            detail = "the worker was shut down"
            return ending(AttemptStatus.RELEASED, State.READY, suspect=suspect, detail=detail), None
        case Slept(name, seconds):
            # It has stored a step, so nothing that was held against it before counts.
            return ending(
                AttemptStatus.SLEPT, State.READY, delay=_micros(seconds), detail=f"asleep: {name}"
            ), None
        case CancelledOnRequest(error):
            return ending(
                AttemptStatus.CANCELLED, State.CANCELLED, reason=Reason.CANCELLED, error=error
            ), None
        case Unrunnable() | Crashed() | Disturbed():
            raise AssertionError(
                "settled by settle_unrunnable, settle_crash and settle_disturbed, which need the history"
            )


def settle_success(
    token: str, job: Claimed, outcome: Succeeded, started_at: int | None, children: Iterable[NewJob] = ()
) -> Transition:
    """The transition of a success, which stores the job's children as well."""
    return Transition(
        token, job.id, job.number, AttemptStatus.SUCCEEDED, State.SUCCEEDED, job.attempts, started_at,
        result=outcome.result, inserts=tuple(children),
    )  # fmt: skip


def _failure(
    job: Claimed,
    failed: Failed,
    rules: Rules,
    ending: Callable[..., Transition],
    random: Callable[[], float],
) -> tuple[Transition, Decision]:
    decision = decide_failure(
        failed.info,
        failures=job.attempts,
        job_max_attempts=rules.job_max_attempts,
        task_max_attempts=rules.task_max_attempts,
        job_policy=rules.job_policy,
        task_policy=rules.task_policy,
        worker_policy=rules.worker_policy,
        at_most_once=rules.delivery is Delivery.AT_MOST_ONCE,
        job=rules.job,
        random=random,
    )
    status = AttemptStatus.TIMED_OUT if failed.timed_out else AttemptStatus.FAILED
    fingerprint = failed.fingerprint or of_kind(job.task, str(status))
    what = {
        "attempts": decision.attempts,
        "error": failed.error,
        "traceback": failed.traceback,
        "fingerprint": fingerprint,
    }
    if decision.delay_seconds is None:
        return ending(status, State.DEAD, reason=decision.reason, **what), decision
    return ending(status, State.READY, delay=_micros(decision.delay_seconds), **what), decision


# -- what a worker cannot begin ------------------------------------------------------------------


def settle_unrunnable(
    token: str,
    job: Claimed,
    outcome: Unrunnable,
    history: Sequence[AttemptRecord],
    *,
    now: int,
    grace_seconds: float = UNRUNNABLE_GRACE_SECONDS,
    suspect: bool = False,
    aside: str | None = None,
) -> Transition:
    """Put it back for a while, uncounted: another version may know it, since deployments roll.

    `history` is newest first. `_put_backs` says which of its rows count. `aside` is the label of the place where it
    waits; the delay is for workers that do not know it.
    """
    before = _put_backs(history, job.first_number)
    detail = str(outcome.reason)
    if before.until(now) >= _micros(grace_seconds):
        return Transition(
            token, job.id, job.number, AttemptStatus.FAILED, State.DEAD,
            attempts=job.attempts, reason=outcome.reason, error=outcome.error, detail=detail,
            fingerprint=of_kind(job.task, outcome.reason),
        )  # fmt: skip
    delay = min(2.0 ** min(before.times, 10), UNRUNNABLE_DELAY_MAX_SECONDS)
    return Transition(
        token, job.id, job.number, AttemptStatus.RELEASED, State.READY,
        attempts=job.attempts, delay=_micros(delay), error=outcome.error, detail=detail, suspect=suspect, aside=aside,
    )  # fmt: skip


def settle_known_elsewhere(token: str, job: Claimed, *, suspect: bool = False) -> Transition:
    """Put it aside at once, in the place it had, for the live workers that know its task; nothing is counted."""
    label = task_label(job.task)
    return Transition(
        token, job.id, job.number, AttemptStatus.RELEASED, State.READY,
        attempts=job.attempts, suspect=suspect, aside=label, detail=ASIDE + label,
    )  # fmt: skip


class _PutBacks(Struct, frozen=True):
    """The put-backs of a job that no worker could begin: how many there are, and for how long that has been so."""

    times: int
    waited: int  # microseconds, up to the latest put-back
    latest: int | None  # when it was; None if a worker that knew the job, or a hold, came after it

    def until(self, now: int) -> int:
        return self.waited + (0 if self.latest is None else now - self.latest)


def _put_backs(history: Sequence[AttemptRecord], first_number: int) -> _PutBacks:
    """Add up the time in which no live worker could begin the job. `history` is newest first.

    The clock stands still from the last put-back before the job was put aside for a worker that knows it, or for a
    hold, to the first one after that. A claim that ended before the job began neither stops nor restarts it. An
    execution does: the code for it was there.
    """
    unrunnable = {str(Reason.UNKNOWN_TASK), str(Reason.INVALID_PAYLOAD)}
    times = waited = 0
    latest: int | None = None
    was_aside = False  # after all put-backs that are counted so far
    later: int | None = None  # the put-back after the row at hand; None if the job was put aside in between
    for row in history:
        if row.number < first_number or row.started_at is not None:
            break
        if row.detail is not None and row.detail.startswith(ASIDE):
            later, was_aside = None, was_aside or not times
        elif row.status is AttemptStatus.RELEASED and row.detail in unrunnable:
            if later is not None:
                waited += later - row.finished_at
            elif not times and not was_aside:
                latest = row.finished_at
            later = row.finished_at
            times += 1
    return _PutBacks(times, waited, latest)


def unrunnable_until(history: Sequence[AttemptRecord], first_number: int = 0) -> int | None:
    """Until when a job that was put back as unrunnable will be put back again; None if it was not.

    `history` is newest first.
    """
    before = _put_backs(history, first_number)
    return (
        None if before.latest is None else before.latest + _micros(UNRUNNABLE_GRACE_SECONDS) - before.waited
    )


# -- what a bug of ours keeps from being settled ---------------------------------------------------


def settle_unsettled(
    token: str,
    job: Claimed,
    bug: str,
    history: Sequence[AttemptRecord],
    *,
    started_at: int | None,
    suspect: bool = False,
) -> Transition:
    """Release it, uncounted: it is not the job's doing, and the next version may have the bug no more.

    `history` is newest first, without this attempt. An `at_most_once` job that has begun is never begun again.
    """
    before = sum(row.number >= job.first_number and row.detail == Reason.UNSETTLEABLE for row in history)
    error = f"a bug in TaskHarbor kept this attempt from being settled: {bug}"
    begun_once = job.delivery is Delivery.AT_MOST_ONCE and started_at is not None
    if begun_once or before + 1 >= UNSETTLED_MAX:
        return Transition(
            token, job.id, job.number, AttemptStatus.FAILED, State.DEAD, attempts=job.attempts,
            started_at=started_at, reason=Reason.UNSETTLEABLE, error=error, detail=str(Reason.UNSETTLEABLE),
            fingerprint=of_kind(job.task, Reason.UNSETTLEABLE),
        )  # fmt: skip
    delay = min(2.0**before, UNSETTLED_DELAY_MAX_SECONDS)
    return Transition(
        token, job.id, job.number, AttemptStatus.RELEASED, State.READY, attempts=job.attempts,
        started_at=started_at, delay=_micros(delay), error=error, detail=str(Reason.UNSETTLEABLE), suspect=suspect,
    )  # fmt: skip


# -- losses and poison ---------------------------------------------------------------------------


class Loss(Struct, frozen=True):
    """How an execution was lost: its lease expired, or a supervisor saw its worker die."""

    token: str  # that settles it
    worker: str | None  # whose attempt it was, when not the token's
    kind: str  # LOST_…
    error: str
    alone: bool = False  # it was executed as a suspect
    worker_survived: bool = False
    started_at: int | None = None


def settle_loss(
    lease: ExpiredLease,
    job: Claimed,
    history: Sequence[AttemptRecord],
    *,
    last_step: int = 0,
) -> Transition:
    """What becomes of a job whose lease expired. `history` is newest first, without this attempt.

    Under a supervisor a lease expires only when the supervisor is gone as well: a job that was alone then did not
    cause that.
    """
    kind = LOST_SUPERVISED if lease.supervised else LOST_ALONE if lease.alone else LOST_TOGETHER
    loss = Loss(
        lease.token,
        lease.worker,
        kind,
        f"lost: the lease of worker {lease.worker} expired",
        alone=lease.alone,
        worker_survived=lease.worker_survived,
        started_at=lease.running.get(job.id),
    )
    return weigh_loss(loss, job, history, last_step=last_step, max_losses=lease.max_losses)


def weigh_loss(
    loss: Loss,
    job: Claimed,
    history: Sequence[AttemptRecord],
    *,
    last_step: int = 0,
    max_losses: int = DEFAULT_MAX_LOSSES,
) -> Transition:
    """What becomes of a lost job. `history` is newest first, without this attempt.

    A loss is not a failure: `attempts` stays. Only a loss while alone counts against the job; one that was
    lost with others is rerun normally once, and alone from the second such loss in a row. Losses from before
    the attempt that stored its latest durable step (`last_step`, 0 without one) no longer count: it got on.
    """
    first_number = max(job.first_number, last_step)
    lost = [
        row
        for row in history
        if row.number >= first_number and row.status is AttemptStatus.LOST and not row.worker_survived
    ]
    suspect, reason = loss.alone, None
    survived = loss.worker_survived + _survived_in_a_row(history, first_number)
    if job.delivery is Delivery.AT_MOST_ONCE or (loss.alone and survived >= SURVIVED_LOSSES_MAX):
        reason = Reason.LOST
    elif survived >= SURVIVED_LOSSES_SUSPECT and not loss.alone:
        suspect = True
    elif loss.worker_survived:
        pass  # its worker is alive: an outage counts against no job
    elif loss.kind == LOST_ALONE:
        if 1 + sum(row.detail == LOST_ALONE for row in lost) >= max_losses:
            reason = Reason.POISON
    elif loss.kind in _HARDLY_ITS_DOING:
        if 1 + sum(row.detail in _HARDLY_ITS_DOING for row in lost) >= SUPERVISED_MAX_LOSSES:
            reason = Reason.POISON
    else:
        suspect = _was_just_cut_off(history, first_number)
    return Transition(
        loss.token,
        job.id,
        job.number,
        AttemptStatus.LOST,
        State.READY if reason is None else State.DEAD,
        attempts=job.attempts,
        started_at=loss.started_at,
        suspect=suspect and reason is None,
        reason=reason,
        error=loss.error,
        detail=loss.kind,
        worker=loss.worker,
        worker_survived=loss.worker_survived,
        fingerprint=of_kind(
            job.task, Reason.LOST
        ),  # of a poisonous one too: each of its losses has the same cause
    )


# Hardly the doing of the job. They count against the higher limit, so that no job loops without end.
_HARDLY_ITS_DOING = frozenset({LOST_SUPERVISED, LOST_ENDED})


def _survived_in_a_row(history: Sequence[AttemptRecord], first_number: int) -> int:
    """Count the latest losses that the worker survived, up to any other outcome of an execution."""
    count = 0
    for row in history:
        if row.status is AttemptStatus.RELEASED and row.started_at is None:
            continue  # handed back: it was not executed
        if row.number < first_number or row.status is not AttemptStatus.LOST or not row.worker_survived:
            break
        count += 1
    return count


def _was_just_cut_off(history: Sequence[AttemptRecord], first_number: int) -> bool:
    """Whether the last time it was really executed it was lost with others, or disturbed, too."""
    for row in history:
        if row.number < first_number:
            return False
        if row.status is AttemptStatus.RELEASED and row.started_at is None:
            continue  # handed back: it was not executed
        if row.status is AttemptStatus.RELEASED:
            return row.detail == DISTURBED
        return row.status is AttemptStatus.LOST and row.detail == LOST_TOGETHER and not row.worker_survived
    return False


def settle_crash(
    token: str,
    job: Claimed,
    outcome: Crashed,
    history: Sequence[AttemptRecord],
    *,
    started_at: int | None,
    last_step: int = 0,
    max_losses: int = DEFAULT_MAX_LOSSES,
) -> Transition:
    """What becomes of a job that ended the process which executed it: a loss while alone, weighed like any.

    It is no suspect afterwards: each of its executions is alone already.
    """
    loss = Loss(token, None, LOST_ALONE, outcome.error, started_at=started_at)
    return weigh_loss(loss, job, history, last_step=last_step, max_losses=max_losses)


def settle_disturbed(
    token: str,
    job: Claimed,
    outcome: Disturbed,
    history: Sequence[AttemptRecord],
    *,
    started_at: int | None,
    alone: bool,
    last_step: int = 0,
    max_losses: int = DEFAULT_MAX_LOSSES,
) -> Transition:
    """What becomes of a job whose handler was cancelled by other code in its worker.

    Its neighbours are to blame, so it is released, and from the second time in a row it is executed alone. Where it
    is alone there is no neighbour: that is a loss like any other while alone, and the last permitted is poison.
    """
    if job.delivery is Delivery.AT_MOST_ONCE:
        return Transition(
            token, job.id, job.number, AttemptStatus.CANCELLED, State.DEAD, attempts=job.attempts,
            started_at=started_at, reason=Reason.INTERRUPTED, error=outcome.error, detail=DISTURBED,
            fingerprint=of_kind(job.task, Reason.INTERRUPTED),
        )  # fmt: skip
    if alone:
        loss = Loss(token, None, LOST_ALONE, outcome.error, alone=True, started_at=started_at)
        return weigh_loss(loss, job, history, last_step=last_step, max_losses=max_losses)
    return Transition(
        token, job.id, job.number, AttemptStatus.RELEASED, State.READY, attempts=job.attempts,
        started_at=started_at, suspect=_was_just_cut_off(history, max(job.first_number, last_step)),
        error=outcome.error, detail=DISTURBED,
    )  # fmt: skip


def _micros(seconds: float) -> int:
    return round(seconds * MICROS_PER_SECOND)
