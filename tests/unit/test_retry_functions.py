"""Policies that bring code: what their functions are asked, and what stands in for one that goes wrong."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor import ConfigurationError, Failure, RetryAfter, RetryPolicy, Unrecoverable
from taskharbor.clock import MAX_SECONDS
from taskharbor.records import Reason
from taskharbor.rules.retry import ErrorInfo
from taskharbor.rules.retry_decision import decide_failure

EXACT: dict[str, Any] = {"max_attempts": 4, "initial": 1, "maximum": 60, "jitter": None}


def decided(policy: RetryPolicy, error: BaseException | None = None, failures: int = 0):
    return policy.decide(error or ValueError("no"), failures)


def test_delay_decides_how_long_to_wait():
    policy = RetryPolicy(**EXACT, delay=lambda failure: 10.0 * failure.number)
    assert [decided(policy, failures=n).delay_seconds for n in range(3)] == [10, 20, 30]
    assert decided(policy, failures=3).reason is Reason.EXHAUSTED  # the limit holds


def test_should_retry_decides_whether():
    policy = RetryPolicy(**EXACT, never_retry_on=["yes"], should_retry=lambda failure: failure.error == "yes")
    assert decided(policy, ValueError("yes")).delay_seconds == 1  # before the lists
    assert decided(policy, ValueError("no")).reason is Reason.NOT_RETRYABLE
    assert decided(policy, ValueError("yes"), failures=3).reason is Reason.EXHAUSTED


def test_none_leaves_it_to_the_rules():
    policy = RetryPolicy(
        **EXACT, never_retry_on=["404"], delay=lambda failure: None, should_retry=lambda failure: None
    )
    assert decided(policy, failures=1).delay_seconds == 2
    assert decided(policy, ValueError("404")).reason is Reason.NOT_RETRYABLE


def test_a_function_sees_the_failure():
    seen: list[Any] = []
    policy = RetryPolicy(**EXACT, delay=seen.append)
    decided(policy, FileNotFoundError("gone: a.txt"), failures=2)
    [failure] = seen
    assert (failure.number, failure.limit, failure.error) == (3, 4, "gone: a.txt")
    assert (failure.type_name, failure.job) == ("FileNotFoundError", None)
    assert failure.matches(OSError)
    assert failure.matches(ValueError, "GONE")
    assert not failure.matches(ValueError, "there")


def test_it_sees_the_same_of_an_error_from_another_process():
    info = ErrorInfo.of(FileNotFoundError("gone"))
    policy = RetryPolicy(**EXACT, should_retry=lambda failure: failure.matches(OSError))
    assert policy.decide(info) == policy.decide(FileNotFoundError("gone"))


def test_what_a_handler_says_goes_before_the_functions():
    def never(failure: Failure) -> bool:
        raise AssertionError("not asked")

    policy = RetryPolicy(**EXACT, should_retry=never, delay=never)
    assert decided(policy, RetryAfter(7)).delay_seconds == 7
    assert decided(policy, Unrecoverable("no")).reason is Reason.UNRECOVERABLE
    assert policy.decide(ValueError("no"), at_most_once=True).reason is Reason.NOT_RETRYABLE


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_a_function_that_raises_is_passed_over_and_told_of(error):
    def broken(failure: Failure) -> Any:
        raise error

    policy = RetryPolicy(**EXACT, never_retry_on=["404"], delay=broken, should_retry=broken)
    decision = decided(policy, failures=1)
    assert decision.delay_seconds == 2
    assert [problem.partition(" failed: ")[0] for problem in decision.problems] == ["should_retry", "delay"]
    assert type(error).__name__ in decision.problems[0]
    assert decided(policy, ValueError("404")).reason is Reason.NOT_RETRYABLE


async def _later() -> float:
    return 1.0


# An id says no address: every process of a run has to find the same ones.
@pytest.mark.parametrize(
    "answer", [math.nan, "5", True, [1], _later], ids=["nan", "5", "True", "[1]", "_later"]
)
def test_a_delay_that_is_none_is_passed_over_and_told_of(answer):
    policy = RetryPolicy(**EXACT, delay=lambda failure: answer() if callable(answer) else answer)
    decision = decided(policy)
    assert decision.delay_seconds == 1
    [problem] = decision.problems
    assert "a number of seconds, a timedelta or None" in problem


@pytest.mark.parametrize("answer", [1, 0, "yes", 0.5])
def test_a_verdict_that_is_none_is_passed_over_and_told_of(answer):
    decision = decided(RetryPolicy(**EXACT, should_retry=lambda failure: answer))
    assert decision.delay_seconds == 1
    assert "True, False or None" in decision.problems[0]


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (timedelta(minutes=2), 120),
        (-5, 0),
        (math.inf, MAX_SECONDS),
        (10**400, MAX_SECONDS),
        (-math.inf, 0),
        (3600, 3600),  # `maximum` caps the policy's own numbers
    ],
)
def test_a_delay_is_bounded(answer, seconds):
    decision = decided(RetryPolicy(**EXACT, delay=lambda failure: answer))
    assert (decision.delay_seconds, decision.problems) == (seconds, ())


@given(st.integers() | st.floats() | st.timedeltas() | st.text() | st.booleans() | st.none())
def test_any_answer_makes_a_decision(answer):
    policy = RetryPolicy(**EXACT, delay=lambda failure: answer, should_retry=lambda failure: answer)
    decision = decided(policy)
    assert decision.is_dead or 0 <= (decision.delay_seconds or 0) <= MAX_SECONDS


class Doubling(RetryPolicy):
    def delay(self, n: int, random=None) -> float:
        return 2.0**n

    def is_retryable(self, error) -> bool:
        raise RuntimeError("broken")


def test_a_class_of_its_own_is_asked_and_may_fail():
    decision = decided(Doubling(**EXACT), failures=2)
    assert decision.delay_seconds == 8
    assert decision.problems == ("is_retryable failed: RuntimeError: broken",)


def test_a_changed_copy_keeps_the_functions():
    policy = RetryPolicy(**EXACT, delay=lambda failure: 7, should_retry=lambda failure: True)
    changed = replace(policy, max_attempts=9)
    assert changed.follows_code
    assert decided(changed, failures=7).delay_seconds == 7
    assert not replace(policy, delay_function=None, should_retry=None).follows_code


def test_worker_and_task_may_have_them_and_the_job_goes_first():
    by_code = RetryPolicy(**EXACT, delay=lambda failure: 7)
    plain = RetryPolicy(**EXACT)
    assert decide_failure(ValueError(), failures=0, worker_policy=by_code).delay_seconds == 7
    assert decide_failure(ValueError(), failures=0, task_policy=by_code).limit == 4
    asked = decide_failure(ValueError(), failures=0, job_policy=plain, task_policy=by_code)
    assert asked.delay_seconds == 1


# -- what may be given ---------------------------------------------------------------------------


async def later(failure: Failure) -> float:
    return 1


class Later:
    async def __call__(self, failure: Failure) -> float:
        return 1


@pytest.mark.parametrize("name", ["delay", "should_retry"])
@pytest.mark.parametrize(
    ("function", "told"),
    [
        (5, "must be a function of a Failure"),
        (later, "declare .* with `def`"),
        (Later(), "declare .* with `def`"),
        (lambda: 1, "called with one argument"),
        (lambda n, error: 1, "called with one argument"),
    ],
)
def test_what_cannot_be_asked_is_refused(name, function, told):
    with pytest.raises(ConfigurationError, match=f"{name}.*{told}"):
        RetryPolicy(**{name: function})


def test_whatever_can_be_called_with_one_argument_is_taken():
    functions: list[Any] = [lambda failure: 1, functools.partial(max, 1), lambda *failures: 1, float]
    for function in functions:
        assert RetryPolicy(delay=function).follows_code
