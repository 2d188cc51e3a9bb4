"""The rules of failure and retry, one test for each."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor import presets
from taskharbor.clock import MAX_SECONDS
from taskharbor.errors import ConfigurationError, RetryAfter, Unrecoverable
from taskharbor.records import Reason
from taskharbor.rules.retry import (
    UNSET,
    Decision,
    ErrorInfo,
    RetryPolicy,
    TypeName,
    resolve_max_attempts,
)
from taskharbor.rules.retry_decision import decide_failure, effective_limit, policy_in_force

BOOM = ValueError("boom")
LOWEST, HIGHEST = 0.0, 1 - 2**-53  # the ends of what random.random() returns


def steady(max_attempts: int = 25, **options: Any) -> RetryPolicy:
    return RetryPolicy(max_attempts=max_attempts, initial=1, maximum=60, jitter=None, **options)


# -- limits --------------------------------------------------------------------------------------


def test_max_attempts_5_retries_four_failures_and_the_fifth_is_dead():
    decisions = [
        decide_failure(BOOM, failures=n, job_max_attempts=5, worker_policy=presets.DEFAULT) for n in range(5)
    ]
    assert [decision.is_dead for decision in decisions] == [False, False, False, False, True]
    assert [decision.attempts for decision in decisions] == [1, 2, 3, 4, 5]
    assert decisions[-1] == Decision.dead(5, 5, Reason.EXHAUSTED)


def test_a_failure_beyond_the_limit_is_dead_too():
    decision = decide_failure(BOOM, failures=40, job_max_attempts=5, worker_policy=presets.DEFAULT)
    assert decision.reason is Reason.EXHAUSTED


@pytest.mark.parametrize("max_retries", [0, 1, 4, 9_999])
def test_max_retries_is_one_less_than_max_attempts(max_retries):
    assert RetryPolicy(max_retries=max_retries) == RetryPolicy(max_attempts=max_retries + 1)


def test_both_spellings_together_are_refused():
    with pytest.raises(ConfigurationError, match=r"max_attempts=3 and max_retries=2 were both given.*one"):
        RetryPolicy(max_attempts=3, max_retries=2)
    with pytest.raises(ConfigurationError, match="both given"):
        resolve_max_attempts(0, 0)


def test_neither_spelling_leaves_the_limit_to_others():
    assert resolve_max_attempts(None, None) is None


@pytest.mark.parametrize(
    ("job", "policy", "worker", "limit"),
    [
        (5, 11, 25, 5),  # the job's own limit comes first
        (None, 11, 25, 11),  # else the policy's
        (0, 11, 25, 11),  # 0 is "no limit of its own"
        (-1, 11, 25, 11),
        (100, 11, 25, 25),  # the worker caps a job
        (None, 100, 25, 25),  # and a policy
        (100, 11, 0, 100),  # a worker with 0 lifts the cap
        (10_000, 11, None, 10_000),  # a worker without a policy caps nothing
        (None, 0, 25, 25),  # without a limit of its own, the worker's is the limit
        (None, 0, 0, 0),
        (None, 0, None, 0),
    ],
)
def test_effective_limit(job, policy, worker, limit):
    worker_policy = None if worker is None else steady(worker)
    assert effective_limit(job, steady(policy), worker_policy) == limit


def test_the_jobs_limit_goes_before_the_tasks():
    def limit(job: int | None, task: int | None) -> int:
        return decide_failure(
            BOOM, failures=0, job_max_attempts=job, task_max_attempts=task, worker_policy=presets.DEFAULT
        ).limit

    assert limit(3, 5) == 3
    assert limit(None, 5) == 5
    assert limit(0, 5) == 5
    assert limit(None, None) == 25


def test_no_limit_anywhere_is_dead_on_the_first_failure():
    decision = decide_failure(BOOM, failures=0, worker_policy=steady(0))
    assert decision == Decision.dead(1, 0, Reason.EXHAUSTED)


# -- which policy --------------------------------------------------------------------------------


def test_the_policy_in_force_is_the_jobs_else_the_tasks_else_the_workers():
    job, task, worker = steady(1), steady(2), steady(3)
    assert policy_in_force(job, task, worker) is job
    assert policy_in_force(UNSET, task, worker) is task
    assert policy_in_force(UNSET, UNSET, worker) is worker
    assert policy_in_force(UNSET, UNSET, None) is None


def test_an_explicit_none_ends_the_search():
    assert policy_in_force(None, steady(2), steady(3)) is None
    assert policy_in_force(UNSET, None, steady(3)) is None


@pytest.mark.parametrize(
    "policies",
    [
        {"job_policy": None, "task_policy": steady(), "worker_policy": steady()},
        {"task_policy": None, "worker_policy": steady()},
        {"worker_policy": None},
    ],
)
def test_no_policy_is_dead_on_the_first_failure_whatever_max_attempts_says(policies):
    decision = decide_failure(BOOM, failures=0, job_max_attempts=5, **policies)
    assert decision == Decision.dead(1, 0, Reason.EXHAUSTED)


def test_a_jobs_policy_works_under_a_worker_without_one():
    decision = decide_failure(BOOM, failures=0, job_policy=steady(3), worker_policy=None)
    assert decision == Decision.retry(1, 3, 1.0)


def test_the_delay_is_the_policy_in_forces_for_the_failure_just_recorded():
    decision = decide_failure(BOOM, failures=3, task_policy=steady(), worker_policy=presets.DEFAULT)
    assert decision == Decision.retry(4, 25, 8.0)


# -- classification ------------------------------------------------------------------------------


def test_unrecoverable_is_dead_at_once():
    class NoSuchUser(Unrecoverable):
        pass

    for error in (Unrecoverable("gone"), NoSuchUser("gone")):
        decision = decide_failure(error, failures=0, worker_policy=presets.DEFAULT)
        assert decision == Decision.dead(1, 25, Reason.UNRECOVERABLE)


def test_unrecoverable_is_said_even_of_the_last_permitted_failure():
    decision = steady(1, never_retry_on=["gone"]).decide(Unrecoverable("gone"), at_most_once=True)
    assert decision.reason is Reason.UNRECOVERABLE


def test_not_retryable_is_said_even_of_the_last_permitted_failure():
    assert steady(1, never_retry_on=["boom"]).decide(BOOM).reason is Reason.NOT_RETRYABLE


def test_without_classification_every_error_is_retried():
    assert steady().decide(BOOM) == Decision.retry(1, 25, 1.0)


@pytest.mark.parametrize(
    ("pattern", "error", "matches"),
    [
        ("timeout", OSError("Connection TIMEOUT after 3 s"), True),  # contained in the text, ignoring case
        ("TimeOut", TimeoutError(), True),  # in the type's name
        ("timeout", OSError("timed out"), False),
        ("a.c", OSError("abc"), False),  # no regular expressions
        ("STRASSE", OSError("Straße"), True),
        ("builtins", OSError("x"), False),  # the module is no part of the type's name
        (OSError, ConnectionResetError("x"), True),  # a type matches its subclasses
        (ConnectionResetError, OSError("x"), False),
        (TypeName("builtins", "OSError"), ConnectionResetError("x"), True),
        (TypeName("builtins", "ConnectionResetError"), OSError("x"), False),
        (TypeName("elsewhere", "OSError"), OSError("x"), False),
        (TypeName("__main__", "OSError"), OSError("x"), True),
    ],
)
def test_patterns(pattern, error, matches):
    assert steady(retry_on=[pattern]).is_retryable(error) is matches
    assert steady(never_retry_on=[pattern]).is_retryable(error) is not matches
    # ... and the same when the error comes from another process.
    assert steady(retry_on=[pattern]).is_retryable(ErrorInfo.of(error)) is matches


def test_never_retry_on_wins():
    policy = steady(retry_on=["timeout"], never_retry_on=[OSError])
    assert policy.decide(TimeoutError("timeout")).reason is Reason.NOT_RETRYABLE


def test_a_retry_on_that_does_not_match_is_dead():
    policy = steady(retry_on=["timeout", ConnectionError])
    assert policy.decide(BOOM) == Decision.dead(1, 25, Reason.NOT_RETRYABLE)
    assert not policy.decide(ConnectionRefusedError()).is_dead


def test_the_workers_classification_counts_where_its_policy_is_in_force():
    worker = steady(never_retry_on=["boom"])
    assert decide_failure(BOOM, failures=0, worker_policy=worker).reason is Reason.NOT_RETRYABLE
    assert not decide_failure(BOOM, failures=0, job_policy=steady(), worker_policy=worker).is_dead


def test_an_error_whose_text_cannot_be_had_is_still_decided():
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert not steady(never_retry_on=["text"]).decide(Broken()).is_dead
    assert steady(never_retry_on=["broken"]).decide(Broken()).is_dead


def test_at_most_once_is_never_retried_whatever_max_attempts_says():
    decision = decide_failure(
        BOOM, failures=0, job_max_attempts=10, at_most_once=True, worker_policy=presets.DEFAULT
    )
    assert decision == Decision.dead(1, 10, Reason.NOT_RETRYABLE)


# -- RetryAfter ----------------------------------------------------------------------------------


def test_retry_after_takes_the_delay_it_asks_for_and_counts_as_an_attempt():
    policy = steady(3)
    assert policy.decide(RetryAfter(90)) == Decision.retry(1, 3, 90.0)
    assert policy.decide(RetryAfter(0), failures=1) == Decision.retry(2, 3, 0.0)
    assert policy.decide(RetryAfter(90), failures=2) == Decision.dead(3, 3, Reason.EXHAUSTED)


def test_retry_after_is_a_classification_of_its_own():
    policy = steady(retry_on=["timeout"], never_retry_on=["404"])
    assert policy.decide(RetryAfter(404)).delay_seconds == 404.0


def test_retry_after_does_not_override_at_most_once_or_a_missing_policy():
    assert steady().decide(RetryAfter(1), at_most_once=True).reason is Reason.NOT_RETRYABLE
    assert decide_failure(RetryAfter(1), failures=0, worker_policy=None).reason is Reason.EXHAUSTED


@pytest.mark.parametrize("asked", [math.inf, math.nan, -5.0, 1e300])
def test_a_delay_out_of_all_bounds_is_brought_into_them(asked):
    delay = steady().decide(ErrorInfo("RetryAfter", "", retry_after_seconds=asked)).delay_seconds
    assert delay is not None
    assert 0 <= delay <= MAX_SECONDS


def test_an_error_from_another_process_is_decided_like_the_error_itself():
    policy = steady(3, retry_on=[OSError])
    for error in (BOOM, OSError("x"), TimeoutError(), Unrecoverable("x"), RetryAfter(7)):
        stored = msgspec.json.encode(ErrorInfo.of(error))
        assert policy.decide(msgspec.json.decode(stored, type=ErrorInfo)) == policy.decide(error)


# -- delay ---------------------------------------------------------------------------------------


def test_delay_grows_by_the_multiplier_up_to_the_maximum():
    policy = RetryPolicy(initial=0.5, maximum=30, multiplier=2, jitter=None)
    assert [policy.delay(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_proportional_jitter_comes_after_the_cap():
    policy = RetryPolicy(initial=1, maximum=10, multiplier=2, jitter=0.2)
    assert policy.delay(20, random=lambda: LOWEST) == pytest.approx(8)
    assert policy.delay(20, random=lambda: 0.5) == pytest.approx(10)
    assert policy.delay(20, random=lambda: HIGHEST) == pytest.approx(12)


def test_full_jitter_is_between_nothing_and_the_delay():
    policy = RetryPolicy(initial=1, maximum=10, multiplier=2, jitter="full")
    assert policy.delay(3, random=lambda: LOWEST) == 0
    assert policy.delay(3, random=lambda: 0.25) == 1
    assert policy.delay(3, random=lambda: HIGHEST) == pytest.approx(4)


def test_the_decision_uses_the_random_source_it_is_given():
    policy = RetryPolicy(initial=4, maximum=4, jitter="full")
    assert policy.decide(BOOM, random=lambda: 0.25).delay_seconds == 1.0


def test_jitter_differs_from_call_to_call():
    assert len({presets.DEFAULT.delay(1) for _ in range(50)}) > 1


SECONDS = st.floats(0, MAX_SECONDS) | st.floats(0, 100)
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(0, 10_000),
    initial=SECONDS,
    maximum=SECONDS,
    multiplier=st.floats(1, 4) | st.floats(1, sys.float_info.max),
    jitter=st.none() | st.just("full") | st.floats(0, 1),
    retry_on=st.lists(st.sampled_from(["timeout", "x", OSError, KeyError]), max_size=3),
    never_retry_on=st.lists(st.sampled_from(["404", "Boom", ValueError]), max_size=3),
)
FAILURES = st.integers(1, 10**6) | st.integers(1, 60) | st.just(10**400)


@given(POLICIES, FAILURES, st.floats(0, 1, exclude_max=True))
def test_delay_is_finite_and_in_bounds(policy, n, u):
    delay = policy.delay(n, random=lambda: u)
    assert math.isfinite(delay)
    spread = policy.jitter if isinstance(policy.jitter, float) else 0.0
    assert 0 <= delay <= policy.maximum * (1 + spread)
    if policy.jitter != "full":
        assert delay >= min(policy.initial, policy.maximum) * (1 - spread)


@given(POLICIES, st.integers(1, 2000))
def test_delay_never_shrinks_without_jitter(policy, n):
    exact = dataclasses.replace(policy, jitter=None)
    assert exact.delay(n) <= exact.delay(n + 1)


@pytest.mark.parametrize("n", [0, -1, 1.0, True, "1", None])
def test_delay_counts_failures_from_one(n):
    with pytest.raises(ConfigurationError, match="an integer from 1"):
        RetryPolicy().delay(n)


@given(
    POLICIES,
    st.integers(0, 10_000),
    st.none() | st.integers(0, 10_000),
    st.none() | POLICIES,
    st.booleans(),
    st.sampled_from([BOOM, TimeoutError("x"), Unrecoverable(), RetryAfter(3)]),
)
def test_a_decision_is_either_a_retry_below_the_limit_or_dead_with_a_reason(
    policy, failures, max_attempts, worker_policy, at_most_once, error
):
    decision = decide_failure(
        error,
        failures=failures,
        job_max_attempts=max_attempts,
        job_policy=policy,
        worker_policy=worker_policy,
        at_most_once=at_most_once,
    )
    assert decision.attempts == failures + 1
    if decision.is_dead:
        assert decision.delay_seconds is None
        assert decision.reason in {Reason.EXHAUSTED, Reason.UNRECOVERABLE, Reason.NOT_RETRYABLE}
    else:
        assert decision.attempts < decision.limit <= 10_000
        assert decision.delay_seconds is not None
        assert decision.delay_seconds >= 0
        if worker_policy is not None and worker_policy.max_attempts:
            assert decision.limit <= worker_policy.max_attempts


# -- what may be given ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": -1}, "max_attempts must be an integer from 0 to 10000, not -1"),
        ({"max_attempts": 10_001}, "max_attempts must be an integer from 0 to 10000, not 10001"),
        ({"max_attempts": 2.0}, "max_attempts must be an integer"),
        ({"max_attempts": True}, "max_attempts must be an integer"),
        ({"max_attempts": "3"}, "max_attempts must be an integer .* not '3'"),
        ({"max_retries": 10_000}, "max_retries must be an integer from 0 to 9999, not 10000"),
        ({"max_retries": -1}, "max_retries must be an integer"),
        ({"initial": -0.1}, "initial must be a number of seconds from 0"),
        ({"initial": math.nan}, "initial .* not nan"),
        ({"initial": math.inf}, "initial .* not inf"),
        ({"initial": True}, "initial .* not True"),
        ({"initial": "1s"}, "initial .* not '1s'"),
        ({"initial": None}, "initial .* not None"),
        ({"maximum": -1}, "maximum .* not -1"),
        ({"maximum": math.inf}, "maximum .* not inf"),
        ({"maximum": 10**400}, "maximum must be a number of seconds"),
        ({"multiplier": 0.5}, "multiplier must be a finite number from 1 .* not 0.5"),
        ({"multiplier": math.nan}, "multiplier .* not nan"),
        ({"multiplier": math.inf}, "multiplier .* not inf"),
        ({"multiplier": 10**400}, "multiplier must be a finite number"),
        ({"multiplier": True}, "multiplier .* not True"),
        ({"multiplier": None}, "multiplier .* not None"),
        ({"jitter": 1.5}, "jitter must be .* not 1.5"),
        ({"jitter": -0.1}, "jitter must be .* not -0.1"),
        ({"jitter": math.nan}, "jitter must be .* not nan"),
        ({"jitter": True}, "jitter must be .* not True"),
        ({"jitter": "half"}, "jitter must be .* not 'half'"),
        ({"retry_on": "timeout"}, r"retry_on must be a list .* write retry_on=\[\.\.\.\]"),
        ({"retry_on": OSError}, "retry_on must be a list"),
        ({"retry_on": 5}, "retry_on must be a list"),
        ({"retry_on": [""]}, "retry_on holds the blank string"),
        ({"never_retry_on": ["ok", "  "]}, "never_retry_on holds the blank string"),
        ({"never_retry_on": [404]}, "never_retry_on takes exception types and strings, not 404"),
        ({"never_retry_on": [int]}, "never_retry_on takes exception types and strings"),
    ],
)
def test_a_bad_option_is_refused_with_its_name_and_value(options, message):
    with pytest.raises(ConfigurationError, match=message):
        RetryPolicy(**options)


def test_what_is_left_out_is_as_in_the_default_preset():
    assert RetryPolicy() == presets.DEFAULT


def test_the_default_maximum_does_not_shorten_an_initial_that_was_asked_for():
    assert RetryPolicy(initial=30).maximum == 30


def test_a_given_maximum_caps_even_the_initial_delay():
    assert RetryPolicy(initial=30, maximum=10, jitter=None).delay(1) == 10


def test_jitter_of_nothing_is_no_jitter():
    assert RetryPolicy(jitter=0).jitter is None


def test_a_policy_is_a_value():
    policy = RetryPolicy(max_attempts=3, retry_on=[OSError, "timeout"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_attempts = 4  # type: ignore[misc]
    assert policy == RetryPolicy(max_attempts=3, retry_on=(OSError, "timeout"))
    assert len({policy, copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))}) == 1
    assert dataclasses.replace(policy, max_attempts=9).max_attempts == 9


# -- stored with a job ---------------------------------------------------------------------------


def stored_and_read(policy: RetryPolicy) -> RetryPolicy:
    return RetryPolicy.from_dict(msgspec.json.decode(msgspec.json.encode(policy.to_dict())))


def texts_only(policy: RetryPolicy) -> RetryPolicy:
    return dataclasses.replace(
        policy,
        retry_on=tuple(pattern for pattern in policy.retry_on if isinstance(pattern, str)),
        never_retry_on=tuple(pattern for pattern in policy.never_retry_on if isinstance(pattern, str)),
    )


@given(POLICIES)
def test_a_stored_policy_is_the_same_policy(policy):
    read = stored_and_read(policy)
    assert texts_only(read) == texts_only(policy)
    assert stored_and_read(read) == read
    for error in (BOOM, TimeoutError("x"), KeyError("404"), ConnectionError("timeout")):
        assert read.is_retryable(error) == policy.is_retryable(error)


def test_a_stored_policy_is_compact():
    assert steady(4).to_dict() == {"max_attempts": 4, "initial": 1.0, "maximum": 60.0, "multiplier": 2.0}
    assert RetryPolicy(jitter="full", retry_on=["timeout"]).to_dict() == {
        "max_attempts": 25,
        "initial": 0.2,
        "maximum": 5.0,
        "multiplier": 2.0,
        "jitter": "full",
        "retry_on": ["timeout"],
    }


def test_a_stored_type_matches_by_name_and_so_do_its_subclasses():
    policy = steady(never_retry_on=[OSError, "404"])
    assert policy.to_dict()["never_retry_on_types"] == ["builtins:OSError"]
    read = stored_and_read(policy)
    assert read.decide(TimeoutError()).reason is Reason.NOT_RETRYABLE
    assert read.decide(BOOM).reason is None


def test_a_stored_string_is_never_taken_for_a_type():
    read = stored_and_read(steady(retry_on=["builtins:OSError"]))
    assert read.retry_on == ("builtins:OSError",)


def test_keys_of_a_newer_version_are_passed_over():
    assert RetryPolicy.from_dict({**steady().to_dict(), "invented_later": 1}) == steady()


@pytest.mark.parametrize("stored", [None, [], "x", {"initial": -1}, {"retry_on": None}, {"jitter": "half"}])
def test_a_damaged_stored_policy_is_a_clear_error(stored):
    with pytest.raises(ConfigurationError):
        RetryPolicy.from_dict(stored)
