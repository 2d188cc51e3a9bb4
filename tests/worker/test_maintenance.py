"""What every worker does now and then for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor import Harbor, State
from taskharbor.clock import MICROS_PER_SECOND, seconds_to_micros
from taskharbor.drivers.base import ClaimRequest, Transition
from taskharbor.records import AttemptStatus
from taskharbor.rescue import COLLECT_SECONDS, COLLECTOR_LEASE, Collector
from taskharbor.worker.upkeep import maintenance
from tests.worker.stage import FaultyDriver, statuses, working


async def test_long_backlog_is_pruned_in_slices_with_a_collection_before_each(
    store: FaultyDriver, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vanished worker's jobs must not wait until a million old ones are deleted."""
    monkeypatch.setattr(maintenance, "PRUNE_SLICE", 10)
    monkeypatch.setattr(maintenance, "PRUNE_EVERY", 3)
    slices: list[tuple[int, int]] = []  # (collections so far, deleted)
    original = FaultyDriver.prune

    async def noting(self: FaultyDriver, before: dict[State, int], limit: int, **rest: Any) -> int:
        deleted = await original(self, before, limit, **rest)
        slices.append((self.calls["take_expired"], deleted))
        return deleted

    monkeypatch.setattr(FaultyDriver, "prune", noting)
    async with Harbor(driver=store, retention={"cancelled": 0.0}) as harbor:
        for _ in range(25):
            await harbor.jobs.acancel((await harbor.aenqueue("old")).id)
        async with working(harbor):
            for _ in range(12):
                await clock.jump(COLLECT_SECONDS)
        assert (await harbor.jobs.acounts())["cancelled"] == 0
    assert [deleted for _, deleted in slices][:3] == [10, 10, 5]
    collections = [count for count, _ in slices]
    assert collections == sorted(set(collections))  # one at least between any two slices


# -- collecting ----------------------------------------------------------------------------------

LEASE_SECONDS = 10.0


async def left_behind(harbor: Harbor, jobs: int = 1) -> None:
    """Jobs under the lease of a worker that is gone, each with an attempt behind it."""
    for token in ("gone/1", "gone/2"):
        claim = await harbor.driver.claim(ClaimRequest(token, seconds_to_micros(LEASE_SECONDS), jobs))
        assert len(claim.jobs) == jobs
        if token == "gone/1":
            back = [
                Transition(token, job.id, job.number, AttemptStatus.RELEASED, State.READY)
                for job in claim.jobs
            ]
            await harbor.driver.settle(back)


class Killed(BaseException): ...


@pytest.mark.parametrize("later", [0.0, 0.2, 0.45])
async def test_jobs_whose_worker_and_collector_died_run_again_within_the_lease_and_two_seconds(
    faulty: Harbor, store: FaultyDriver, clock: Any, later: float
) -> None:
    """The collector came as late as one may. The next one looks whenever its own round is over."""
    ran = asyncio.Event()

    @faulty.task
    async def work() -> None:
        ran.set()

    job = await work.aenqueue()
    await left_behind(faulty)
    clock.advance(LEASE_SECONDS + COLLECT_SECONDS)
    store.fail["settle"] = lambda *_: Killed()
    with pytest.raises(Killed):
        await Collector(store).collect()
    del store.fail["settle"]
    clock.advance(later)
    async with working(faulty):
        await clock.settle()
        assert not ran.is_set()  # the collector's lease is not over
        await clock.jump(2.0 - COLLECT_SECONDS - later)
        assert ran.is_set()
    assert (await statuses(job))[1:] == ["lost", "succeeded"]


async def test_slow_collector_keeps_its_lease_and_is_robbed_of_nothing(
    faulty: Harbor, store: FaultyDriver, clock: Any
) -> None:
    """Weighing forty jobs takes it many times its lease; another collector looks all the time."""
    robbed = []

    @faulty.task
    async def work(n: int) -> None: ...

    jobs = await work.aenqueue_many([{"n": n} for n in range(40)])
    await left_behind(faulty, 40)
    clock.advance(LEASE_SECONDS)

    async def slowly() -> None:
        clock.advance(COLLECTOR_LEASE / MICROS_PER_SECOND / 2)
        robbed.extend(await Collector(store).collect())

    store.before["history"] = slowly
    assert len(await Collector(store).collect()) == 40
    assert robbed == []
    for job in jobs:
        assert await statuses(job) == ["released", "lost"]


async def test_collector_for_which_the_store_is_too_slow_takes_a_longer_lease(
    faulty: Harbor, store: FaultyDriver, clock: Any
) -> None:
    """Each answer takes longer than its lease: in the end it gives itself long enough for one."""

    @faulty.task
    async def work(n: int) -> None: ...

    jobs = await work.aenqueue_many([{"n": n} for n in range(3)])
    await left_behind(faulty, 3)
    clock.advance(LEASE_SECONDS)

    async def very_slowly() -> None:
        clock.advance(5 * COLLECTOR_LEASE / MICROS_PER_SECOND)

    store.before["history"] = very_slowly
    collector = Collector(store)
    collected = 0
    for _ in range(10):
        collected += len(await collector.collect())
        clock.advance(COLLECT_SECONDS)
    assert collected == 3
    for job in jobs:
        assert await statuses(job) == ["released", "lost"]
