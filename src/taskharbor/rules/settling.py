"""Settling: which writes a lease proves, and where a transition takes the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.drivers.contract.handing_over import HandedOver
from taskharbor.drivers.contract.leasing import SettleAnswer
from taskharbor.drivers.contract.settling import Occurrence, SettleResult, Transition
from taskharbor.records import FAILURES, AttemptStatus, Delivery, NewJob, Reason, State
from taskharbor.rules.standing import PARKED_AT, Standing, runnable_state

# -- the fence -------------------------------------------------------------------------------------

REFUSALS = frozenset({SettleAnswer.NOT_RUNNING, SettleAnswer.LEASE_MISMATCH, SettleAnswer.LEASE_EXPIRED})


def fence(
    number: int,
    now: int,
    *,
    is_recorded: bool,
    held_number: int | None,
    expires_at: int,
    is_covered: bool,
) -> SettleAnswer:
    """Decide whether an attempt may write: DONE, or the refusal. The order of the refusals is part of the contract.

    `is_recorded`: the attempt has its row of history. `held_number`: the attempt of this job that the lease given
    covers, None if none, and `expires_at` is that lease's. `is_covered`: any lease covers the job.
    """
    if is_recorded:
        return SettleAnswer.NOT_RUNNING
    if held_number != number:
        return SettleAnswer.LEASE_MISMATCH if is_covered else SettleAnswer.NOT_RUNNING
    if now >= expires_at:
        return SettleAnswer.LEASE_EXPIRED
    return SettleAnswer.DONE


def repeated(t: Transition, token: str, status: AttemptStatus, now: int) -> SettleResult:
    """Answer a settle whose attempt has its row already: it may be the one that wrote it, asked again."""
    same = token == t.token and status is t.status
    return SettleResult(SettleAnswer.DONE if same else SettleAnswer.NOT_RUNNING, recorded=status, at=now)


def report_each_once(
    answers: Sequence[SettleResult], repeated: Iterable[tuple[int, str, bool]]
) -> list[SettleResult]:
    """Add the dependants that repeated settles report again, as the first answers reported them.

    `repeated`: index of the answer, id of a dependant, and whether it was released or cancelled. A dependant of several
    jobs of a batch was released with the last of them, and cancelled with the first.
    """
    released: dict[str, int] = {}
    cancelled: dict[str, int] = {}
    told = {job_id for each in answers for job_id in (*each.released, *each.cancelled)}
    for index, job_id, was_released in sorted(repeated):
        if job_id in told:  # the batch itself has a settle twice
            continue
        if was_released:
            released[job_id] = index
        else:
            cancelled.setdefault(job_id, index)
    reported = list(answers)
    for index in {*released.values(), *cancelled.values()}:
        reported[index] = replace(
            reported[index],
            released=tuple(sorted(job_id for job_id, at in released.items() if at == index)),
            cancelled=tuple(sorted(job_id for job_id, at in cancelled.items() if at == index)),
        )
    return reported


def proves_survival(answer: SettleAnswer, settled_for: str | None = None) -> bool:
    """Say whether the answer to a fenced write proves that the worker of the lease is alive.

    A refused write does: only the worker knows its token, so the worker has asked, and its lease is over. A supervisor
    that settles the jobs of a dead worker names that worker in `settled_for`, and proves nothing.
    """
    return settled_for is None and answer in REFUSALS


def collected_from(t: Transition, token: str, claimed_as: str) -> str | None:
    """Return the token of the claim for a loss that a collector settles, else None.

    The row of history keeps it: the worker may prove later, under that token, that it survived.
    """
    return claimed_as if t.status is AttemptStatus.LOST and token != claimed_as else None


def worker_survived(t: Transition, lease_survived: bool) -> bool:
    """Say whether the row of history is marked: a worker may prove that it survived while a collector still decides."""
    return t.worker_survived or (t.status is AttemptStatus.LOST and lease_survived)


def retry_delay(t: Transition, move: Move) -> int | None:
    """Return the delay that a failed attempt was granted before its retry, for its row of history.

    The place of the job does not keep it: an operator may move the job, and a paused schedule parks it.
    """
    is_retried = t.status in FAILURES and not move.is_rearmed and not move.to.is_finished
    is_parked = t.occurrence is not None and t.occurrence.run_at == PARKED_AT
    return t.delay if is_retried and not is_parked else None


# -- the move --------------------------------------------------------------------------------------


class Move(Struct, frozen=True, gc=False):
    """Where a settle takes a job, and what goes with it."""

    to: Standing
    is_rearmed: bool = False  # a new occurrence begins: steps and progress of the last one go
    inserts: tuple[NewJob, ...] = ()
    dead_letter: NewJob | None = None

    def answer(self, now: int) -> SettleResult:
        return SettleResult(SettleAnswer.DONE, self.to.state, self.to.next_at, at=now)


def settle_move(
    at: Standing,
    t: Transition,
    now: int,
    *,
    cancel_requested: bool,
    declared: Delivery | None = None,
) -> Move:
    """Where this transition takes the job. `declared` is the delivery in the job's row, which a next occurrence has."""
    cancelled = cancel_wins(t, cancel_requested)
    target = State.CANCELLED if cancelled else t.to
    inserts = () if cancelled else t.inserts
    if target is State.READY:
        return Move(put_back(at, t, now), inserts=inserts)
    if t.occurrence is not None:
        to = rearmed(t.number, t.occurrence, declared, now)
        return Move(to, True, inserts, t.dead_letter if target is State.DEAD else None)
    reason = Reason.CANCELLED if cancelled else t.reason
    return Move(finished(at, target, reason, now, number=t.number, attempts=t.attempts), inserts=inserts)


