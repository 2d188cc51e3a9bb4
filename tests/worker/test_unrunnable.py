"""What a worker cannot begin: tasks it does not know, payloads that do not fit, jobs whose time is over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.clock import from_micros
from taskharbor.errors import StoreUnavailable
from taskharbor.records import Reason, State
from tests.worker.stage import attempts_of, statuses, the_job, until, working


async def unrunnable_until_dead(harbor, job, clock, drained) -> list[float]:
    """Drain and let time pass until the job is dead; the delays it was put back with."""
    delays: list[float] = []
    for _ in range(100):
        await drained(harbor)
        found = await the_job(harbor, job)
        if found.state is State.DEAD:
            return delays
        assert found.state is State.SCHEDULED
        delay = (found.run_at - from_micros(clock.now())).total_seconds()
        delays.append(delay)
        clock.advance(delay)
    raise AssertionError("it went on for ever")


async def test_an_unknown_task_is_put_back_with_growing_delays_then_dead(harbor, clock, drained):
    job = await harbor.aenqueue("nobody:knows", {"x": 1})
    delays = await unrunnable_until_dead(harbor, job, clock, drained)
    assert delays[:6] == [1, 2, 4, 8, 16, 30]
    assert 300 <= sum(delays) < 331
    found = await the_job(harbor, job)
    assert (found.reason, found.attempts) == (Reason.UNKNOWN_TASK, 0)
    assert found.error == "no task is called 'nobody:knows' here"
    rows = await attempts_of(job)
    assert {str(row.status) for row in rows[:-1]} == {"released"}
    assert all(row.started_at is None for row in rows)


async def test_a_payload_that_does_not_fit_is_put_back_then_dead(harbor, clock, drained):
    job = await harbor.aenqueue("t", {"n": "not a number"})
    calls = []

    @harbor.task(name="t")
    async def work(n: int) -> None:
        calls.append(n)

    delays = await unrunnable_until_dead(harbor, job, clock, drained)
    assert delays[:3] == [1, 2, 4]
    found = await the_job(harbor, job)
    assert (found.reason, found.attempts, calls) == (Reason.INVALID_PAYLOAD, 0, [])
    assert "n" in (found.error or "")


async def test_another_version_that_knows_the_task_executes_it(harbor, clock, drained):
    job = await harbor.aenqueue("new:task")
    await drained(harbor)
    assert await statuses(job) == ["released"]

    @harbor.task(name="new:task")
    async def work() -> str:
        return "known now"

    clock.advance(1)
    await drained(harbor)
    assert await job.aresult() == "known now"
    assert (await the_job(harbor, job)).attempts == 0


async def test_the_grace_is_a_setting_of_the_worker(harbor, drained):
    job = await harbor.aenqueue("nobody:knows")
    await drained(harbor, unrunnable_grace_seconds=0)
    assert (await the_job(harbor, job)).reason is Reason.UNKNOWN_TASK


async def test_an_alias_is_known(harbor, drained):
    job = await harbor.aenqueue("old:name", {"old": 1})

    @harbor.task(name="new:name", aliases=["old:name"], parameter_aliases={"old": "new"})
    async def work(new: int) -> int:
        return new + 1

    await drained(harbor)
    assert await job.aresult() == 2


async def test_an_outage_while_the_history_of_an_unrunnable_job_is_read_is_waited_out(faulty, store, clock):
    job = await faulty.aenqueue("nobody:knows")
    async with working(faulty):
        await clock.jump(0.5)
        store.fail["history"] = lambda *_: StoreUnavailable("away")
        await clock.jump(2)
        await until(lambda: store.calls["history"] > 1)
        del store.fail["history"]
        await clock.jump(2)
    assert (await statuses(job))[:2] == ["released", "released"]


# -- expires_at ----------------------------------------------------------------------------------


async def test_a_job_not_begun_by_its_expires_at_is_cancelled(harbor, clock, drained):
    calls = []

    @harbor.task
    async def work() -> None:
        calls.append(1)

    late = from_micros(clock.now()) + timedelta(seconds=10)
    job = await work.using(expires_at=late).aenqueue()
    clock.advance(10)
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.state, found.reason, calls) == (State.CANCELLED, Reason.EXPIRED, [])


async def test_a_job_begun_in_time_may_be_retried_after_its_expires_at(harbor, clock, drained):
    calls = []

    @harbor.task
    async def flaky() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError
        return "done"

    soon_over = from_micros(clock.now()) + timedelta(seconds=1)
    job = await flaky.using(expires_at=soon_over).aenqueue()
    await drained(harbor)
    clock.advance(60)
    await drained(harbor)
    assert await job.aresult() == "done"


async def test_a_job_that_expires_inside_the_worker_is_not_begun(faulty, store, clock):
    calls = []

    @faulty.task
    async def work() -> None:
        calls.append(1)

    async def slow():
        clock.advance(10)  # the claim's answer takes its time

    store.after["claim"] = slow
    job = await work.using(expires_at=from_micros(clock.now()) + timedelta(seconds=5)).aenqueue()
    async with working(faulty, lease_seconds=60):
        await until(lambda: store.calls["settle"])
    found = await the_job(faulty, job)
    assert (found.state, found.reason, calls) == (State.CANCELLED, Reason.EXPIRED, [])
    [attempt] = await attempts_of(job)
    assert str(attempt.status) == "cancelled"


@pytest.mark.parametrize("payload", ['{"x":[[[[', "[]", "null", '{"n":1,"m":2}', '{"n":1e999}'])
async def test_a_payload_somebody_else_wrote_wrongly_harms_nobody(memory, drained, payload):
    from taskharbor.client.options import new_id
    from taskharbor.records import NewJob

    @memory.task(name="t")
    async def work(n: int) -> int:
        return n

    bad = NewJob(new_id(), "t", payload)
    await memory.driver.enqueue([bad])
    good = await work.aenqueue(1)
    await drained(memory, unrunnable_grace_seconds=0)
    assert await good.aresult() == 1
    assert (await memory.jobs.aget(bad.id)).reason is Reason.INVALID_PAYLOAD
