"""Failures are retried by the policy in force, on the store's clock, until a rule ends it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor import RetryAfter, RetryPolicy, Unrecoverable, Worker, presets
from taskharbor.clock import from_micros
from taskharbor.records import Reason, State
from tests.worker.stage import attempts_of, soon, statuses, the_job, working


@pytest.fixture
def failing(harbor):
    """A task that fails every time, and its calls."""
    calls = []

    @harbor.task(name="failing")
    async def fail() -> None:
        calls.append(1)
        raise ValueError(f"failure {len(calls)}")

    fail.calls = calls
    return fail


async def test_a_failed_job_runs_again_after_the_policys_delay_and_not_before(
    harbor, clock, drained, failing
):
    job = await failing.aenqueue()
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.state, found.attempts) == (State.SCHEDULED, 1)
    assert found.run_at == from_micros(clock.now()) + timedelta(seconds=1)
    assert found.error == "ValueError: failure 1"

    clock.advance(0.999999)
    await drained(harbor)
    assert len(failing.calls) == 1
    clock.advance(0.000001)
    await drained(harbor)
    assert len(failing.calls) == 2
    assert (await the_job(harbor, job)).run_at == from_micros(clock.now()) + timedelta(seconds=2)


async def test_max_attempts_5_is_dead_on_the_5th_failure(harbor, clock, drained, failing):
    job = await failing.using(max_attempts=5).aenqueue()
    for n in range(1, 6):
        await drained(harbor, retry=RetryPolicy(max_attempts=25, initial=1, jitter=None))
        found = await the_job(harbor, job)
        assert found.attempts == n
        assert found.state is (State.SCHEDULED if n < 5 else State.DEAD)
        clock.advance(60)
    assert (await the_job(harbor, job)).reason is Reason.EXHAUSTED
    await drained(harbor)
    assert len(failing.calls) == 5
    rows = await attempts_of(job)
    assert [(row.number, str(row.status), row.retry_count) for row in rows] == [
        (n, "failed", n - 1) for n in range(1, 6)
    ]
    assert [row.error for row in rows] == [f"ValueError: failure {n}" for n in range(1, 6)]
    assert all("raise ValueError" in (row.traceback or "") for row in rows)


async def test_max_retries_n_is_max_attempts_n_plus_1(harbor, clock, drained, failing):
    await failing.using(max_retries=2).aenqueue()
    for _ in range(5):
        await drained(harbor)
        clock.advance(60)
    assert len(failing.calls) == 3


async def test_the_workers_policy_caps_everybodys_limit(harbor, clock, failing):
    job = await failing.using(max_attempts=100, retry=presets.EMAIL).aenqueue()
    for _ in range(5):
        await Worker(harbor, retry=RetryPolicy(max_attempts=2)).drain()
        clock.advance(600)
    assert (await the_job(harbor, job)).reason is Reason.EXHAUSTED
    assert len(failing.calls) == 2


async def test_a_cap_of_0_is_no_cap(harbor, clock, failing):
    await failing.using(max_attempts=40).aenqueue()
    for _ in range(45):
        await Worker(harbor, retry=RetryPolicy(max_attempts=0, jitter=None)).drain()
        clock.advance(10)
    assert len(failing.calls) == 40


async def test_a_worker_without_a_policy_retries_nothing(harbor, failing):
    job = await failing.using(max_attempts=9).aenqueue()
    await Worker(harbor, retry=None).drain()
    found = await the_job(harbor, job)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.EXHAUSTED, 1)


async def test_a_job_with_retry_none_is_dead_on_its_first_failure(harbor, drained, failing):
    job = await failing.using(retry=None).aenqueue()
    await drained(harbor)
    assert (await the_job(harbor, job)).state is State.DEAD


async def test_the_jobs_policy_goes_before_the_tasks_and_that_before_the_workers(harbor, clock, drained):
    @harbor.task(retry=RetryPolicy(max_attempts=9, initial=20, maximum=20, jitter=None))
    async def fail() -> None:
        raise ValueError

    own = RetryPolicy(max_attempts=9, initial=300, maximum=300, jitter=None)
    of_job, of_task = await fail.using(retry=own).aenqueue(), await fail.aenqueue()
    by_name = await harbor.aenqueue("fail.by.name")  # its worker's declaration fills in

    @harbor.task(name="fail.by.name", retry=RetryPolicy(max_attempts=9, initial=7, maximum=7, jitter=None))
    async def later() -> None:
        raise ValueError

    await drained(harbor)
    now = from_micros(clock.now())
    delays = [(await the_job(harbor, job)).run_at - now for job in (of_job, of_task, by_name)]
    assert delays == [timedelta(seconds=300), timedelta(seconds=20), timedelta(seconds=7)]


async def test_a_retried_job_that_succeeds_keeps_the_count_of_its_failures(harbor, clock, drained):
    calls = []

    @harbor.task
    async def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("away")
        return "there"

    job = await flaky.aenqueue()
    for _ in range(3):
        await drained(harbor)
        clock.advance(60)
    found = await the_job(harbor, job)
    assert (found.state, found.attempts) == (State.SUCCEEDED, 2)
    assert await statuses(job) == ["failed", "failed", "succeeded"]
    assert await job.aresult() == "there"


async def test_retry_after_is_the_handlers_own_delay_and_counts(harbor, clock, drained):
    @harbor.task(max_attempts=2)
    async def later() -> None:
        raise RetryAfter(90, "busy")

    job = await later.aenqueue()
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.attempts, found.run_at) == (1, from_micros(clock.now()) + timedelta(seconds=90))
    clock.advance(90)
    await drained(harbor)
    assert (await the_job(harbor, job)).state is State.DEAD


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_unrecoverable_is_dead_at_once(harbor, drained, sync):
    def body() -> None:
        raise Unrecoverable("no such account")

    async def async_body() -> None:
        body()

    task = harbor.task(name="t", max_attempts=9)(body if sync else async_body)
    job = await task.aenqueue()
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.UNRECOVERABLE, 1)


@pytest.mark.parametrize(
    ("policy", "error", "state"),
    [
        (RetryPolicy(retry_on=[ConnectionError]), ConnectionResetError("x"), State.SCHEDULED),
        (RetryPolicy(retry_on=[ConnectionError]), ValueError("x"), State.DEAD),
        (RetryPolicy(retry_on=["Deadlock"]), RuntimeError("a DEADLOCK occurred"), State.SCHEDULED),
        (RetryPolicy(never_retry_on=["404"]), RuntimeError("answered 404"), State.DEAD),
        (RetryPolicy(never_retry_on=[ValueError], retry_on=["x"]), ValueError("x"), State.DEAD),
    ],
)
async def test_classification_decides_whether_a_failure_is_retried(harbor, drained, policy, error, state):
    @harbor.task
    async def fail() -> None:
        raise error

    job = await fail.using(retry=policy).aenqueue()  # stored with the job, so types become names
    await drained(harbor)
    found = await the_job(harbor, job)
    assert found.state is state
    assert found.reason == (Reason.NOT_RETRYABLE if state is State.DEAD else None)


async def test_a_running_worker_picks_a_retry_up_when_its_time_has_come(memory, clock):
    calls = []

    @memory.task
    async def flaky() -> int:
        calls.append(clock.monotonic())
        if len(calls) == 1:
            raise ValueError
        return len(calls)

    job = await flaky.aenqueue()
    async with working(memory, retry=RetryPolicy(initial=5, maximum=5, jitter=None)):
        await clock.settle()
        assert calls == [0]
        await clock.jump(4.9)
        assert calls == [0]
        await clock.jump(0.2)
        assert await soon(job.aresult()) == 2
    assert calls[1] == pytest.approx(5, abs=0.1)


async def test_a_requeued_job_has_all_its_attempts_again(harbor, clock, drained, failing):
    job = await failing.using(max_attempts=2).aenqueue()
    for _ in range(2):
        await drained(harbor)
        clock.advance(60)
    await harbor.dlq.arequeue(job.id)
    for _ in range(2):
        await drained(harbor)
        clock.advance(60)
    found = await the_job(harbor, job)
    assert (found.state, found.attempts, found.number) == (State.DEAD, 2, 4)
    assert [row.retry_count for row in await attempts_of(job)] == [0, 1, 0, 1]
