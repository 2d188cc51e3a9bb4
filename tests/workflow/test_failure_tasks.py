"""The failure task of a single job, given with it or declared by its task."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor import ConfigurationError, Context, Harbor, PayloadError, Unrecoverable, chain
from taskharbor.drivers.base import ClaimRequest

SECOND = 1_000_000


class Stage:
    """A task that fails, and one that is called with what died."""

    def __init__(self, harbor: Harbor) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.broken_alert = False

        @harbor.task(name="alert", max_attempts=1)
        async def alert(ctx: Context, died: dict[str, Any], level: int = 1) -> None:
            self.calls.append((died, level, ctx.correlation_id, ctx.job.meta))
            if self.broken_alert:
                raise Unrecoverable("no line")

        @harbor.task(name="clean")
        async def clean() -> None:
            self.calls.append(("clean",))

        async def fail() -> None:
            raise Unrecoverable("broken")

        self.alert, self.clean, self.function = alert, clean, fail
        self.fail = harbor.task(name="fail")(fail)


@pytest.fixture
def stage(harbor: Harbor) -> Stage:
    return Stage(harbor)


async def test_failure_task_is_enqueued_with_the_death_of_its_job(harbor, stage, drained):
    job = await stage.fail.using(
        failure_task=stage.alert.s(level=3), correlation_id="order-7", meta={"tenant": "acme"}
    ).aenqueue()
    assert job.failure_task == (await job.arefresh()).failure_task == "alert"
    await drained(harbor)
    [(died, level, correlation_id, meta)] = stage.calls
    assert died == {
        "workflow": None,
        "job": job.id,
        "task": "fail",
        "reason": "unrecoverable",
        "error": "Unrecoverable: broken",
    }
    assert (level, correlation_id, meta) == (3, "order-7", {"tenant": "acme"})


async def test_declared_failure_task_travels_with_each_job(harbor, stage, drained):
    """What the producer's declaration says; without one, what the declaration of the worker says."""
    by_name = await harbor.aenqueue("later")
    later = harbor.task(name="later", failure_task=stage.alert.s())(stage.function)
    first = await later.aenqueue()
    [many, _] = await later.aenqueue_many([{}, {}])
    none = await later.using(failure_task=None).aenqueue()
    other = await later.using(failure_task=stage.clean.si()).aenqueue()
    assert [job.failure_task for job in (by_name, first, many, none, other)] == [
        None, "alert", "alert", None, "clean",
    ]  # fmt: skip
    await drained(harbor)
    died = {call[0]["job"] for call in stage.calls if call != ("clean",)}
    assert died >= {by_name.id, first.id, many.id}
    assert none.id not in died
    assert (len(died), stage.calls.count(("clean",))) == (4, 1)


async def test_failure_task_is_enqueued_once_for_each_run_that_dies(harbor, stage, drained):
    job = await stage.fail.using(failure_task=stage.alert.s()).aenqueue()
    await drained(harbor)
    await drained(harbor)
    assert len(stage.calls) == 1
    await harbor.dlq.arequeue(job.id)
    await drained(harbor)
    assert [call[0]["job"] for call in stage.calls] == [job.id, job.id]


async def test_failure_that_is_retried_and_a_cancel_enqueue_nothing(harbor, stage, clock, drained):
    @harbor.task(name="flaky", failure_task=stage.alert.s())
    async def flaky(ctx: Context) -> None:
        if ctx.retry_count == 0:
            raise ValueError("once")

    await flaky.aenqueue()
    cancelled = await flaky.using(delay=60).aenqueue()
    await harbor.jobs.acancel(cancelled.id)
    await drained(harbor)
    clock.advance(10)
    await drained(harbor)
    assert stage.calls == []


async def test_collector_enqueues_the_failure_task_of_a_lost_job(harbor, stage, clock, drained):
    job = await stage.fail.using(failure_task=stage.alert.s(), delivery="at_most_once").aenqueue()
    await harbor.driver.claim(ClaimRequest("gone/1", SECOND, 1, once_limit=1))
    clock.advance(5)
    await drained(harbor)
    [call] = stage.calls
    assert (call[0]["job"], call[0]["reason"]) == (job.id, "lost")


async def test_death_of_a_failure_task_enqueues_nothing(harbor, stage, drained):
    """Although the failure task declares one as well."""
    stage.broken_alert = True
    wired = harbor.task(name="wired", max_attempts=1, failure_task=stage.alert.s())(stage.alert.function)
    await stage.fail.using(failure_task=wired.s()).aenqueue()
    await drained(harbor)
    assert len(stage.calls) == 1
    assert (await harbor.jobs.acounts())["dead"] == 2


async def test_failed_run_of_a_schedule_enqueues_it(harbor, stage, clock, drained):
    await harbor.schedules.aadd("nightly", "fail", schedule="@every 60s", failure_task=stage.alert.s())
    for runs in (1, 2):
        clock.advance(60)
        await drained(harbor)
        assert len(stage.calls) == runs


async def test_workflows_failure_task_stands_in_for_those_of_its_members(harbor, stage, drained):
    own = stage.fail.using(failure_task=stage.clean.si())
    await chain(own.s(), stage.clean.si()).using(failure_task=stage.alert.s()).aenqueue()
    workflow = await chain(own.s(), stage.fail.si()).aenqueue()
    await drained(harbor)
    assert [len(call) for call in stage.calls if call == ("clean",)] == [1]
    assert [call[0]["workflow"] == workflow.id for call in stage.calls if call != ("clean",)] == [False]


def test_failure_task_that_cannot_be_enqueued_is_refused():
    harbor, other = Harbor("memory://"), Harbor("memory://")
    here, there = harbor.task(name="here")(_takes_two), other.task(name="there")(_takes_two)
    with pytest.raises(ConfigurationError, match=r"failure_task takes a signature such as alert.s\(\), not"):
        here.using(failure_task=here)  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="needs 'b'; only the first parameter"):
        here.using(failure_task=here.s())
    for wrong in (
        lambda: here.using(failure_task=there.s(b=1)),
        lambda: harbor.enqueue("t", failure_task=there.s(b=1)),
        lambda: harbor.task(name="declared", failure_task=there.s(b=1))(_takes_two),
    ):
        with pytest.raises(ConfigurationError, match="belongs to another harbor"):
            wrong()


def _takes_two(a: Any, b: int) -> None: ...


async def test_job_of_a_failure_task_stands_in_lists_where_its_time_is(harbor, stage, drained):
    """Below the jobs that are newer than the death, above those that are older."""
    failing = await stage.fail.using(failure_task=stage.alert.s()).aenqueue()
    await drained(harbor)
    newer = await stage.clean.aenqueue()
    listed = [job.task for job in await harbor.jobs.alist()]
    assert listed == ["clean", "alert", "fail"]
    assert newer.id > failing.id
