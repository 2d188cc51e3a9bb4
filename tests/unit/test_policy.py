"""The policy is pure: what happened goes in, what shall become of the job comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import DEFAULT_MAX_LOSSES, Claimed, ExpiredLease, Transition
from taskharbor.errors import RetryAfter, Unrecoverable
from taskharbor.records import AttemptRecord, AttemptStatus, Delivery, Reason, State
from taskharbor.rules.lifecycle import SETTLES
from taskharbor.rules.outcome import (
    CancelledOnRequest,
    Expired,
    Failed,
    HandedBack,
    Interrupted,
    Outcome,
    Slept,
    Succeeded,
    Unrunnable,
)
from taskharbor.rules.policy import (
    LOST_ALONE,
    LOST_ENDED,
    LOST_SUPERVISED,
    LOST_TOGETHER,
    SUPERVISED_MAX_LOSSES,
    SURVIVED_LOSSES_MAX,
    SURVIVED_LOSSES_SUSPECT,
    Loss,
    Rules,
    settle_known_elsewhere,
    settle_loss,
    settle_outcome,
    settle_unrunnable,
    unrunnable_until,
    weigh_loss,
)
from taskharbor.rules.retry import ErrorInfo, RetryPolicy

TOKEN = "worker-1/7"
NOW = 1_000_000 * MICROS_PER_SECOND
STARTED = NOW - 5
STEADY = RetryPolicy(max_attempts=5, initial=1, maximum=60, jitter=None)


def claimed(number: int = 1, attempts: int = 0, **more: Any) -> Claimed:
    fields: dict[str, Any] = {"first_number": 1, "run_at": 0, "enqueued_at": 0} | more
    return Claimed("job", "t", "{}", "default", 0, number, attempts, **fields)


def settled(outcome: Outcome, job: Claimed | None = None, **rules: Any) -> Transition:
    given_rules = Rules(**({"worker_policy": STEADY} | rules))
    transition, _ = settle_outcome(TOKEN, job or claimed(), outcome, given_rules, started_at=STARTED)
    return transition


def failed(error: BaseException, *, timed_out: bool = False) -> Failed:
    return Failed(ErrorInfo.of(error), str(error), "Traceback …", timed_out=timed_out)


# -- outcomes ------------------------------------------------------------------------------------

OUTCOMES: list[Outcome] = [
    Succeeded(),
    Failed(ErrorInfo("ValueError", "x"), "x"),
    Failed(ErrorInfo("TimeoutError", "x"), "x", timed_out=True),
    Expired(),
    HandedBack(),
    Interrupted(),
    Slept("nap", 60),
    CancelledOnRequest(),
]


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_every_outcome_makes_a_transition_that_the_lifecycle_allows(outcome, delivery):
    transition = settled(outcome, delivery=delivery)
    assert transition.to in SETTLES[transition.status]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_every_transition_proves_its_lease_and_attempt_number(outcome):
    transition = settled(outcome, claimed(number=4))
    assert (transition.token, transition.job_id, transition.number) == (TOKEN, "job", 4)


@pytest.mark.parametrize(
    "outcome",
    [outcome for outcome in OUTCOMES if not isinstance(outcome, Failed)],
    ids=lambda o: type(o).__name__,
)
def test_only_a_failure_counts(outcome):
    assert settled(outcome, claimed(number=4, attempts=2)).attempts == 2


def test_a_success_carries_its_result():
    transition = settled(Succeeded('{"n":1}'))
    assert (transition.status, transition.to) == (AttemptStatus.SUCCEEDED, State.SUCCEEDED)
    assert (transition.result, transition.started_at) == ('{"n":1}', STARTED)


def test_a_failure_runs_again_after_the_policys_delay():
    transition = settled(failed(ValueError("broken")), claimed(attempts=2))
    assert (transition.status, transition.to) == (AttemptStatus.FAILED, State.READY)
    assert transition.attempts == 3
    assert transition.delay == 4 * MICROS_PER_SECOND  # 1, 2, 4
    assert (transition.error, transition.traceback) == ("broken", "Traceback …")
    assert transition.reason is None


def test_a_timeout_is_a_failure_with_a_status_of_its_own():
    transition = settled(failed(TimeoutError("slow"), timed_out=True))
    assert (transition.status, transition.to) == (AttemptStatus.TIMED_OUT, State.READY)
    assert (transition.attempts, transition.delay) == (1, MICROS_PER_SECOND)


@pytest.mark.parametrize(("attempts", "to"), [(0, "ready"), (3, "ready"), (4, "dead"), (5, "dead")])
def test_max_attempts_5_retries_four_failures_and_the_fifth_is_dead(attempts, to):
    transition = settled(failed(ValueError("x")), claimed(attempts=attempts))
    assert transition.to == to
    assert transition.attempts == attempts + 1
    assert transition.reason == (Reason.EXHAUSTED if to == "dead" else None)
    assert (transition.delay is None) == (to == "dead")


def test_unrecoverable_is_dead_at_once():
    transition = settled(failed(Unrecoverable("no")))
    assert (transition.to, transition.reason) == (State.DEAD, Reason.UNRECOVERABLE)


def test_retry_after_sets_the_delay_and_counts():
    transition = settled(failed(RetryAfter(90)))
    assert (transition.to, transition.delay, transition.attempts) == (State.READY, 90_000_000, 1)
    assert settled(failed(RetryAfter(90)), claimed(attempts=4)).to is State.DEAD


def test_without_any_policy_the_first_failure_is_the_last():
    transition = settled(failed(ValueError("x")), worker_policy=None)
    assert (transition.to, transition.reason) == (State.DEAD, Reason.EXHAUSTED)
    # a job's explicit None ends the search for one
    assert settled(failed(ValueError("x")), job_policy=None).to is State.DEAD


def test_the_jobs_limit_goes_before_the_tasks_and_the_workers_policy_caps_it():
    job = claimed(attempts=2)
    assert settled(failed(ValueError("x")), job, job_max_attempts=3, task_max_attempts=9).to is State.DEAD
    assert settled(failed(ValueError("x")), job, task_max_attempts=4).to is State.READY
    capped = settled(failed(ValueError("x")), claimed(attempts=4), job_max_attempts=100)
    assert (capped.to, capped.reason) == (State.DEAD, Reason.EXHAUSTED)


def test_at_most_once_is_never_retried_whatever_the_limits_say():
    for error in (ValueError("x"), RetryAfter(1)):
        transition = settled(failed(error), job_max_attempts=9, delivery=Delivery.AT_MOST_ONCE)
        assert (transition.to, transition.reason) == (State.DEAD, Reason.NOT_RETRYABLE)


def test_the_decision_comes_with_the_transition_of_a_failure_only():
    rules = Rules(worker_policy=STEADY)
    _, decision = settle_outcome(TOKEN, claimed(), failed(ValueError("x")), rules, started_at=STARTED)
    assert decision is not None
    assert (decision.attempts, decision.limit, decision.delay_seconds) == (1, 5, 1.0)
    for outcome in OUTCOMES:
        if not isinstance(outcome, Failed):
            assert settle_outcome(TOKEN, claimed(), outcome, rules, started_at=None)[1] is None


def test_jitter_comes_from_the_random_source_given():
    rules = Rules(worker_policy=RetryPolicy(max_attempts=5, initial=1, jitter="full"))
    error = failed(ValueError("x"))
    transition, _ = settle_outcome(TOKEN, claimed(), error, rules, started_at=0, random=lambda: 0.25)
    assert transition.delay == 250_000


def test_what_was_not_begun_in_time_is_cancelled_as_expired():
    transition = settled(Expired())
    assert (transition.status, transition.to) == (AttemptStatus.CANCELLED, State.CANCELLED)
    assert transition.reason is Reason.EXPIRED


def test_a_handed_back_job_keeps_its_place_and_counts_nothing():
    transition = settled(HandedBack(), claimed(attempts=2))
    assert (transition.status, transition.to) == (AttemptStatus.RELEASED, State.READY)
    assert (transition.delay, transition.attempts, transition.suspect) == (None, 2, False)


def test_an_interrupted_job_is_released_uncounted():
    transition = settled(Interrupted(), claimed(attempts=2))
    assert (transition.status, transition.to) == (AttemptStatus.RELEASED, State.READY)
    assert (transition.delay, transition.attempts) == (None, 2)


def test_an_interrupted_at_most_once_job_is_dead():
    transition = settled(Interrupted(), delivery=Delivery.AT_MOST_ONCE)
    assert (transition.to, transition.reason) == (State.DEAD, Reason.INTERRUPTED)


def test_an_unbegun_at_most_once_job_is_handed_back_all_the_same():
    assert settled(HandedBack(), delivery=Delivery.AT_MOST_ONCE).to is State.READY


def test_a_cancelled_job_keeps_what_its_handler_raised_meanwhile():
    transition = settled(CancelledOnRequest("OSError: gone"))
    assert (transition.status, transition.to) == (AttemptStatus.CANCELLED, State.CANCELLED)
    assert (transition.reason, transition.error) == (Reason.CANCELLED, "OSError: gone")


def test_unrunnable_is_refused_here_because_it_needs_the_history():
    with pytest.raises(AssertionError, match="settle_unrunnable"):
        settled(Unrunnable(Reason.UNKNOWN_TASK, "x"))


# -- what a worker cannot begin ------------------------------------------------------------------

UNKNOWN = Unrunnable(Reason.UNKNOWN_TASK, "no task is called 't' here")
MISFIT = Unrunnable(Reason.INVALID_PAYLOAD, "x is missing")


def row(number: int, status: AttemptStatus, **more: Any) -> AttemptRecord:
    fields: dict[str, Any] = {"retry_count": 0, "worker": "w", "started_at": None, "finished_at": NOW} | more
    return AttemptRecord("job", number, status, **fields)


def put_back(number: int, finished_at: int, reason: Reason = Reason.UNKNOWN_TASK) -> AttemptRecord:
    return row(number, AttemptStatus.RELEASED, finished_at=finished_at, detail=str(reason))


def put_backs(outcome: Unrunnable, *, until: State = State.DEAD) -> tuple[list[float], Transition]:
    """The delays of one put-back after another, and the transition that ended them."""
    history: list[AttemptRecord] = []
    delays: list[float] = []
    now = NOW
    for number in range(1, 1000):
        transition = settle_unrunnable(TOKEN, claimed(number), outcome, history, now=now)
        if transition.to is until:
            return delays, transition
        assert transition.delay is not None
        delays.append(transition.delay / MICROS_PER_SECOND)
        history.insert(0, put_back(number, now, outcome.reason))
        now += transition.delay
    raise AssertionError("it went on for ever")


@pytest.mark.parametrize("outcome", [UNKNOWN, MISFIT], ids=["unknown_task", "invalid_payload"])
def test_unrunnable_is_put_back_with_delays_doubling_from_1_to_30_seconds_for_5_minutes_then_dead(outcome):
    delays, last = put_backs(outcome)
    assert delays[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert set(delays[5:]) == {30}
    assert sum(delays[:-1]) < 300 <= sum(delays)  # the first time at or after five minutes is the last
    assert (last.to, last.reason, last.error) == (State.DEAD, outcome.reason, outcome.error)
    assert last.status is AttemptStatus.FAILED


def test_a_put_back_counts_nothing_and_says_why():
    transition = settle_unrunnable(TOKEN, claimed(attempts=3), MISFIT, [], now=NOW)
    assert (transition.status, transition.to) == (AttemptStatus.RELEASED, State.READY)
    assert (transition.attempts, transition.started_at) == (3, None)
    assert (transition.error, transition.detail) == ("x is missing", "invalid_payload")


def test_the_grace_counts_from_the_first_time_whichever_of_the_two_it_was():
    history = [put_back(2, NOW - 10, Reason.INVALID_PAYLOAD), put_back(1, NOW - 300 * MICROS_PER_SECOND)]
    transition = settle_unrunnable(TOKEN, claimed(3), MISFIT, history, now=NOW)
    assert (transition.to, transition.reason) == (State.DEAD, Reason.INVALID_PAYLOAD)
    assert settle_unrunnable(TOKEN, claimed(3), MISFIT, history, now=NOW - 1).to is State.READY


def test_the_grace_is_a_setting():
    assert settle_unrunnable(TOKEN, claimed(), UNKNOWN, [], now=NOW, grace_seconds=0).to is State.DEAD
    history = [put_back(1, NOW - 60 * MICROS_PER_SECOND)]
    assert settle_unrunnable(TOKEN, claimed(2), UNKNOWN, history, now=NOW, grace_seconds=60).to is State.DEAD
    assert settle_unrunnable(TOKEN, claimed(2), UNKNOWN, history, now=NOW, grace_seconds=61).to is State.READY


def test_an_execution_in_between_begins_a_new_grace():
    old = put_back(1, NOW - 10_000 * MICROS_PER_SECOND)
    ran = row(2, AttemptStatus.FAILED, started_at=NOW - 9, finished_at=NOW - 8)
    transition = settle_unrunnable(TOKEN, claimed(3), UNKNOWN, [ran, old], now=NOW)
    assert (transition.to, transition.delay) == (State.READY, MICROS_PER_SECOND)


def test_a_hand_back_in_between_does_not_begin_a_new_grace():
    old = put_back(1, NOW - 10_000 * MICROS_PER_SECOND)
    handed_back = row(2, AttemptStatus.RELEASED)
    assert settle_unrunnable(TOKEN, claimed(3), UNKNOWN, [handed_back, old], now=NOW).to is State.DEAD


def test_a_claim_that_is_lost_before_the_job_begins_does_not_begin_a_new_grace():
    """Whoever claimed it may not have known it either."""
    old = put_back(1, NOW - 10_000 * MICROS_PER_SECOND)
    lost_unbegun = row(2, AttemptStatus.LOST)
    assert settle_unrunnable(TOKEN, claimed(3), UNKNOWN, [lost_unbegun, old], now=NOW).to is State.DEAD


def test_the_grace_stands_still_while_a_live_worker_knows_the_task():
    """It goes on where it stood: a worker that comes and goes does not keep the job for ever."""
    at = NOW - 1_000 * MICROS_PER_SECOND
    aside = settle_known_elsewhere(TOKEN, claimed(3))
    history = [
        put_back(4, at + 700 * MICROS_PER_SECOND),
        row(3, aside.status, detail=aside.detail, finished_at=at + 210 * MICROS_PER_SECOND),
        put_back(2, at + 200 * MICROS_PER_SECOND),
        put_back(1, at),
    ]
    end = at + 800 * MICROS_PER_SECOND  # 200 s before the worker came, 100 s after it went
    assert unrunnable_until(history) == end
    assert settle_unrunnable(TOKEN, claimed(5), UNKNOWN, history, now=end - 1).to is State.READY
    assert settle_unrunnable(TOKEN, claimed(5), UNKNOWN, history, now=end).to is State.DEAD
    assert unrunnable_until(history[1:]) is None
    later = NOW + 10_000 * MICROS_PER_SECOND
    assert settle_unrunnable(TOKEN, claimed(4), UNKNOWN, history[1:], now=later).to is State.READY


def test_put_backs_of_an_earlier_run_do_not_count():
    history = [put_back(4, NOW - 10_000 * MICROS_PER_SECOND)]
    job = claimed(5, first_number=5)
    transition = settle_unrunnable(TOKEN, job, UNKNOWN, history, now=NOW)
    assert (transition.to, transition.delay) == (State.READY, MICROS_PER_SECOND)


# -- losses and poison ---------------------------------------------------------------------------


def lease(**more: Any) -> ExpiredLease:
    fields: dict[str, Any] = {
        "token": "collector/c1",
        "now": NOW,
        "expires_at": NOW + 30,
        "worker": "worker-1",
        "alone": False,
        "supervised": False,
        "worker_survived": False,
        "jobs": [],
        "running": {},
        "expired_at": NOW - 1,
        "max_losses": DEFAULT_MAX_LOSSES,
    }
    return ExpiredLease(**fields | more)


def lost(number: int, kind: str, **more: Any) -> AttemptRecord:
    return row(number, AttemptStatus.LOST, detail=kind, **more)


def newest_first(*rows: AttemptRecord) -> list[AttemptRecord]:
    return sorted(rows, key=lambda each: -each.number)


class Losing:
    """A job that is lost again and again, as its collector sees it."""

    def __init__(self, **more: Any) -> None:
        self.history: list[AttemptRecord] = []
        self.number = 0
        self.more = more
        self.suspect = False

    def lose(self, **about: Any) -> Transition:
        """Lose its next execution: alone if it is a suspect, else together with others."""
        self.number += 1
        about.setdefault("alone", self.suspect)
        transition = settle_loss(lease(**about), claimed(self.number, **self.more), self.history)
        self.history.insert(
            0,
            row(
                self.number,
                AttemptStatus.LOST,
                detail=transition.detail,
                worker_survived=transition.worker_survived,
            ),
        )
        self.suspect = transition.suspect
        return transition

    def end(self, status: AttemptStatus, started_at: int | None = STARTED) -> None:
        self.number += 1
        self.history.insert(0, row(self.number, status, started_at=started_at))
        self.suspect = False


def test_a_loss_is_not_a_failure():
    transition = settle_loss(lease(running={"job": 77}), claimed(attempts=3), [])
    assert (transition.status, transition.to) == (AttemptStatus.LOST, State.READY)
    assert (transition.attempts, transition.delay) == (3, None)  # at once, in the place it had
    assert transition.started_at == 77  # as far as a heartbeat told
    assert transition.token == "collector/c1"
    assert transition.worker == "worker-1"
    assert transition.error is not None
    assert "worker-1" in transition.error


def test_a_job_lost_with_others_is_rerun_normally_once():
    job = Losing()
    first = job.lose()
    assert (first.to, first.suspect, first.detail) == (State.READY, False, LOST_TOGETHER)


def test_from_the_second_shared_loss_in_a_row_it_is_a_suspect():
    job = Losing()
    job.lose()
    assert job.lose().suspect


@pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.TIMED_OUT])
def test_a_real_execution_in_between_breaks_the_row(status):
    job = Losing()
    job.lose()
    job.end(status)
    assert not job.lose().suspect
    assert job.lose().suspect


def test_a_hand_back_in_between_does_not_break_the_row():
    job = Losing()
    job.lose()
    job.end(AttemptStatus.RELEASED, started_at=None)
    assert job.lose().suspect


def test_shared_losses_alone_never_condemn():
    job = Losing()
    for _ in range(500):
        transition = job.lose(alone=False)
        assert transition.to is State.READY


def test_only_losses_while_alone_count_and_the_last_permitted_is_poison():
    job = Losing()
    job.lose()
    job.lose()
    for _ in range(DEFAULT_MAX_LOSSES - 1):
        transition = job.lose()
        assert (transition.to, transition.suspect, transition.detail) == (State.READY, True, LOST_ALONE)
    last = job.lose()
    assert (last.to, last.reason, last.suspect) == (State.DEAD, Reason.POISON, False)
    assert last.status is AttemptStatus.LOST


@pytest.mark.parametrize("max_losses", [1, 2, 7])
def test_max_losses_is_a_setting(max_losses):
    alone = lease(alone=True, max_losses=max_losses)
    before = newest_first(*(lost(n, LOST_ALONE) for n in range(1, max_losses)))
    assert settle_loss(alone, claimed(50), before).reason is Reason.POISON
    assert settle_loss(alone, claimed(50), before[1:]).to is (State.READY if max_losses > 1 else State.DEAD)


def test_a_newly_stored_step_resets_the_counts():
    """Losses from before the attempt that stored it no longer count; its own loss does."""
    before = newest_first(*(lost(n, LOST_ALONE) for n in range(1, 9)))
    alone = lease(alone=True, max_losses=2)
    assert settle_loss(alone, claimed(9), before).to is State.DEAD
    assert settle_loss(alone, claimed(9), before, last_step=9).to is State.READY
    assert settle_loss(alone, claimed(9), before, last_step=8).to is State.DEAD
    assert settle_loss(replace(alone, max_losses=3), claimed(9), before, last_step=8).to is State.READY
    together = newest_first(lost(1, LOST_TOGETHER))
    assert settle_loss(lease(), claimed(2), together).suspect
    assert not settle_loss(lease(), claimed(2), together, last_step=2).suspect


def test_an_outage_counts_against_no_job():
    job = Losing()
    for _ in range(SURVIVED_LOSSES_SUSPECT - 1):
        transition = job.lose(worker_survived=True)
        assert (transition.to, transition.suspect) == (State.READY, False)
        assert transition.worker_survived
    assert job.lose(
        worker_survived=True
    ).suspect  # a row this long costs it no more than being executed alone


def test_losses_that_the_worker_survived_do_not_count_against_a_suspect():
    before = [lost(n, LOST_ALONE, worker_survived=True) for n in range(SURVIVED_LOSSES_MAX - 1, 0, -1)]
    assert settle_loss(lease(alone=True), claimed(31), before).to is State.READY


def test_shared_loss_that_the_worker_survived_makes_no_suspect_of_the_next_one():
    before = [lost(1, LOST_TOGETHER, worker_survived=True)]
    assert not settle_loss(lease(), claimed(2), before).suspect


def test_suspect_whose_worker_survives_its_lease_stays_a_suspect():
    before = newest_first(lost(1, LOST_TOGETHER), lost(2, LOST_TOGETHER))
    transition = settle_loss(lease(alone=True, worker_survived=True), claimed(3), before)
    assert (transition.to, transition.suspect) == (State.READY, True)


def test_losses_although_a_supervisor_was_there_have_a_limit_of_20_of_their_own():
    job = Losing()
    for _ in range(SUPERVISED_MAX_LOSSES - 1):
        transition = job.lose(supervised=True)
        assert (transition.to, transition.suspect) == (State.READY, False)
        assert transition.detail == LOST_SUPERVISED
    last = job.lose(supervised=True)
    assert (last.to, last.reason) == (State.DEAD, Reason.POISON)
    assert SUPERVISED_MAX_LOSSES == 20


def test_supervised_losses_count_neither_as_shared_nor_as_alone_ones():
    before = newest_first(*(lost(n, LOST_SUPERVISED) for n in range(1, 15)))
    assert not settle_loss(lease(), claimed(15), before).suspect
    assert settle_loss(lease(alone=True), claimed(15), before).to is State.READY


@pytest.mark.parametrize("about", [{}, {"alone": True}, {"supervised": True}, {"worker_survived": True}])
def test_a_lost_at_most_once_job_is_dead_since_nobody_knows_whether_it_began(about):
    job = claimed(delivery=Delivery.AT_MOST_ONCE)
    transition = settle_loss(lease(**about), job, [])
    assert (transition.to, transition.reason) == (State.DEAD, Reason.LOST)


def test_a_new_run_begins_with_no_losses():
    """A requeue and a next occurrence begin a new run; what came before its first number is another's."""
    before = newest_first(*(lost(n, LOST_ALONE) for n in range(1, 30)))
    transition = settle_loss(lease(alone=True), claimed(30, first_number=30), before)
    assert (transition.to, transition.suspect) == (State.READY, True)
    before = newest_first(lost(1, LOST_TOGETHER))
    assert not settle_loss(lease(), claimed(2, first_number=2), before).suspect


