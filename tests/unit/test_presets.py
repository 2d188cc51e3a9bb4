"""The presets are the documented table, and nothing else."""

from __future__ import annotations

import pytest

from taskharbor import presets
from taskharbor.errors import Unrecoverable
from taskharbor.records import Reason
from taskharbor.rules.retry import RetryPolicy

NETWORK_ERRORS = ("timeout", "unavailable", "connection")
API_ERRORS = ("404", "authentication failed", "invalid request")
DATABASE_ERRORS = ("deadlock", "connection closed")
EMAIL_ERRORS = ("invalid email", "unsubscribed")

TABLE = [
    # preset, max_attempts, initial, maximum, multiplier, jitter, retry_on, never_retry_on
    ("DEFAULT", 25, 0.2, 5, 2.0, 0.2, (), ()),
    ("FULL_JITTER", 4, 0.5, 30, 2.0, "full", (), ()),
    ("CONSERVATIVE", 6, 1, 60, 2.0, "full", (), ()),
    ("AGGRESSIVE", 3, 0.1, 5, 2.0, "full", (), ()),
    ("STANDARD", 4, 1, 60, 2.0, 0.1, (), ()),
    ("NETWORK", 6, 0.1, 10, 2.0, 0.1, NETWORK_ERRORS, ()),
    ("EXTERNAL_API", 8, 2, 120, 1.5, 0.2, (), API_ERRORS),
    ("DATABASE", 4, 0.05, 5, 2.0, 0.05, DATABASE_ERRORS, ()),
    ("EMAIL", 11, 5, 300, 1.3, 0.1, (), EMAIL_ERRORS),
    ("SCHEDULE", 4, 1, 300, 2.0, None, (), ()),
    ("NONE", 1, 0, 0, 1.0, None, (), ()),
]


@pytest.mark.parametrize(
    ("name", "max_attempts", "initial", "maximum", "multiplier", "jitter", "retry_on", "never_retry_on"),
    TABLE,
)
def test_preset(name, max_attempts, initial, maximum, multiplier, jitter, retry_on, never_retry_on):
    policy = getattr(presets, name)
    assert policy.max_attempts == max_attempts
    assert (policy.initial, policy.maximum, policy.multiplier) == (initial, maximum, multiplier)
    assert policy.jitter == jitter
    assert policy.retry_on == retry_on
    assert policy.never_retry_on == never_retry_on


def test_every_preset_is_in_the_table():
    named = {name for name, value in vars(presets).items() if isinstance(value, RetryPolicy)}
    assert named == {row[0] for row in TABLE}


@pytest.mark.parametrize("name", [row[0] for row in TABLE])
def test_a_preset_retries_until_its_limit_and_survives_storage(name):
    policy = getattr(presets, name)
    error = OSError("connection closed: timeout")
    reasons = [policy.decide(error, failures).reason for failures in range(policy.max_attempts)]
    assert reasons == [None] * (policy.max_attempts - 1) + [Reason.EXHAUSTED]
    assert RetryPolicy.from_dict(policy.to_dict()) == policy


def test_none_fails_fast():
    assert presets.NONE.decide(OSError()).reason is Reason.EXHAUSTED
    assert presets.NONE.decide(Unrecoverable()).reason is Reason.UNRECOVERABLE


def test_full_jitter_follows_the_formula_to_its_cap():
    # Attempt 6 waits up to 16 s; the cap of 30 s is reached at attempt 7.
    longest = [presets.FULL_JITTER.delay(n, random=lambda: 1.0) for n in range(1, 9)]
    assert longest == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_schedule_delays_are_exact():
    assert [presets.SCHEDULE.delay(n) for n in (1, 2, 3)] == [1, 2, 4]


def test_the_lists_of_error_texts_make_policies():
    assert len(presets.RETRYABLE_ERRORS) == 7
    assert len(presets.NON_RETRYABLE_ERRORS) == 9
    policy = RetryPolicy(retry_on=presets.RETRYABLE_ERRORS, never_retry_on=presets.NON_RETRYABLE_ERRORS)
    assert policy.is_retryable(OSError("Too many open files"))
    assert not policy.is_retryable(OSError("403 Forbidden after timeout"))
    assert not policy.is_retryable(OSError("disk full"))
