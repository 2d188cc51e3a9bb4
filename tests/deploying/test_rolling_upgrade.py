"""Two versions of an application work side by side on one store: no job is lost, and none counts a failure for it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

from taskharbor import Harbor, State, Worker
from taskharbor.clock import ManualClock
from taskharbor.deploying import check_deployment

JOBS = 60  # of each kind
PATIENCE_SECONDS = 120.0  # real ones
# The clock runs a hundred times as fast as real time, and a busy machine must not make leases expire.
PATIENT: dict[str, Any] = {
    "concurrency": 5,
    "lease_seconds": 36_000.0,
    "unrunnable_grace_seconds": 1_000_000.0,
}


async def test_old_and_new_workers_share_the_jobs_until_the_old_ones_are_gone(tmp_path: Path):
    clock, ran = ManualClock(), Counter[str]()
    url = f"sqlite:///{tmp_path}/shop.db?synchronous=normal"
    async with Harbor(url, clock=clock) as old, Harbor(url, clock=clock) as new:

        @old.task(name="send")
        async def send(to: str) -> None:
            ran["old send"] += 1

        @old.task(name="legacy")
        async def legacy() -> None:
            ran["legacy"] += 1

        @new.task(name="send")
        async def new_send(to: str, size: int = 1) -> None:
            ran["new send"] += 1

        @new.task(name="fresh")
        async def fresh() -> None:
            ran["fresh"] += 1

        async def produce(harbor: Harbor, *tasks: tuple[str, dict[str, object]]) -> None:
            for n in range(JOBS):
                for name, payload in tasks:
                    await harbor.aenqueue(name, {**payload, **({"to": f"{n}"} if name == "send" else {})})
                await asyncio.sleep(0)

        async with Worker(old, **PATIENT):
            await produce(old, ("send", {}), ("legacy", {}))
            before = await check_deployment(new, grace=7)
            async with Worker(new, **PATIENT):
                # The old workers can take neither the new parameter nor the new task.
                await asyncio.gather(
                    produce(old, ("send", {}), ("legacy", {})),
                    produce(new, ("send", {"size": 2}), ("fresh", {})),
                )
                await until_succeeded(new, clock, 6 * JOBS)
        counts = await new.driver.counts()
        jobs = [record for state in State for record in await new.jobs.alist(state=state, limit=1_000)]

    # What is still to be done by the old code is what the check names.
    assert {each.subject for each in before.findings if each.topic == "jobs"} <= {"legacy"}
    assert counts[State.DEAD] == counts[State.CANCELLED] == 0
    assert len(jobs) == 6 * JOBS
    assert {job.attempts for job in jobs} == {0}, "an attempt that cannot begin counts no failure"
    assert (ran["legacy"], ran["fresh"]) == (2 * JOBS, JOBS)
    assert ran["old send"] + ran["new send"] == 3 * JOBS
    assert ran["new send"] >= JOBS


async def until_succeeded(harbor: Harbor, clock: ManualClock, jobs: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while (await harbor.driver.counts())[State.SUCCEEDED] < jobs:
        assert time.monotonic() < give_up_at, await harbor.driver.counts()
        await clock.jump(1)
        await asyncio.sleep(0.01)