def survived(number: int, kind: str = LOST_TOGETHER) -> AttemptRecord:
    return lost(number, kind, worker_survived=True)


@pytest.mark.parametrize("known", [True, False])
def test_losses_that_the_worker_survives_end_in_a_limit_of_their_own(known):
    """A handler that blocks the loop past the lease: ten in a row make it a suspect, twenty while alone end it."""
    history: list[AttemptRecord] = []
    seen: list[tuple[State, bool, Reason | None]] = []
    alone = False
    while len(seen) < 50 and (not seen or seen[-1][0] is State.READY):
        about = lease(alone=alone, worker_survived=known)
        transition = settle_loss(about, claimed(len(history) + 1), history)
        seen.append((transition.to, transition.suspect, transition.reason))
        alone = transition.suspect
        history.insert(0, survived(len(history) + 1))  # known by now: its worker was refused
    unknown = 0 if known else 1  # the latest loss counts once its worker has proved that it is alive
    assert seen == [
        *[(State.READY, False, None)] * (SURVIVED_LOSSES_SUSPECT - 1 + unknown),
        *[(State.READY, True, None)] * (SURVIVED_LOSSES_MAX - SURVIVED_LOSSES_SUSPECT),
        (State.DEAD, False, Reason.LOST),
    ]


def test_an_outage_ends_no_job_that_is_not_alone():
    before = newest_first(*(survived(n) for n in range(1, 100)))
    transition = settle_loss(lease(worker_survived=True), claimed(100), before)
    assert (transition.to, transition.suspect) == (State.READY, True)


@pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.SLEPT, AttemptStatus.LOST])
def test_any_other_outcome_breaks_the_row_of_survived_losses(status):
    alone = lease(alone=True, worker_survived=True)
    before = newest_first(*(survived(n) for n in range(1, 31)))
    assert settle_loss(alone, claimed(31), before).reason is Reason.LOST
    before[10] = replace(before[10], status=status, worker_survived=False)
    assert settle_loss(alone, claimed(31), before).to is State.READY


def test_survived_losses_from_before_the_last_step_or_the_run_do_not_count():
    alone = lease(alone=True, worker_survived=True)
    before = newest_first(*(survived(n) for n in range(1, 31)))
    assert settle_loss(alone, claimed(31), before, last_step=20).to is State.READY
    assert settle_loss(alone, claimed(31, first_number=20), before).to is State.READY


@given(
    kinds=st.lists(
        st.tuples(st.sampled_from([LOST_TOGETHER, LOST_ALONE, LOST_SUPERVISED]), st.booleans()),
        max_size=SURVIVED_LOSSES_MAX - 2,
    ),
    max_losses=st.integers(1, 10),
)
def test_a_job_that_was_never_alone_nor_supervised_is_never_condemned(kinds, max_losses):
    before = newest_first(*(lost(n, kind, worker_survived=o) for n, (kind, o) in enumerate(kinds, 1)))
    number = len(before) + 1
    for about in ({}, {"worker_survived": True}, {"alone": True, "worker_survived": True}):
        transition = settle_loss(lease(max_losses=max_losses, **about), claimed(number), before)
        assert transition.to is State.READY


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 10))
def test_poison_takes_exactly_max_losses_alone_however_many_others_there_were(alone, others, max_losses):
    rows: Sequence[AttemptRecord] = [
        *(lost(n, LOST_ALONE) for n in range(1, alone + 1)),
        *(lost(n, LOST_TOGETHER) for n in range(alone + 1, alone + others + 1)),
    ]
    job = claimed(alone + others + 1)
    transition = settle_loss(lease(alone=True, max_losses=max_losses), job, newest_first(*rows))
    assert (transition.reason is Reason.POISON) == (alone + 1 >= max_losses)


