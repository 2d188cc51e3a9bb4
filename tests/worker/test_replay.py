"""Replaying dead jobs with a brake: in slices, and no further than their cause allows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor import Harbor, RetryPolicy
from taskharbor.client.handle import Job
from taskharbor.errors import ConfigurationError
from taskharbor.records import State
from tests.worker.apart import done
from tests.worker.stage import PATIENCE_SECONDS, working

ONCE = RetryPolicy(max_attempts=1)


class Shop:
    """A task that fails while its cause is there, and the jobs that died of it."""

    def __init__(self, harbor: Harbor) -> None:
        self.harbor = harbor
        self.broken_for: set[int] | None = None  # all
        self.breaks_otherwise: set[int] = set()
        self.runs: list[int] = []
        self.task = harbor.task(name="charge", retry=ONCE)(self.charge)

    def charge(self, order: int) -> None:
        self.runs.append(order)
        if order in self.breaks_otherwise:
            raise KeyError("no stock")
        if self.broken_for is None or order in self.broken_for:
            raise ValueError(f"order {order}: the bank is closed")

    async def die(self, jobs: int, **options: Any) -> None:
        await self.harbor.aenqueue_many(self.task.using(**options).s(n) for n in range(jobs))
        await done(self.harbor, concurrency=20)
        self.runs.clear()

    async def replay(self, **more: Any) -> dict[str, Any]:
        [group] = await self.harbor.dlq.agroups()
        return await self.finish(await self.harbor.dlq.areplay(fingerprint=group.fingerprint, **more))

    async def finish(self, job: Job[Any]) -> dict[str, Any]:
        clock: Any = self.harbor.driver.clock
        async with working(self.harbor, concurrency=20):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await job.arefresh()).state not in (State.SUCCEEDED, State.DEAD, State.CANCELLED):
                    clock.advance(0.2)
                    await asyncio.sleep(0.002)
        return await job.aresult()  # type: ignore[no-any-return]


@pytest.fixture
def shop(harbor: Harbor) -> Shop:
    return Shop(harbor)


async def test_replay_stops_after_the_first_slice_while_the_cause_is_there(shop):
    await shop.die(30)
    found = await shop.replay()
    assert (found["total"], found["requeued"], found["failed_same"], found["slices"]) == (30, 1, 1, 1)
    assert found["stopped"] is True
    assert len(shop.runs) == 1


async def test_stop_by_the_brake_is_shown_and_logged(shop, caplog):
    await shop.die(30)
    [group] = await shop.harbor.dlq.agroups()
    job = await shop.harbor.dlq.areplay(fingerprint=group.fingerprint)
    await shop.finish(job)
    progress = (await job.arefresh()).progress
    assert progress is not None
    assert progress.message == "1 of 30: 0 succeeded, 1 failed again; stopped by the brake"
    assert (
        "the brake stopped this replay: 1 of 1 job failed again for the same cause, more than 20%"
        in caplog.text
    )


async def test_replay_of_a_cause_that_is_gone_requeues_all_of_them_once(shop):
    await shop.die(30)
    shop.broken_for = set()
    found = await shop.replay()
    assert (found["requeued"], found["succeeded"], found["slices"], found["stopped"]) == (30, 30, 3, False)
    assert sorted(shop.runs) == list(range(30))
    assert await shop.harbor.dlq.acount() == 0


async def test_other_failures_are_counted_and_do_not_stop_it(shop):
    await shop.die(12)
    shop.broken_for, shop.breaks_otherwise = set(), {0, 3, 11}
    found = await shop.replay(brake=0)
    assert (found["succeeded"], found["failed_same"], found["stopped"]) == (9, 0, False)
    [group] = await shop.harbor.dlq.agroups()
    assert found["failed_other"] == {group.fingerprint: 3}


async def test_brake_allows_a_share_of_each_slice(shop):
    """Two of ten again is not more than a fifth, but more than a tenth."""
    await shop.die(11)
    shop.broken_for = {0, 1}  # the newest job is the first slice: these are in the second
    found = await shop.replay(brake=0.2)
    assert (found["requeued"], found["failed_same"], found["stopped"]) == (11, 2, False)
    await shop.harbor.dlq.adiscard_all()
    shop.broken_for = None
    await shop.die(111)
    shop.broken_for = set(range(100, 102))
    found = await shop.replay(brake=0.1)
    assert (found["requeued"], found["failed_same"], found["slices"], found["stopped"]) == (11, 2, 2, True)


async def test_at_most_once_jobs_are_skipped(shop):
    await shop.die(5)
    await shop.die(3, delivery="at_most_once")
    shop.broken_for = set()
    found = await shop.replay()
    assert (found["requeued"], found["skipped"], found["succeeded"]) == (5, 3, 5)
    assert await shop.harbor.dlq.acount() == 3


async def test_jobs_that_die_after_it_began_are_not_replayed(shop):
    await shop.die(1)
    [group] = await shop.harbor.dlq.agroups()
    job = await shop.harbor.dlq.areplay(fingerprint=group.fingerprint)
    shop.harbor.driver.clock.advance(1)
    later = await shop.task.aenqueue(99)
    await shop.harbor.queues.apause("default")
    await shop.harbor.queues.aresume("default")
    found = await shop.finish(job)
    assert (found["total"], found["requeued"]) == (1, 1)
    assert (await later.arefresh()).attempt_number == 1


async def test_replay_waits_while_the_queue_of_its_jobs_is_paused(shop):
    await shop.die(2)
    shop.broken_for = set()
    await shop.harbor.queues.apause("default")
    [group] = await shop.harbor.dlq.agroups()
    job = await shop.harbor.dlq.areplay(fingerprint=group.fingerprint, on_queue="operations")
    clock: Any = shop.harbor.driver.clock
    async with working(shop.harbor):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await job.arefresh()).progress is None:
                clock.advance(0.2)
                await asyncio.sleep(0.002)
    assert "queue default is paused" in (await job.arefresh()).progress.message
    assert await shop.harbor.dlq.acount() == 2
    await shop.harbor.queues.aresume("default")
    assert (await shop.finish(job))["succeeded"] == 2


async def test_replay_is_cancelled_like_any_job(shop):
    await shop.die(3)
    job = await shop.harbor.dlq.areplay()
    await shop.harbor.jobs.acancel(job.id)
    assert (await job.arefresh()).state is State.CANCELLED
    assert await shop.harbor.dlq.acount() == 3


async def test_replay_is_refused_where_there_is_nothing_to_replay(harbor):
    with pytest.raises(ConfigurationError, match="no dead job matches"):
        await harbor.dlq.areplay(task="none")


@pytest.mark.parametrize("brake", [-0.1, 1.1, "20%", True, None])
async def test_unfit_brake_is_refused(harbor, brake):
    with pytest.raises(ConfigurationError, match="brake is a share from 0 to 1"):
        await harbor.dlq.areplay(brake=brake)
