"""Failure and retry: whether a failed job runs again, and when.

Everything here is a pure function over values. `decide_failure` is the whole rule, in the order in which
it is documented; the functions it calls are its steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, UnsetType

from taskharbor.clock import MAX_SECONDS
from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError
from taskharbor.records import Reason
from taskharbor.rules.retry import (
    Decision,
    ErrorInfo,
    Failure,
    RetryPolicy,
    Uniform,
    text_of,
    type_name,
    uniform,
)

if TYPE_CHECKING:
    from taskharbor.client.handle import Job

T = TypeVar("T")


def decide_failure(
    error: BaseException | ErrorInfo,
    *,
    failures: int,
    job_max_attempts: int | None = None,
    task_max_attempts: int | None = None,
    job_policy: RetryPolicy | None | UnsetType = UNSET,
    task_policy: RetryPolicy | None | UnsetType = UNSET,
    worker_policy: RetryPolicy | None = None,
    at_most_once: bool = False,
    job: Callable[[], Job[Any]] | None = None,
    random: Uniform = uniform,
) -> Decision:
    """What becomes of a job whose attempt failed with `error`, after `failures` earlier ones in this run.

    For a job's or a task's policy, None is "no retries", given explicitly; UNSET is "not given". `job` gives the
    functions of a policy their job.
    """
    attempts = failures + 1
    policy = policy_in_force(job_policy, task_policy, worker_policy)
    limit = effective_limit(_first_limit(job_max_attempts, task_max_attempts), policy, worker_policy)
    info = error if isinstance(error, ErrorInfo) else ErrorInfo.of(error)

    if info.unrecoverable:
        return Decision.dead(attempts, limit, Reason.UNRECOVERABLE)
    if at_most_once:
        return Decision.dead(attempts, limit, Reason.NOT_RETRYABLE)
    # A handler that asks for a retry has classified its error itself.
    asked = info.retry_after_seconds
    if policy is not None and policy.follows_code and asked is None:
        return _decide_by_code(policy, error, Failure(attempts, limit, info, job() if job else None), random)
    if policy is not None and asked is None and not policy.is_retryable(error):
        return Decision.dead(attempts, limit, Reason.NOT_RETRYABLE)
    if policy is None or attempts >= limit:  # a limit of 0 is reached at once
        return Decision.dead(attempts, limit, Reason.EXHAUSTED)
    delay = policy.delay(attempts, random) if asked is None else _bounded(asked)
    return Decision.retry(attempts, limit, delay)


def _decide_by_code(
    policy: RetryPolicy, error: BaseException | ErrorInfo, failure: Failure, random: Uniform
) -> Decision:
    """The same rule, where a policy brings code: whatever that does, a decision is made.

    A function that fails, or answers with something else, is a problem to report; the policy's own lists and
    numbers stand in for it.
    """
    problems: list[str] = []

    def answer(question: str, ask: Callable[[], T | None], otherwise: Callable[[], T]) -> T:
        try:
            given = ask()
        except BaseException as wrong:  # noqa: BLE001 - even a SystemExit must not lose the job, nor end the worker
            problems.append(f"{question} failed: {type_name(wrong)}: {text_of(wrong)}")
            given = None
        return otherwise() if given is None else given

    retries = answer(
        "should_retry",
        lambda: None if policy.should_retry is None else _checked_verdict(policy.should_retry(failure)),
        lambda: answer(
            "is_retryable",
            lambda: policy.is_retryable(error),
            lambda: RetryPolicy.is_retryable(policy, error),
        ),
    )
    if not retries:
        return Decision(failure.number, failure.limit, reason=Reason.NOT_RETRYABLE, problems=tuple(problems))
    if failure.number >= failure.limit:
        return Decision(failure.number, failure.limit, reason=Reason.EXHAUSTED, problems=tuple(problems))
    delay = answer(
        "delay",
        lambda: None if policy.delay_function is None else _checked_delay(policy.delay_function(failure)),
        lambda: answer(
            "delay",
            lambda: _checked_delay(policy.delay(failure.number, random)),
            lambda: RetryPolicy.delay(policy, failure.number, random),
        ),
    )
    return Decision(failure.number, failure.limit, delay_seconds=delay, problems=tuple(problems))


def _checked_verdict(given: object) -> bool | None:
    if given is None or isinstance(given, bool):
        return given
    raise ConfigurationError(f"it must return True, False or None, not {_shown_answer(given)}")


def _checked_delay(given: object) -> float | None:
    if given is None:
        return None
    if isinstance(given, timedelta):
        given = given.total_seconds()
    # Not NaN, which equals nothing. Less than nothing is at once, and more than any wait the longest one.
    if isinstance(given, int | float) and not isinstance(given, bool) and given == given:
        return float(min(max(0, given), MAX_SECONDS))
    raise ConfigurationError(
        f"it must return a number of seconds, a timedelta or None, not {_shown_answer(given)}"
    )


def _shown_answer(given: object) -> str:
    if inspect.iscoroutine(given):
        given.close()
        return "a coroutine; declare it with `def`"
    return shorten(given)


def policy_in_force(
    job_policy: RetryPolicy | None | UnsetType,
    task_policy: RetryPolicy | None | UnsetType,
    worker_policy: RetryPolicy | None,
) -> RetryPolicy | None:
    """The job's policy, else the task's, else the worker's. An explicit None ends the search."""
    if job_policy is not UNSET:
        return job_policy
    if task_policy is not UNSET:
        return task_policy
    return worker_policy


def effective_limit(
    max_attempts: int | None, policy: RetryPolicy | None, worker_policy: RetryPolicy | None
) -> int:
    """How many failures a run is allowed: the job's or task's own limit, else the policy's, and never more
    than the worker's policy allows. 0 stands for "no limit of its own" everywhere, and for none at all here.

    Without a policy in force there are no retries, whatever the limits say.
    """
    if policy is None:
        return 0
    own = _first_limit(max_attempts, policy.max_attempts)
    cap = worker_policy.max_attempts if worker_policy is not None else 0
    return min(own, cap) if own and cap else own or cap


def _first_limit(*limits: int | None) -> int:
    return next((limit for limit in limits if limit is not None and limit > 0), 0)


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_SECONDS)  # in this order NaN becomes 0