def test_the_transitions_of_a_loss_are_allowed_by_the_lifecycle():
    for about in ({}, {"alone": True}, {"supervised": True}):
        for delivery in (None, *Delivery):
            job = replace(claimed(), delivery=delivery)
            transition = settle_loss(lease(max_losses=1, **about), job, [])
            assert transition.to in SETTLES[AttemptStatus.LOST]


def test_a_suspect_whose_whole_tree_was_killed_is_not_blamed_and_stays_one():
    before = newest_first(*(lost(n, LOST_ALONE) for n in range(1, 5)))
    transition = settle_loss(lease(alone=True, supervised=True), claimed(5), before)
    assert (transition.to, transition.suspect, transition.detail) == (State.READY, True, LOST_SUPERVISED)


def test_a_job_whose_handler_had_ended_counts_only_against_the_higher_limit():
    loss = Loss("c/1", "w", LOST_ENDED, "lost: worker w was killed by SIGKILL")
    history: list[AttemptRecord] = []
    for number in range(1, SUPERVISED_MAX_LOSSES):
        transition = weigh_loss(loss, claimed(number), history)
        assert (transition.to, transition.suspect) == (State.READY, False)
        history.insert(0, lost(number, LOST_ENDED))
    assert weigh_loss(loss, claimed(SUPERVISED_MAX_LOSSES), history).reason is Reason.POISON
