"""What travels with a job, and what follows the code of the worker that sees its failure."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor import RetryPolicy
from taskharbor.clock import from_micros
from taskharbor.records import Reason, State
from taskharbor.rules.retry import UNSET
from tests.worker.stage import the_job


def policy(max_attempts: int, seconds: float) -> RetryPolicy:
    return RetryPolicy(max_attempts=max_attempts, initial=seconds, maximum=seconds, multiplier=1, jitter=None)


async def fail() -> None:
    raise ValueError("no")


def by_function(max_attempts: int, seconds: float) -> RetryPolicy:
    return RetryPolicy(max_attempts=max_attempts, delay=lambda failure: seconds)


@pytest.mark.parametrize("declared", [policy, by_function])
async def test_the_declared_policy_follows_the_code_of_the_worker(harbor, clock, drained, declared):
    """A job that was enqueued under one version is decided about by the version of its worker."""
    job = await harbor.task(name="fail", retry=declared(9, 5))(fail).aenqueue()
    assert (await the_job(harbor, job)).record.options.retry is UNSET
    harbor.task(name="fail", retry=declared(9, 77))(fail)
    await drained(harbor)
    assert (await the_job(harbor, job)).run_at == from_micros(clock.now()) + timedelta(seconds=77)


@pytest.mark.parametrize("declared", [policy, by_function])
async def test_the_limit_of_the_declared_policy_travels_with_the_job(harbor, drained, declared):
    before = harbor.task(name="fail", retry=declared(1, 5))(fail)
    given = await before.aenqueue()
    [many, _] = await before.aenqueue_many([{}, {}])
    named = await harbor.aenqueue("fail")
    after = harbor.task(name="fail", retry=declared(9, 5))(fail)
    later = await after.aenqueue()
    await drained(harbor, retry=policy(0, 1))
    for job in (given, many, named):
        found = await the_job(harbor, job)
        assert (found.max_attempts, found.reason) == (1, Reason.EXHAUSTED)
    assert (await the_job(harbor, later)).state is State.SCHEDULED


async def test_a_policy_given_to_one_job_is_kept_whatever_the_code_declares(harbor, clock, drained):
    task = harbor.task(name="fail", retry=policy(9, 5))(fail)
    job = await task.using(retry=policy(2, 33)).aenqueue()
    assert (await the_job(harbor, job)).max_attempts is None  # the stored policy has it
    harbor.task(name="fail", retry=policy(7, 77))(fail)
    await drained(harbor)
    assert (await the_job(harbor, job)).run_at == from_micros(clock.now()) + timedelta(seconds=33)
    clock.advance(33)
    await drained(harbor)
    assert (await the_job(harbor, job)).reason is Reason.EXHAUSTED


async def test_no_retries_given_to_one_job_are_kept_whatever_the_code_declares(harbor, drained):
    job = await harbor.task(name="fail", retry=policy(9, 5))(fail).using(retry=None).aenqueue()
    await drained(harbor)
    assert (await the_job(harbor, job)).reason is Reason.EXHAUSTED


async def test_limits_travel_with_the_job(harbor, drained):
    """A declaration that changes later changes neither the limit, nor the timeout, nor the delivery."""
    before = harbor.task(
        name="fail", retry=policy(9, 5), max_attempts=2, timeout=7, delivery="at_least_once"
    )(fail)
    job = await before.aenqueue()
    harbor.task(name="fail", retry=policy(9, 5), max_attempts=1, timeout=1, delivery="at_most_once")(fail)
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.max_attempts, found.timeout, found.delivery) == (2, 7.0, "at_least_once")
    assert found.state is State.SCHEDULED


@pytest.mark.parametrize(
    ("declared", "given", "stored"),
    [
        ({}, {}, None),
        ({"retry": None}, {}, None),
        ({"retry": policy(0, 1)}, {}, None),
        ({"retry": policy(5, 1)}, {}, 5),
        ({"retry": policy(5, 1), "max_attempts": 3}, {}, 3),
        ({"retry": policy(5, 1), "max_attempts": 0}, {}, 5),
        ({"retry": policy(5, 1)}, {"max_attempts": 2}, 2),
        ({"retry": policy(5, 1)}, {"max_retries": 7}, 8),
        ({"retry": policy(5, 1), "max_attempts": 3}, {"retry": policy(8, 1)}, 3),
    ],
)
async def test_the_stored_limit_is_the_first_that_is_set(memory, declared, given, stored):
    task = memory.task(name="fail", **declared)(fail)
    for job in (await task.using(**given).aenqueue(), await memory.aenqueue("fail", **given)):
        assert (await the_job(memory, job)).max_attempts == stored


async def test_a_schedules_new_policy_brings_its_limit(harbor):
    harbor.task(name="fail", retry=policy(5, 1))(fail)
    await harbor.schedules.aadd("nightly", "fail", schedule="0 3 * * *")
    assert (await harbor.schedules.aget("nightly")).max_attempts == 5
    assert (await harbor.schedules.aupdate("nightly", retry=policy(8, 1))).max_attempts == 8
    changed = await harbor.schedules.aupdate("nightly", retry=policy(9, 1), max_attempts=2)
    assert changed.max_attempts == 2
    assert (await harbor.schedules.aupdate("nightly", retry=policy(0, 1))).max_attempts == 2
