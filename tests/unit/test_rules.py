"""The rules of settling and operating, without a store: every driver asks them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from taskharbor.drivers.base import (
    Cancel,
    DeadLetter,
    Delete,
    Discard,
    Occurrence,
    Operation,
    OperationVerdict,
    Requeue,
    RunNow,
    Seen,
    SettleAnswer,
    Transition,
    Update,
)
from taskharbor.records import AttemptStatus, Delivery, JobRecord, NewJob, Options, Reason, State
from taskharbor.rules.lifecycle import LEGAL, TERMINAL, allows
from taskharbor.rules.operating import Change, change, needs_force
from taskharbor.rules.settling import (
    Move,
    fence,
    proves_survival,
    repeated,
    retry_delay,
    settle_move,
    worker_survived,
)
from taskharbor.rules.standing import PARKED_AT, Standing, StoredJob, first_run_at, job_record

NOW = 1_000_000
RUNNING = Standing(State.RUNNING, 10, 3, 1, 2, begin_by=NOW + 5, delivery=Delivery.AT_LEAST_ONCE)
JOB = StoredJob("j", "mail", "send", "{}", 0, 10, 1)
CHILD = NewJob("c", "send")
COPY = NewJob("d", "send")

instants = st.integers(0, 2 * NOW)


def ending(status: AttemptStatus, to: State, **more: Any) -> Transition:
    return Transition("w/1", "j", 3, status, to, **more)


def settle(t: Transition, at: Standing = RUNNING, *, cancel_requested: bool = False) -> Move:
    return settle_move(at, t, NOW, cancel_requested=cancel_requested, declared=None)


# -- the fence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_recorded", "held", "expires_at", "is_covered", "answer"),
    [
        (True, 3, NOW + 1, True, SettleAnswer.NOT_RUNNING),
        (False, None, 0, False, SettleAnswer.NOT_RUNNING),
        (False, None, 0, True, SettleAnswer.LEASE_MISMATCH),
        (False, 4, NOW - 1, True, SettleAnswer.LEASE_MISMATCH),
        (False, 3, NOW, True, SettleAnswer.LEASE_EXPIRED),
        (False, 3, NOW + 1, True, SettleAnswer.DONE),
    ],
)
def test_refusals_come_in_their_order(
    is_recorded: bool, held: int | None, expires_at: int, is_covered: bool, answer: SettleAnswer
) -> None:
    facts = {"held_number": held, "expires_at": expires_at, "is_covered": is_covered}
    assert fence(3, NOW, is_recorded=is_recorded, **facts) is answer  # type: ignore[arg-type]


def test_repeated_settle_is_done_only_under_its_own_token_and_status() -> None:
    t = ending(AttemptStatus.FAILED, State.DEAD)
    assert repeated(t, "w/1", AttemptStatus.FAILED, NOW).answer is SettleAnswer.DONE
    assert repeated(t, "w/2", AttemptStatus.FAILED, NOW).answer is SettleAnswer.NOT_RUNNING
    other = repeated(t, "w/1", AttemptStatus.SUCCEEDED, NOW)
    assert (other.answer, other.recorded) == (SettleAnswer.NOT_RUNNING, AttemptStatus.SUCCEEDED)


def test_lease_that_its_worker_survived_marks_only_losses() -> None:
    assert worker_survived(ending(AttemptStatus.LOST, State.READY), True)
    assert not worker_survived(ending(AttemptStatus.FAILED, State.READY), True)


def test_refused_write_proves_that_the_worker_is_alive() -> None:
    for refusal in (SettleAnswer.NOT_RUNNING, SettleAnswer.LEASE_MISMATCH, SettleAnswer.LEASE_EXPIRED):
        assert proves_survival(refusal)
        assert not proves_survival(refusal, "a dead worker, which its supervisor settles for")
    for answer in (SettleAnswer.DONE, SettleAnswer.CHANGED, SettleAnswer.LATER):
        assert not proves_survival(answer)


@pytest.mark.parametrize(
    ("status", "to", "occurrence", "delay"),
    [
        (AttemptStatus.FAILED, State.READY, None, 50),
        (AttemptStatus.TIMED_OUT, State.READY, None, 50),
        (AttemptStatus.FAILED, State.READY, Occurrence(NOW, 1), 50),
        (AttemptStatus.FAILED, State.READY, Occurrence(NOW, 1, NOW - 1), 50),
        (AttemptStatus.FAILED, State.READY, Occurrence(NOW, 1, PARKED_AT), None),
        (AttemptStatus.FAILED, State.DEAD, Occurrence(NOW, 1), None),
        (AttemptStatus.FAILED, State.DEAD, None, None),
        (AttemptStatus.SLEPT, State.READY, None, None),
        (AttemptStatus.RELEASED, State.READY, None, None),
        (AttemptStatus.LOST, State.READY, None, None),
    ],
)
def test_delay_is_granted_only_to_a_failure_that_is_retried(
    status: AttemptStatus, to: State, occurrence: Occurrence | None, delay: int | None
) -> None:
    t = ending(status, to, delay=50, occurrence=occurrence)
    assert retry_delay(t, settle(t)) == delay
    assert retry_delay(t, settle(t, cancel_requested=True)) is None


# -- where a settle takes a job --------------------------------------------------------------------


def test_retry_goes_to_its_time_and_keeps_the_run() -> None:
    move = settle(ending(AttemptStatus.FAILED, State.READY, attempts=2, delay=50, started_at=NOW - 1))
    assert move.to == Standing(State.SCHEDULED, NOW + 50, 3, 2, 2, delivery=Delivery.AT_LEAST_ONCE)


def test_handed_back_job_keeps_its_place_and_its_expiry() -> None:
    move = settle(ending(AttemptStatus.RELEASED, State.READY, attempts=1))
    assert (move.to.run_at, move.to.begin_by) == (10, NOW + 5)


@pytest.mark.parametrize(
    ("status", "started_at"), [(AttemptStatus.LOST, None), (AttemptStatus.RELEASED, NOW - 1)]
)
def test_run_that_may_have_begun_no_longer_expires(status: AttemptStatus, started_at: int | None) -> None:
    assert settle(ending(status, State.READY, started_at=started_at)).to.begin_by is None


@pytest.mark.parametrize("to", [State.READY, State.DEAD, State.CANCELLED])
def test_cancel_wins_over_every_ending_but_a_success(to: State) -> None:
    move = settle(ending(AttemptStatus.FAILED, to, inserts=(CHILD,)), cancel_requested=True)
    assert (move.to.state, move.to.reason, move.inserts) == (State.CANCELLED, Reason.CANCELLED, ())


def test_success_wins_over_a_request_to_cancel() -> None:
    move = settle(ending(AttemptStatus.SUCCEEDED, State.SUCCEEDED, inserts=(CHILD,)), cancel_requested=True)
    assert (move.to.state, move.inserts) == (State.SUCCEEDED, (CHILD,))


def test_next_occurrence_begins_with_nothing_of_the_last_run() -> None:
    t = ending(AttemptStatus.SUCCEEDED, State.SUCCEEDED, attempts=1, occurrence=Occurrence(NOW + 60, 1))
    move = settle(t)
    assert move.is_rearmed
    assert move.to == Standing(State.SCHEDULED, NOW + 60, 3, 0, 4, NOW + 60)


def test_dead_letter_is_left_only_by_an_occurrence_that_is_dead() -> None:
    dead = ending(AttemptStatus.FAILED, State.DEAD, occurrence=Occurrence(NOW + 60, 1), dead_letter=COPY)
    assert settle(dead).dead_letter is COPY
    assert settle(dead, cancel_requested=True).dead_letter is None
    assert settle(replace(dead, to=State.SUCCEEDED)).dead_letter is None


@given(
    to=st.sampled_from([State.READY, State.SUCCEEDED, State.DEAD, State.CANCELLED]),
    status=st.sampled_from(AttemptStatus),
    delay=st.none() | instants,
    started_at=st.none() | instants,
    cancel_requested=st.booleans(),
    recurs=st.booleans(),
)
def test_every_settle_makes_a_legal_move(
    to: State,
    status: AttemptStatus,
    delay: int | None,
    started_at: int | None,
    cancel_requested: bool,
    recurs: bool,
) -> None:
    occurrence = Occurrence(NOW + 1, 1) if recurs else None
    t = ending(status, to, delay=delay, started_at=started_at, occurrence=occurrence)
    move = settle(t, cancel_requested=cancel_requested)
    assert move.to.state in LEGAL[State.RUNNING]
    assert move.to.number == 3
    assert (move.to.finished_at is not None) is (move.to.state in TERMINAL)
    assert (move.to.next_at is None) is (move.to.state in TERMINAL)
    answer = move.answer(NOW)
    assert (answer.answer, answer.state, answer.run_at) == (SettleAnswer.DONE, move.to.state, move.to.next_at)


# -- what an operator's verb makes of a job --------------------------------------------------------

STANDINGS = [
    Standing(State.WAITING, 10, begin_by=NOW + 9),
    Standing(State.SCHEDULED, NOW + 10, 2, 1, due_at=NOW + 10),
    Standing(State.READY, 10, 2, 1, suspect=True),
    RUNNING,
    Standing(State.SUCCEEDED, 10, 3, finished_at=20),
    Standing(State.DEAD, 10, 3, 2, reason=Reason.EXHAUSTED, finished_at=20),
    Standing(State.CANCELLED, 10, 3, reason=Reason.CANCELLED, finished_at=20),
]
OPERATIONS: list[Operation] = [
    Cancel(),
    Cancel(Occurrence(NOW + 60, 1)),
    Delete(),
    DeadLetter(),
    Discard(),
    Requeue(),
    Requeue(NOW + 7, reset_attempts=False),
    RunNow(),
    Update(priority=5),
    Update(run_at=NOW + 3, while_running=True),
]


@pytest.mark.parametrize("at", STANDINGS, ids=lambda at: str(at.state))
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_every_operation_is_refused_or_makes_a_legal_move(operation: Operation, at: Standing) -> None:
    answer = change(operation, JOB, at, NOW)
    if not allows(at.state, operation):
        assert answer is OperationVerdict.CONFLICT
    elif isinstance(answer, Change):
        assert answer.to.state is at.state or answer.to.state in LEGAL[at.state]
        assert answer.to.number == at.number + answer.is_rearmed


def test_requeue_begins_a_new_run_and_drops_an_expiry_that_has_passed() -> None:
    job = replace(JOB, expires_at=NOW)
    dead = Standing(State.DEAD, 10, 3, 2, reason=Reason.EXHAUSTED, finished_at=20)
    answer = change(Requeue(), job, dead, NOW)
    assert isinstance(answer, Change)
    assert answer.to == Standing(State.READY, NOW, 3, 0, 4)
    assert (answer.job.run_at, answer.job.expires_at, answer.is_new_run) == (NOW, None, True)
    kept = change(Requeue(reset_attempts=False), JOB, dead, NOW, waits=True)
    assert isinstance(kept, Change)
    assert (kept.to.state, kept.to.attempts) == (State.WAITING, 2)


@pytest.mark.parametrize(
    ("delivery", "number", "unreadable", "forced"),
    [
        (Delivery.AT_MOST_ONCE, 1, None, True),
        (Delivery.AT_MOST_ONCE, 0, None, False),
        (Delivery.AT_MOST_ONCE, 0, '{"ended.number":"x"}', True),
        (Delivery.AT_LEAST_ONCE, 1, None, False),
        (None, 1, None, False),
    ],
)
def test_only_an_at_most_once_job_that_may_have_begun_needs_force(
    delivery: Delivery | None, number: int, unreadable: str | None, forced: bool
) -> None:
    job = JobRecord(
        "j",
        "send",
        "{}",
        "mail",
        0,
        State.DEAD,
        1,
        10,
        number=number,
        delivery=delivery,
        unreadable=unreadable,
    )
    assert needs_force(job) is forced


def test_update_of_a_running_job_changes_its_row_and_not_its_place() -> None:
    update = Update(run_at=1, expires_at=2, due_at=3, priority=9, while_running=True)
    answer = change(update, JOB, RUNNING, NOW)
    assert isinstance(answer, Change)
    assert answer.to == RUNNING
    assert (answer.job.priority, answer.job.run_at, answer.job.version) == (9, 10, 2)


@pytest.mark.parametrize(("has_begun", "begin_by"), [(False, NOW + 50), (True, None)])
def test_expiry_of_a_run_that_has_begun_is_not_set_again(has_begun: bool, begin_by: int | None) -> None:
    at = Standing(State.READY, 10, 2)
    answer = change(Update(expires_at=NOW + 50), JOB, at, NOW, has_begun=has_begun)
    assert isinstance(answer, Change)
    assert (answer.job.expires_at, answer.to.begin_by) == (NOW + 50, begin_by)


def test_update_that_relies_on_what_has_changed_is_refused() -> None:
    at = Standing(State.READY, 10, 2)
    assert change(Update(version=7), JOB, at, NOW) is OperationVerdict.CHANGED
    assert change(Update(seen=Seen(1, False)), JOB, at, NOW) is OperationVerdict.CHANGED
    keyed = replace(JOB, idempotency_key="k")
    assert change(Update(queue="other"), keyed, at, NOW) is OperationVerdict.CONFLICT


def test_options_that_cannot_be_read_stay_unless_the_update_says_others() -> None:
    job, at = replace(JOB, unreadable_options="{odd"), Standing(State.READY, 10)
    kept = change(Update(priority=1), job, at, NOW)
    said = change(Update(timeout=5.0), job, at, NOW)
    assert isinstance(kept, Change)
    assert isinstance(said, Change)
    assert kept.job.options_text == "{odd"
    assert said.job.options_text == '{"timeout":5.0}'


@given(run_at=st.none() | instants, delay=st.none() | instants)
def test_new_job_runs_after_its_delay_or_at_its_time_or_at_once(
    run_at: int | None, delay: int | None
) -> None:
    expected = NOW + delay if delay is not None else NOW if run_at is None else run_at
    assert first_run_at(NewJob("n", "send", run_at=run_at, delay=delay), NOW) == expected


@pytest.mark.parametrize("at", STANDINGS, ids=lambda at: str(at.state))
def test_record_shows_a_finished_job_by_the_time_it_was_to_run(at: Standing) -> None:
    record = job_record(JOB, at, latest=None, holder=None, depends_on=(), progress=None)
    assert record.run_at == (JOB.run_at if at.is_finished else at.run_at)
    assert (record.state, record.number, record.reason) == (at.state, at.number, at.reason)


def test_tags_of_an_update_replace_those_of_the_job() -> None:
    job = replace(JOB, options=Options(tags=("a",), timeout=1.0))
    answer = change(Update(tags=("b",), options=UNSET), job, Standing(State.READY, 10), NOW)
    assert isinstance(answer, Change)
    assert answer.job.options == Options(tags=("b",), timeout=1.0)
