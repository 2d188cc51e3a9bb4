"""Durable steps, sleeps and handed-on results in handlers that have a process of their own."""

from __future__ import annotations

import pytest

from taskharbor import Harbor, chord
from taskharbor.records import State
from tests.worker import isolated
from tests.worker.apart import apart, begun, done, is_alive
from tests.worker.stage import statuses, the_job, until, working


@pytest.mark.parametrize("handler", [isolated.order_async, isolated.order_sync])
@pytest.mark.parametrize("with_middleware", [False, True])
async def test_steps_are_remembered_and_sleeps_end_the_attempt(
    harbor, clock, tmp_path, handler, with_middleware
):
    if with_middleware:

        @harbor.middleware
        async def through(ctx, call):
            return await call()

    job = await apart(harbor, handler, max_attempts=3).aenqueue(str(tmp_path))
    for _ in range(2):
        await done(harbor)
        clock.advance(60)
    assert (await the_job(harbor, job)).state is State.SCHEDULED
    clock.advance(3_600)
    await done(harbor)
    assert await job.aresult(0) == 7
    assert await statuses(job) == ["failed", "slept", "succeeded"]
    assert (tmp_path / "charges").read_text() == "charged\n"
    assert [step.name for step in await harbor.jobs.asteps(job.id)] == ["charge", "an-hour"]


async def test_step_that_the_lease_no_longer_covers_kills_the_handler(memory: Harbor, tmp_path):
    task = apart(memory, isolated.late_step)
    async with working(memory, lease_seconds=3600) as worker:
        job = await task.aenqueue(str(tmp_path))
        pid = await begun(tmp_path / "begun")
        later = await memory.driver.now() + 4_000_000_000
        await memory.driver.take_expired("other/1", 3_600_000_000, now=later)
        (tmp_path / "go-on").touch()
        await until(lambda: not is_alive(pid))
        run = worker._run
        assert run is not None
        await until(lambda: not run._pipeline.running)
    assert not (tmp_path / "went-on").exists()
    assert (await memory.jobs.asteps(job.id), await statuses(job)) == ([], [])


async def test_isolated_finalizer_gets_its_groups_results(harbor: Harbor):
    add, total = apart(harbor, isolated.add), apart(harbor, isolated.total)
    workflow = await chord([add.s(n, 0) for n in range(5)], total.s()).aenqueue()
    await done(harbor, concurrency=2)
    assert await workflow.aresult(0) == 10
