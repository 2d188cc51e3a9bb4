"""Searching: how long a page takes for each filter, on a store of a million jobs of which 100,000 are dead.

python -m benchmarks.searching [--jobs 1000000] [--dead 100000] [--store sqlite] [--store postgresql] [--repeats 20]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from taskharbor import Harbor
from taskharbor.drivers.base import ClaimRequest, Driver, Transition
from taskharbor.records import AttemptStatus, JobFilter, NewJob, NewWorkflow, Options, Reason, State
from tools.postgres_server import running

BATCH = 10_000
PAGE = 50
GROUPS = 50
DAY = 86_400_000_000


def new_job(number: int) -> NewJob:
    from taskharbor.client.options import new_id

    # The oldest job of all has a task, a queue and a correlation id that no other has.
    name = "rare" if number == 0 else f"task-{number % 20}"
    options = Options()
    if number == 0 or number % 50 == 1:
        options = Options(correlation_id="rare" if number == 0 else f"order-{number // 500}")
    elif number % 100 == 2:
        options = Options(tags=("nightly",))
    return NewJob(
        new_id(),
        name,
        payload=f'{{"number":{number},"text":"{"x" * 100}"}}',
        queue="rare" if number == 0 else f"queue-{number % 5}",
        options=options,
        delay=DAY if number % 100 == 3 else None,
    )


async def fill(driver: Driver, jobs: int, dead: int, ready: int | None = None) -> None:
    """Enqueue in batches, each of which is claimed and settled, except the last `ready` jobs (else a tenth)."""
    settled = int(jobs * 0.9) if ready is None else max(jobs - ready, 0)
    every = max(settled // max(dead, 1), 1)  # one of this many dies
    token = 0
    for start in range(0, jobs, BATCH):
        batch = [new_job(number) for number in range(start, min(start + BATCH, jobs))]
        await driver.enqueue(batch)
        if start >= settled:
            continue
        while True:
            token += 1
            claim = await driver.claim(ClaimRequest(f"bench/{token}", 600_000_000, 2_000))
            if not claim.jobs:
                break
            await driver.settle(
                [_ending(f"bench/{token}", job, start + at, every) for at, job in enumerate(claim.jobs)]
            )


def _ending(token: str, job: Any, number: int, every: int) -> Transition:
    if number % every:
        return Transition(token, job.id, job.number, AttemptStatus.SUCCEEDED, State.SUCCEEDED, started_at=0)
    group = number // every % GROUPS
    return Transition(
        token, job.id, job.number, AttemptStatus.FAILED, State.DEAD, started_at=0, attempts=1,
        reason=Reason.POISON if group == 7 else Reason.EXHAUSTED, fingerprint=f"{group:016x}",
        error=f"RuntimeError: service {group} answered 503 to request {number}", traceback="Traceback …\n" * 5,
    )  # fmt: skip


def cases(now: int, workflow: str) -> dict[str, JobFilter]:
    dead = State.DEAD
    return {
        "everything": JobFilter(),
        **{f"state {state}": JobFilter(state=state) for state in State},
        "queue": JobFilter(queue="queue-3"),
        "queue, rare": JobFilter(queue="rare"),
        "task": JobFilter(task="task-7"),
        "task, rare": JobFilter(task="rare"),
        "tag": JobFilter(tag="nightly"),
        "tag, dead": JobFilter(tag="nightly", state=dead),
        "workflow": JobFilter(workflow=workflow),
        "correlation id": JobFilter(correlation_id="order-7"),
        "correlation id, rare": JobFilter(correlation_id="rare"),
        "reason": JobFilter(reason=Reason.POISON),
        "reason, none": JobFilter(reason=Reason.LOST),
        "error, dead": JobFilter(state=dead, error="service 13"),
        "error, dead, none": JobFilter(state=dead, error="no such text"),
        "error, any state": JobFilter(error="service 13"),
        "error, any state, none": JobFilter(error="no such text"),
        "fingerprint": JobFilter(fingerprint=f"{13:016x}"),
        "queue, dead": JobFilter(state=dead, queue="queue-3"),
        "task, dead": JobFilter(state=dead, task="task-7"),
        "task, dead, none": JobFilter(state=dead, task="none"),
        "task, queue and error, dead": JobFilter(
            state=dead, task="task-7", queue="queue-2", error="no such text"
        ),
        "task, ready": JobFilter(state=State.READY, task="task-7"),
        "task, ready, none": JobFilter(state=State.READY, task="none"),
        "task, scheduled": JobFilter(state=State.SCHEDULED, task="task-3"),
        "task, succeeded": JobFilter(state=State.SUCCEEDED, task="task-7"),
        "enqueued after": JobFilter(enqueued_after=now - DAY),
        "enqueued before": JobFilter(enqueued_before=now - DAY),
        "finished after": JobFilter(finished_after=now - DAY),
        "finished before": JobFilter(finished_before=now - DAY),
        "finished before, dead": JobFilter(state=dead, finished_before=now - DAY),
    }


async def timed(act: Callable[[], Awaitable[Any]], repeats: int) -> tuple[float, float, Any]:
    """Milliseconds: the median and the 95th percentile; and the last answer."""
    answer = await act()
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        answer = await act()
        spent.append((time.perf_counter() - began) * 1_000)
    return statistics.median(spent), statistics.quantiles(spent, n=20)[-1], answer


async def measure(name: str, url: str, jobs: int, dead: int, repeats: int) -> None:
    async with Harbor(url) as harbor:
        driver = harbor.driver
        await driver.migrate()
        began = time.perf_counter()
        await fill(driver, jobs, dead)
        workflow = await sample_workflow(harbor)
        print(f"\n{name}: {jobs:,} jobs, filled in {time.perf_counter() - began:.0f} s")
        print(
            f"{'filter':<30} {'p50 ms':>8} {'p95 ms':>8} {'found':>6} {'examined':>9} bounded   {'count p95':>9}"
        )
        worst = 0.0
        for label, where in cases(await driver.now(), workflow).items():
            median, high, page = await timed(partial(driver.list, where, limit=PAGE), repeats)
            _, counting, counted = await timed(partial(driver.count, where, limit=10_001), repeats)
            worst = max(worst, high, counting)
            bounded = "no" if page.reached is None else "yes"
            print(
                f"{label:<30} {median:8.1f} {high:8.1f} {len(page.jobs):6} {page.examined:9,} {bounded:<8} "
                f"{counting:9.1f} {counted.jobs:6,}"
            )
        some = (await driver.list(JobFilter(), limit=1)).jobs[0].id
        median, high, _ = await timed(lambda: driver.get([some]), repeats * 5)
        print(f"{'get one job':<30} {median:8.1f} {high:8.1f}")
        print(f"the slowest p95 is {worst:.1f} ms")


async def sample_workflow(harbor: Harbor) -> str:
    """Enqueue a workflow of a hundred jobs; return its id."""
    from taskharbor.client.options import new_id
    from taskharbor.drivers.base import member_id
    from taskharbor.drivers.capabilities import Workflows

    workflow_id = new_id()
    members = [NewJob(member_id(workflow_id, index), "task-1") for index in range(100)]
    await Workflows.of(harbor.driver).enqueue_workflow(NewWorkflow(workflow_id), members)
    return workflow_id


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--dead", type=int, default=100_000)
    parser.add_argument("--store", action="append", choices=("sqlite", "postgresql"))
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for store in asked.store or ("sqlite", "postgresql"):
            url = f"sqlite:///{folder}/searching.db"
            if store == "postgresql":
                url = stack.enter_context(running()).dsn()
            asyncio.run(measure(store, url, asked.jobs, asked.dead, asked.repeats))


if __name__ == "__main__":
    main()