def cancel_wins(t: Transition, cancel_requested: bool) -> bool:
    """Only a success wins over a request to cancel; any other end of the attempt makes the job cancelled."""
    return cancel_requested and t.to is not State.SUCCEEDED


def put_back(at: Standing, t: Transition, now: int) -> Standing:
    """Runnable again: after a delay, or in the place that the job had."""
    run_at = at.run_at if t.delay is None else now + t.delay
    return Standing(
        runnable_state(run_at, now),
        run_at,
        t.number,
        t.attempts,
        at.first_number,
        at.due_at,
        None if has_begun(t.status, t.started_at) else at.begin_by,
        at.delivery,
        t.suspect,
        aside=t.aside,
    )


def has_begun(status: AttemptStatus, started_at: int | None) -> bool:
    """A run that has begun no longer expires. A lost attempt may have begun."""
    return started_at is not None or status is AttemptStatus.LOST


def rearmed(number: int, occurrence: Occurrence, declared: Delivery | None, now: int) -> Standing:
    """The next run of a recurring job: nothing of the one before is left but its history."""
    run_at = occurrence.due_at if occurrence.run_at is None else occurrence.run_at
    return Standing(
        runnable_state(run_at, now), run_at, number, 0, number + 1, occurrence.due_at, delivery=declared
    )


def finished(
    at: Standing,
    state: State,
    reason: Reason | None,
    now: int,
    *,
    number: int | None = None,
    attempts: int | None = None,
) -> Standing:
    return Standing(
        state,
        at.run_at,
        at.number if number is None else number,
        at.attempts if attempts is None else attempts,
        at.first_number,
        None,
        None,
        at.delivery,
        False,
        reason,
        now,
    )


def handed_over(handed: HandedOver, run_at: int, now: int) -> Standing:
    """Where a job that comes from a log stands: in the middle of its first run, or dead."""
    attempt, job = handed.attempt, handed.job
    begun = attempt is not None and has_begun(attempt.status, attempt.started_at)
    at = Standing(
        runnable_state(run_at, now),
        run_at,
        0 if attempt is None else attempt.number,
        handed.attempts,
        begin_by=None if begun else job.expires_at,
        delivery=job.delivery,
        aside=None if attempt is None else handed.aside,
    )
    return at if handed.to is not State.DEAD else finished(at, State.DEAD, handed.reason, now)
