"""Policies that follow the code: of a task or a worker, wherever its handlers run; never of one job."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from taskharbor import ConfigurationError, Failure, Harbor, RetryPolicy, Worker, presets
from taskharbor.clock import from_micros
from taskharbor.records import Reason, State
from tests.worker import isolated
from tests.worker.apart import apart, done
from tests.worker.stage import the_job


def minutes(failure: Failure) -> timedelta:
    return timedelta(minutes=failure.number)


async def test_a_tasks_functions_decide_about_its_jobs(harbor, clock, drained):
    @harbor.task(retry=RetryPolicy(max_attempts=3, delay=minutes))
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.aenqueue()
    for waited in (60, 120):
        await drained(harbor)
        found = await the_job(harbor, job)
        assert found.run_at == from_micros(clock.now()) + timedelta(seconds=waited)
        clock.advance(waited)
    await drained(harbor)
    assert (await the_job(harbor, job)).reason is Reason.EXHAUSTED


async def test_a_function_is_given_the_job(memory, drained):
    seen = []

    def look(failure: Failure) -> bool:
        assert failure.job is not None
        seen.append((failure.job.id, failure.job.payload, failure.job.queue, failure.number))
        return False

    @memory.task(queue="mail", retry=RetryPolicy(should_retry=look))
    def fail(to: str) -> None:
        raise ConnectionError("refused")

    job = await fail.aenqueue("a@b.c")
    await drained(memory)
    assert seen == [(job.id, {"to": "a@b.c"}, "mail", 1)]
    assert (await the_job(memory, job)).reason is Reason.NOT_RETRYABLE


async def test_a_workers_functions_decide_about_jobs_without_a_policy(memory, clock):
    @memory.task
    async def fail() -> None:
        raise ValueError("no")

    plain, own = await fail.aenqueue(), await fail.using(retry=presets.NONE).aenqueue()
    await Worker(memory, retry=RetryPolicy(delay=lambda failure: 50)).drain()
    assert (await the_job(memory, plain)).run_at == from_micros(clock.now()) + timedelta(seconds=50)
    assert (await the_job(memory, own)).state is State.DEAD


async def test_a_handler_in_a_process_of_its_own_is_decided_about_in_the_worker(memory):
    """The error is known there by the names of its class and of that class's bases."""
    seen = []

    def look(failure: Failure) -> bool:
        seen.append(
            (failure.type_name, failure.error, failure.matches(LookupError), failure.matches(OSError))
        )
        return False

    job = await apart(memory, isolated.odd, retry=RetryPolicy(should_retry=look)).aenqueue()
    await done(memory)
    assert seen == [("OddError", "nobody knows: ünïcode", True, False)]
    assert (await the_job(memory, job)).reason is Reason.NOT_RETRYABLE


async def test_a_function_that_fails_costs_no_job_and_is_logged(memory, clock, drained, caplog):
    def broken(failure: Failure) -> float:
        raise ZeroDivisionError("division by zero")

    @memory.task(retry=RetryPolicy(max_attempts=3, initial=1, jitter=None, delay=broken))
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.aenqueue()
    with caplog.at_level(logging.ERROR, "taskharbor.worker"):
        await drained(memory)
    found = await the_job(memory, job)
    assert found.run_at == from_micros(clock.now()) + timedelta(seconds=1)
    [line] = caplog.messages
    assert line.startswith(
        f"a function of the retry policy of Job {job.id} is ignored: delay failed: ZeroDivisionError"
    )


# -- one job -------------------------------------------------------------------------------------


class Patient(RetryPolicy):
    def delay(self, n: int, random=None) -> float:
        return 3600.0


CODE = [RetryPolicy(delay=minutes), RetryPolicy(should_retry=lambda failure: True), Patient()]


@pytest.mark.parametrize("policy", CODE, ids=["delay", "should_retry", "class"])
def test_one_job_takes_no_policy_that_follows_the_code(policy):
    with Harbor("memory://") as harbor:

        @harbor.task
        def work() -> None: ...

        for give in (
            lambda: work.using(retry=policy),
            lambda: harbor.enqueue("work", retry=policy),
            lambda: harbor.schedules.add("nightly", "work", schedule="@daily", retry=policy),
        ):
            with pytest.raises(ConfigurationError, match="code cannot be: .* to a task or a worker"):
                give()
        assert sum(harbor.jobs.counts().values()) == 0


async def test_a_policy_class_of_its_own_works_for_a_task(memory, clock, drained):
    @memory.task(retry=Patient())
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.aenqueue()
    await drained(memory)
    assert (await the_job(memory, job)).run_at == from_micros(clock.now()) + timedelta(hours=1)


# -- the worker's own policy ---------------------------------------------------------------------


async def test_the_harbor_gives_its_workers_their_policy(clock):
    async with Harbor("memory://", clock=clock, worker_retry=None) as harbor:

        @harbor.task
        async def fail() -> None:
            raise ValueError("no")

        fast, own = await fail.aenqueue(), await fail.using(retry=presets.STANDARD).aenqueue()
        await Worker(harbor).drain()
        assert (await the_job(harbor, fast)).state is State.DEAD
        assert (await the_job(harbor, own)).state is State.SCHEDULED
        again = await fail.aenqueue()
        await Worker(harbor, retry=presets.STANDARD).drain()  # a worker that is given one has that
        assert (await the_job(harbor, again)).state is State.SCHEDULED


def test_a_harbor_checks_the_policy_of_its_workers():
    with pytest.raises(ConfigurationError, match=r"worker_retry must be a RetryPolicy, .*, not 'email'"):
        Harbor("memory://", worker_retry="email")  # type: ignore[arg-type]
    assert Worker(Harbor("memory://")).retry is presets.DEFAULT
